"""Whether the database and the running programs of the farm have versions that work together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from farm.errors import FarmError
from farm.formatting import some_of
from farm.services.doctor.asking import asked, database
from farm.services.doctor.check import Check, CheckState
from farm.settings import Settings

if TYPE_CHECKING:
    from farm.db.live_programs import LiveProgram


def check_revision(settings: Settings) -> Check:
    from farm.db import migrate

    needed = migrate.head()
    try:
        with database(settings) as engine:
            if engine is None:
                return Check("revision", CheckState.OK, f"{needed}; checked when the embedded database starts")
            found = migrate.current(engine)
            if found is not None and found > needed:
                return _newer_revision(engine, found, needed)
    except (FarmError, SQLAlchemyError):
        return Check("revision", CheckState.MISSING, f"{needed} needed; the database cannot be queried", "see database")
    if found == needed:
        return Check("revision", CheckState.OK, found)
    return Check("revision", CheckState.MISSING, f"{found or 'no tables'}, {needed} needed", "run: farm db upgrade")


def _newer_revision(engine: Engine, found: str, needed: str) -> Check:
    from farm.db import migrate

    fix = "install the newer version of the farm on this machine"
    oldest = migrate.served_from(engine, migrate.SERVICES)
    if oldest is None or needed < oldest:
        return Check("revision", CheckState.MISSING, f"{found}, this version knows {needed}", fix)
    return Check("revision", CheckState.WARNING, f"{found}, which serves programs from revision {oldest} on", fix)


def check_programs(settings: Settings) -> Check:
    """Whether all live programs run one version of the farm, and the database serves them."""
    from farm.db import live_programs, migrate

    def ask(connection: Connection) -> tuple[list[LiveProgram], list[LiveProgram]]:
        found = live_programs.live(connection)
        oldest = {program: migrate.served_from(connection.engine, program) for program in migrate.DECLARATIONS}
        return found, live_programs.unserved(found, oldest)

    answer = asked(settings, "programs", ask, idle="none live")
    if isinstance(answer, Check):
        return answer
    live, unserved = answer
    if unserved:
        what = f"too old for the database: {some_of([one.text for one in unserved], limit=3, separator='; ')}"
        fix = "install the version of the database there, and start them again"
        return Check("programs", CheckState.WARNING, what, fix)
    what = "; ".join(_by_version(live)) or "none live"
    numbers = {(one.version, one.revision) for one in live}
    if len(numbers) > 1 or len({one.build for one in live} - {None}) > 1:
        fix = "install one version everywhere, one host after the other; farm db programs lists them"
        return Check("programs", CheckState.WARNING, what, fix)
    return Check("programs", CheckState.OK, what)


def _by_version(live: Sequence[LiveProgram]) -> Iterator[str]:
    """As in `gemm-farm 0.1.0 (revision 0036): coordinator on a; farm-worker on b, c`, for each version."""
    hosts: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in live:
        hosts[one.version_text][one.program].append(one.host)
    for version, programs in hosts.items():
        where = ", ".join(f"{name} on {some_of(of_program, limit=3)}" for name, of_program in programs.items())
        yield f"{version}: {where}"


def check_workers(settings: Settings) -> Check:
    """Whether the live workers run one version of the farm, and this one."""
    from farm.db import worker_versions

    silent_after = settings.silent_after_seconds
    live = asked(settings, "workers", lambda c: worker_versions.of_live(c, silent_after=silent_after), idle="none live")
    if isinstance(live, Check):
        return live
    what = "; ".join(
        f"{running.version or worker_versions.UNANNOUNCED} on {some_of(running.hosts, limit=3)}" for running in live
    )
    others = [running for running in live if running.version != worker_versions.own()]
    if others:
        fix = f"this machine has {worker_versions.own()}: install one version everywhere, one host after the other"
        return Check("workers", CheckState.WARNING, what, fix)
    return Check("workers", CheckState.OK, what or "none live")

"""Running programs of the farm: which host runs which version, and which of them a database at another revision would stop.

A program announces itself when it starts and every `HEARTBEAT_SECONDS`. It deregisters when it ends. A program that was
killed counts as live for `LIVE_SECONDS`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType

from sqlalchemy import Connection, text

from farm.db import migrate, worker_versions
from farm.db.migrate import SERVICES, WORKERS
from farm.db.states import ProgramKind
from farm.errors import UpgradeRefused

HEARTBEAT_SECONDS = 30.0
LIVE_SECONDS = 90.0

NEEDS = {
    ProgramKind.COORDINATOR: SERVICES,
    ProgramKind.TRAINER: SERVICES,
    ProgramKind.SERVE: SERVICES,
    ProgramKind.WORKER: WORKERS,
    ProgramKind.BUILDER: WORKERS,
}
"""The row of `compatible_revisions` that holds for a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProgram:
    """A program as it announces itself.

    Attributes:
        revision: the last migration that its code knows.
        build: the commit of its code, as `git describe` prints it; None: it does not run from a checkout.
    """

    id: uuid.UUID
    host: str
    program: ProgramKind
    pid: int
    version: str
    revision: str
    build: str | None


_ANNOUNCE = text("""
SELECT program_announce(CAST(:id AS uuid), :host, :program, CAST(:pid AS bigint), :version, :revision, :build)
""")
_LEAVE = text("SELECT program_leave(CAST(:id AS uuid))")


def announce(connection: Connection, program: RunningProgram) -> None:
    """Records that the program runs."""
    values = {name: getattr(program, name) for name in RunningProgram.__slots__}
    connection.execute(_ANNOUNCE, values | {"id": str(program.id), "program": program.program.value})


def leave(connection: Connection, program: RunningProgram) -> None:
    """Deregisters the program."""
    connection.execute(_LEAVE, {"id": str(program.id)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProgram:
    """Programs of one kind and version on one host."""

    host: str
    program: str
    # None: a worker that announced no version.
    version: str | None
    revision: str | None
    build: str | None
    count: int
    # The start of the oldest of them. None: not known, because it is older than the table of programs.
    started_at: datetime | None

    @property
    def text(self) -> str:
        """As in `farm-worker on gpu-7: gemm-farm 0.1.0 (revision 0036)`."""
        return f"{self.program} on {self.host}: {self.version_text}"

    @property
    def version_text(self) -> str:
        """As in `gemm-farm 0.1.0 (revision 0036, build v0.1.0-3-g2ef8745)`."""
        if self.version is None:
            return worker_versions.UNANNOUNCED
        build = "" if self.build is None else f", build {self.build}"
        return f"gemm-farm {self.version} (revision {self.revision}{build})"


_HAS_TABLE = text("SELECT to_regclass('programs') IS NOT NULL")
_LIVE = text("""
SELECT host, program, version, revision, build, count(*) AS count, min(started_at) AS started_at
FROM programs WHERE last_heartbeat_at > clock_timestamp() - make_interval(secs => :silent_after)
GROUP BY host, program, version, revision, build ORDER BY host, program, revision, version, build
""")


def live(connection: Connection) -> list[LiveProgram]:
    """Live programs, by host. Workers from before the table are those of live devices."""
    found: list[LiveProgram] = []
    if connection.execute(_HAS_TABLE).scalar_one():
        found = [LiveProgram(**row) for row in connection.execute(_LIVE, {"silent_after": LIVE_SECONDS}).mappings()]
    announced = {(one.host, one.program, one.version, one.revision) for one in found}
    for used in worker_versions.of_live(connection, silent_after=LIVE_SECONDS):
        version, revision = (None, None) if used.version is None else (used.version.version, used.version.revision)
        for host in used.hosts:
            if (host, ProgramKind.WORKER, version, revision) not in announced:
                worker = LiveProgram(
                    host=host, program=ProgramKind.WORKER, version=version, revision=revision, build=None, count=1,
                    started_at=None,
                )  # fmt: skip
                found.append(worker)
    return sorted(found, key=lambda one: (one.host, one.program, one.revision or "", one.version or ""))


def unserved(programs: Iterable[LiveProgram], oldest: dict[str, str | None]) -> list[LiveProgram]:
    """Those of a revision that a database with these declarations does not serve. `oldest` is by row of `compatible_revisions`."""
    return [
        one
        for one in programs
        if one.revision is not None and one.revision < (oldest[NEEDS[ProgramKind(one.program)]] or "")
    ]


def require_served_after(connection: Connection, modules: Sequence[ModuleType]) -> None:
    """Raises `UpgradeRefused` if live programs cannot work with a database that has these migrations, the newest first."""
    oldest = {program: migrate.declared_oldest(modules, program) for program in migrate.DECLARATIONS}
    if stopped := unserved(live(connection), oldest):
        raise UpgradeRefused(programs="; ".join(one.text for one in stopped), oldest=_oldest_text(oldest))


def _oldest_text(oldest: dict[str, str | None]) -> str:
    return " and ".join(f"{program} from revision {revision}" for program, revision in oldest.items() if revision)

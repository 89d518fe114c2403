"""Running programs announce their versions; an upgrade that would stop one is refused, and an older program keeps to newer databases."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from farm import __version__
from farm.db import live_programs, migrate, worker_logins
from farm.db.engine import make_engine
from farm.db.live_programs import RunningProgram
from farm.db.states import ProgramKind
from farm.errors import DatabaseIsNewer, UpgradeRefused
from farm.services import ServiceUrls, registering
from farm.services.doctor.check import CheckState
from farm.services.doctor.versions import check_programs, check_revision
from farm.settings import Settings
from support.commands import called
from support.homes import environment, eventually


@pytest.fixture(scope="session")
def farm_services(services_of_the_owner: ServiceUrls) -> ServiceUrls:
    return services_of_the_owner


def program(kind: ProgramKind = ProgramKind.COORDINATOR, host: str = "here", **changes: str | None) -> RunningProgram:
    made = RunningProgram(
        id=uuid.uuid4(), host=host, program=kind, pid=7, version=__version__, revision=migrate.head(), build=None
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def announce(engine: Engine, *programs: RunningProgram) -> None:
    with engine.begin() as connection:
        for one in programs:
            live_programs.announce(connection, one)


def listed(engine: Engine) -> list[tuple[str, str, str | None]]:
    with engine.connect() as connection:
        return [(one.host, one.program, one.revision) for one in live_programs.live(connection)]


def write(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def settings_of(url: str) -> Settings:
    return Settings(database_url=url)  # type: ignore[arg-type]


def declaring(**declared: str) -> ModuleType:
    return cast("ModuleType", SimpleNamespace(**declared))


def test_a_program_is_live_from_its_announcement_until_it_leaves_or_is_silent(engine: Engine) -> None:
    first, second = program(), program(ProgramKind.SERVE)
    announce(engine, first, second, first)
    assert listed(engine) == [("here", "coordinator", migrate.head()), ("here", "farm serve", migrate.head())]
    with engine.begin() as connection:
        live_programs.leave(connection, second)
    write(engine, "UPDATE programs SET last_heartbeat_at = last_heartbeat_at - interval '2 minutes'")
    assert listed(engine) == []
    announce(engine, first)
    assert listed(engine) == [("here", "coordinator", migrate.head())]
    write(engine, "UPDATE programs SET last_heartbeat_at = last_heartbeat_at - interval '2 days'")
    announce(engine, second)  # removes what was silent for a day
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM programs")).scalar_one() == 1


def test_a_running_process_registers_and_deregisters_itself(
    engine: Engine, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with registering.registered(database_url, ProgramKind.TRAINER):
        eventually(lambda: [kind for _, kind, _ in listed(engine)] == ["farm-trainer"])
    assert listed(engine) == []
    assert caplog.messages == []


def test_a_program_that_cannot_register_runs_on_and_registers_later(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registering, "HEARTBEAT_SECONDS", 0.05)
    write(engine, "ALTER TABLE programs RENAME TO programs_away")
    with registering.registered(database_url, ProgramKind.COORDINATOR):
        eventually(lambda: caplog.messages)
        write(engine, "ALTER TABLE programs_away RENAME TO programs")
        eventually(lambda: listed(engine))
    assert len(caplog.messages) == 1
    assert "this program is not registered" in caplog.text


def test_a_worker_host_announces_only_its_own_worker(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        login = worker_logins.add(connection, "mine", password="measuring")
    theirs, own = program(ProgramKind.WORKER, "theirs"), program(ProgramKind.WORKER, "mine")
    announce(engine, theirs)
    url = engine.url.set(username=login, password="measuring").render_as_string(hide_password=False)
    worker = make_engine(url, application="test", pool_size=1)
    announce(worker, own)
    refused = [
        (replace(theirs, id=uuid.uuid4()), None),  # is noted as a worker of its own host
        (program(ProgramKind.COORDINATOR, "mine"), "announces no coordinator"),
        (program(ProgramKind.WORKER, "mine", revision="0"), "ck_programs_revision_readable"),
        (program(ProgramKind.WORKER, "mine", version="\x1b[2J"), "ck_programs_version_readable"),
        (program(ProgramKind.WORKER, "mine", build="a; b"), "ck_programs_build_readable"),
    ]
    for one, why in refused:
        if why is None:
            announce(worker, one)
        else:
            with pytest.raises(DBAPIError, match=why):
                announce(worker, one)
    with pytest.raises(DBAPIError, match="pk_programs"):
        announce(worker, theirs)
    with worker.begin() as connection:
        live_programs.leave(connection, theirs)  # has no effect
    assert [host for host, _, _ in listed(engine)] == ["mine", "theirs"]
    worker.dispose()


def test_a_host_announces_a_limited_number_of_programs(engine: Engine) -> None:
    write(
        engine,
        "INSERT INTO programs (id, host, program, pid, version, revision) "
        "SELECT gen_random_uuid(), 'here', 'farm-worker', n, '1', '0036' FROM generate_series(1, 1000) n",
    )
    with pytest.raises(DBAPIError, match="announced 1000 programs"):
        announce(engine, program())
    announce(engine, program(host="there"))


@pytest.mark.parametrize(
    ("kind", "declared", "refused"),
    [
        (ProgramKind.WORKER, {"workers_from": "9998"}, True),
        (ProgramKind.BUILDER, {"workers_from": "9998"}, True),
        (ProgramKind.COORDINATOR, {"workers_from": "9998"}, False),
        (ProgramKind.COORDINATOR, {"services_from": "9998"}, True),
        (ProgramKind.SERVE, {"services_from": "9998"}, True),
        (ProgramKind.TRAINER, {"services_from": "0036"}, False),
        (ProgramKind.TRAINER, {}, False),
    ],
)
def test_an_upgrade_is_refused_while_a_program_runs_that_the_new_revision_does_not_serve(
    engine: Engine, kind: ProgramKind, declared: dict[str, str], refused: bool
) -> None:
    announce(engine, program(kind, "gpu-7"))
    modules = [declaring(), declaring(**declared), declaring(workers_from="0001", services_from="0001")]
    with engine.connect() as connection:
        if not refused:
            live_programs.require_served_after(connection, modules)
            return
        with pytest.raises(UpgradeRefused, match=rf"from revision 9998.*{kind} on gpu-7: gemm-farm .*--force"):
            live_programs.require_served_after(connection, modules)


def test_workers_from_before_the_table_of_programs_count_as_live(engine: Engine, device: int) -> None:
    write(engine, "INSERT INTO worker_versions (version, revision, vocabulary) VALUES ('0.0.9', '0034', '')")
    write(engine, "UPDATE devices SET worker_version_id = (SELECT id FROM worker_versions)")
    migrate.downgrade(engine, "0035")
    with pytest.raises(UpgradeRefused, match=r"farm-worker on here: gemm-farm 0.0.9 \(revision 0034\)"):
        migrate.upgrade(engine, check=live_programs.require_served_after)
    assert migrate.current(engine) == "0035"
    migrate.upgrade(engine)  # as with --force
    assert migrate.current(engine) == migrate.head()


def farm_db(home: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return called(("db", *words), home, environment(home, FARM_DATABASE_URL=url))


def test_the_command_refuses_lists_the_programs_and_upgrades_with_force(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    announce(engine, program(ProgramKind.WORKER, "gpu-7", revision="0034", version="0.0.9", build="v0.0.9-1-gabc"))
    write(engine, "UPDATE alembic_version SET version_num = '0035'")  # which declares workers_from
    refused = farm_db(tmp_path, database_url, "upgrade")
    message = " ".join(refused.stderr.split())
    assert (refused.returncode, "Traceback" in message) == (5, False)
    assert "farm-worker on gpu-7: gemm-farm 0.0.9 (revision 0034, build v0.0.9-1-gabc)" in message
    assert migrate.current(engine) == "0035"
    (found,) = json.loads(farm_db(tmp_path, database_url, "programs", "--json").stdout)
    assert (found["host"], found["program"], found["version"], found["count"]) == ("gpu-7", "farm-worker", "0.0.9", 1)
    write(engine, f"UPDATE alembic_version SET version_num = '{migrate.head()}'")
    migrate.downgrade(engine, "0035")
    forced = farm_db(tmp_path, database_url, "upgrade", "--force")
    assert forced.returncode == 0, forced.stderr
    assert migrate.current(engine) == migrate.head()


def test_the_doctor_says_which_hosts_run_which_version_and_warns_of_several(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database_url)
    assert check_programs(settings).what == "none live"
    announce(engine, program(host="a"), program(ProgramKind.WORKER, "b"), program(ProgramKind.WORKER, "c"))
    one = check_programs(settings)
    version = f"gemm-farm {__version__} (revision {migrate.head()})"
    assert (one.state, one.what) == (CheckState.OK, f"{version}: coordinator on a, farm-worker on b, c")
    announce(engine, program(ProgramKind.SERVE, "a", version="9.0", revision="9999"))
    skewed = check_programs(settings)
    assert (skewed.state, "one version everywhere" in skewed.fix) == (CheckState.WARNING, True)
    assert skewed.what.endswith("gemm-farm 9.0 (revision 9999): farm serve on a")
    announce(engine, program(ProgramKind.BUILDER, "d", revision="0001"))
    old = check_programs(settings)
    assert old.what.startswith("too old for the database: builder on d: ")


def test_a_service_works_with_a_newer_database_that_serves_it_and_with_no_other(
    engine: Engine, database_url: str
) -> None:
    settings = settings_of(database_url)
    write(engine, "UPDATE alembic_version SET version_num = '9999'")
    migrate.require_for_service(engine)
    assert check_revision(settings).state is CheckState.WARNING
    write(engine, "UPDATE compatible_revisions SET oldest = '9999' WHERE program = 'services'")
    with pytest.raises(DatabaseIsNewer, match="It serves services from revision 9999 on"):
        migrate.require_for_service(engine)
    migrate.require_for_worker(engine)
    revision = check_revision(settings)
    assert (revision.state, "install the newer version" in revision.fix) == (CheckState.MISSING, True)


def test_a_refused_upgrade_leaves_the_next_one_free(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Callable[..., object]] = []

    def refuse(*_: object) -> None:
        called.append(refuse)
        raise UpgradeRefused(programs="one", oldest="none")

    migrate.downgrade(engine, "0035")
    with pytest.raises(UpgradeRefused):
        migrate.upgrade(engine, check=refuse)
    assert called == [refuse]
    migrate.upgrade(engine)

"""The programs under the database roles that are their own, on a server whose roles the script of Compose made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from farm.campaign import Campaign, plan
from farm.db import campaigns, devices, migrate, roles
from farm.db.campaigns import Stored
from farm.db.engine import make_engine
from farm.db.roles import set_up_worker_role
from farm.db.service_roles import Service, set_up_service_roles
from farm.errors import BadRole, RightMissing, RoleRefused
from farm.services import ServiceUrls
from support.batch_steps import claim, form, land, leased
from support.commands import called
from support.database_schema import differences, schema
from support.homes import environment, eventually
from support.learning_campaigns import decided, learning_campaign, measure, requested, state
from support.logins import logs_in
from support.programs import COORDINATOR, FARM_WORKER, programs
from support.samples import cpu, document
from support.shared_server import PASSWORDS, SUPERUSER, SharedServer, shared_server, urls_of_roles

TRAINER = (sys.executable, "-m", "trainer.main")
LEARNING = document(
    name="learning",
    targets="any",
    problems={"domain": {"m": "1..64", "n": "16..64", "k": "16..64", "align": [1, 8]}, "types": ["f32"]},
    kernels={"family": "blas", "threads": [1]},
    search={"strategy": "learn", "problems": 6, "kernels": 1, "test_problems": 20, "budget_seconds": 1.0},
)


@pytest.fixture(scope="session")
def farm_services(services_of_the_owner: ServiceUrls) -> ServiceUrls:
    return services_of_the_owner


@pytest.fixture
def urls(engine: Engine, database_url: str) -> Mapping[Service, str]:
    return urls_of_roles(database_url)


def value(engine: Engine, statement: str) -> object:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one()


@pytest.mark.long
def test_a_campaign_is_submitted_learned_from_and_ends_with_every_program_under_its_role(
    engine: Engine, urls: Mapping[Service, str], database_url: str, farm_services: ServiceUrls, tmp_path: Path,
    new_registry: Callable[[Path], str],
) -> None:  # fmt: skip
    registry = new_registry(tmp_path)
    campaign = tmp_path / "learning.yaml"
    campaign.write_text(json.dumps(LEARNING))
    with programs(
        tmp_path, FARM_BROKER_URL=str(farm_services.broker_url), MLFLOW_TRACKING_URI=registry, FARM_TRAIN_NEW_ROWS="5"
    ) as start:
        coordinator = start(COORDINATOR, name="coordinator", FARM_DATABASE_URL=urls[Service.APPLICATION])
        trainer = start(TRAINER, name="trainer", FARM_DATABASE_URL=urls[Service.TRAINER])
        start(FARM_WORKER, "--devices", "cpu", name="worker", FARM_DATABASE_URL=database_url)
        eventually(lambda: value(engine, "SELECT count(*) FROM devices"))
        submitted = subprocess.run(
            [sys.executable, "-m", "farm", "submit", str(campaign)],
            env=environment(tmp_path / ".farm", FARM_DATABASE_URL=urls[Service.APPLICATION]),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stderr
        eventually(lambda: value(engine, "SELECT count(*) FROM lanes WHERE purpose = 'learn' AND decided IS NOT NULL"))
        eventually(lambda: value(engine, "SELECT count(*) FROM campaigns WHERE state = 'done'"))
        eventually(
            lambda: value(engine, "SELECT count(*) FROM trainings WHERE lane_id IS NULL AND state <> 'requested'")
        )
        for program in (coordinator, trainer):
            assert "denied" not in program.log()
            assert program.stop() == 0


def test_a_trainer_decides_on_rounds_under_its_role(
    engine: Engine, urls: Mapping[Service, str], device: int, submit: Callable[[Campaign], Stored]
) -> None:
    submit(learning_campaign(budget_seconds=0.75))
    measure(engine, device)
    (training,) = requested(engine)
    under = make_engine(urls[Service.TRAINER], application="test", pool_size=2)
    assert "20 jobs follow" in str(decided(under, training))
    measure(engine, device)
    (training,) = requested(engine)
    assert "it ends" in str(decided(under, training))
    under.dispose()
    assert state(engine) == "done"


# --- the way from a farm of one superuser -----------------------------------------------------------------


@pytest.fixture
def old_farm() -> Iterator[SharedServer]:
    """As Compose made it before there were roles: one superuser owns tables, results, MLflow's database and the workers' role."""
    with shared_server() as server:
        superuser = make_engine(server.url(SUPERUSER), application="tests", pool_size=1)
        alone = superuser.execution_options(isolation_level="AUTOCOMMIT")
        with alone.connect() as connection:
            connection.exec_driver_sql("ALTER DATABASE farm OWNER TO postgres")
            connection.exec_driver_sql("CREATE DATABASE mlflow")
        migrate.upgrade(superuser)
        with superuser.begin() as connection:
            devices.register(connection, host="here", host_facts={}, device=cpu())
            campaign = Campaign.from_document(document())
            known = campaigns.known_devices(connection)
            campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())
        land(superuser, leased(superuser, 1, size=8))
        with superuser.begin() as connection:
            connection.exec_driver_sql("CREATE ROLE farm_worker LOGIN PASSWORD 'old'")
            connection.exec_driver_sql("GRANT SELECT ON jobs, alembic_version TO farm_worker")
        mlflow = make_engine(server.url(SUPERUSER, "mlflow"), application="tests", pool_size=1)
        with mlflow.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE registered_models (name text PRIMARY KEY, n serial)")
            connection.exec_driver_sql("INSERT INTO registered_models VALUES ('gemm-forest-cpu')")
        for each in (superuser, mlflow):
            each.dispose()
        yield server


@pytest.mark.long
def test_a_filled_farm_of_one_superuser_goes_over_to_roles(old_farm: SharedServer, tmp_path: Path) -> None:
    """The steps of docs/operating.md, "From one superuser to roles"."""

    def farm_db(*words: str) -> None:
        given = {f"FARM_{one.upper()}_PASSWORD": PASSWORDS[f"farm_{one}"] for one in Service}
        variables = environment(
            tmp_path / ".farm", FARM_DATABASE_URL=old_farm.url("farm_owner"), FARM_WORKER_PASSWORD="new", **given
        )
        done = called(("db", *words), tmp_path, variables)
        assert done.returncode == 0, done.stderr

    for _ in range(2):  # steps can be repeated
        old_farm.make_roles()
        farm_db("upgrade")
        farm_db("roles")
        farm_db("worker-role")
    owner = make_engine(old_farm.url("farm_owner"), application="tests", pool_size=1)
    assert migrate.current(owner) == migrate.head()
    assert value(owner, "SELECT count(*) FROM measurements") == 8
    assert (
        value(
            owner,
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relowner <> 'farm_owner'::regrole",
        )
        == 0
    )
    assert (
        value(
            owner,
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proowner <> 'farm_owner'::regrole",
        )
        == 0
    )
    batch_id = form(owner, 100)
    assert batch_id is not None
    worker = make_engine(
        owner.url.set(username="farm_worker", password="new").render_as_string(hide_password=False),
        application="tests",
        pool_size=1,
    )
    lease = claim(worker, batch_id, 1, 1e9)
    assert lease is not None
    lasts = "SELECT max(lease_expires_at) - now() BETWEEN interval '7000 s' AND interval '7200 s' FROM batches"
    assert value(owner, lasts)
    land(worker, lease)
    worker.dispose()
    assert value(owner, "SELECT count(*) FROM measurements") == 12
    upgraded = schema(owner)
    migrate.downgrade(owner, "base")  # it may do whatever a migration does
    migrate.upgrade(owner)
    assert differences(upgraded, schema(owner)) == {}
    owner.dispose()
    mlflow = make_engine(old_farm.url("mlflow", "mlflow"), application="tests", pool_size=1)
    with mlflow.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE registered_models ADD COLUMN more text")
        assert connection.exec_driver_sql("SELECT nextval('registered_models_n_seq')").scalar_one() == 2
    mlflow.dispose()
    for role, database in (("mlflow", "farm"), ("farm_owner", "mlflow"), ("farm_web", "mlflow")):
        outside = make_engine(old_farm.url(role, database), application="tests", pool_size=1)
        with pytest.raises(OperationalError, match="permission denied for database"), outside.connect():
            pass
        outside.dispose()


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        changed = environment(tmp_path / ".farm", **{"FARM_DATABASE_URL": database_url, **variables})
        return called(("db", "roles", *words), tmp_path, changed)

    return run


Command = Callable[..., subprocess.CompletedProcess[str]]


def test_the_command_makes_all_roles_with_passwords_that_it_is_given_or_makes(
    engine: Engine, command: Command, database_url: str
) -> None:
    try:
        done = command("--prefix", "lab", FARM_WEB_PASSWORD="of the web")
        assert done.returncode == 0, done.stderr
        made = dict(line.split() for line in done.stdout.splitlines())
        assert set(made) == {"lab_application", "lab_trainer"}
        assert "of the web" not in done.stdout + done.stderr
        for role, password in {**made, "lab_web": "of the web"}.items():
            assert logs_in(database_url, role, password)
        again = command("--prefix", "lab", "--json", FARM_TRAINER_PASSWORD="changed")
        assert {one["role"]: (one["new"], one["password"]) for one in json.loads(again.stdout)} == dict.fromkeys(
            ("lab_application", "lab_web", "lab_trainer"), (False, None)
        )
        assert logs_in(database_url, "lab_trainer", "changed")
        assert logs_in(database_url, "lab_web", "of the web")
    finally:
        with engine.begin() as connection:
            for service in Service:
                connection.execute(text(f"GRANT lab_{service} TO CURRENT_USER"))
                connection.execute(text(f"DROP OWNED BY lab_{service}"))
                connection.execute(text(f"DROP ROLE lab_{service}"))


def test_all_roles_are_made_or_none(engine: Engine, command: Command) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE half_trainer CREATEROLE"))
    refused = command("--prefix", "half")
    assert refused.returncode == 2
    assert "half_trainer cannot be the role of services" in " ".join(refused.stderr.split())
    with engine.begin() as connection:
        assert not roles.exists(connection, "half_application")
        connection.execute(text("DROP ROLE half_trainer"))


def test_an_application_cannot_make_roles_and_an_embedded_farm_needs_none(
    urls: Mapping[Service, str], command: Command
) -> None:
    refused = command(FARM_DATABASE_URL=urls[Service.WEB])
    assert (refused.returncode, "Traceback" in refused.stderr) == (RoleRefused.exit_code, False), refused.stderr
    assert "must name a role that owns the farm's tables" in " ".join(refused.stderr.split())
    embedded = command(FARM_DATABASE_URL="")
    assert embedded.returncode == 2
    assert "has one role, and only this machine reaches it" in " ".join(embedded.stderr.split())


def test_who_makes_a_token_without_being_the_owner_is_told_who_may(urls: Mapping[Service, str], tmp_path: Path) -> None:
    under_its_role = environment(tmp_path / ".farm", FARM_DATABASE_URL=urls[Service.APPLICATION])
    done = called(("tokens", "create", "mine", "--role", "operate"), tmp_path, under_its_role)
    assert (done.returncode, done.stdout) == (RightMissing.exit_code, "")
    assert "permission denied for table tokens" in " ".join(done.stderr.split())
    assert "sha256" not in done.stderr


def test_the_role_of_a_service_is_not_taken_for_that_of_workers(engine: Engine, urls: Mapping[Service, str]) -> None:
    for service in Service:
        with pytest.raises(BadRole, match="there is such a role"), engine.begin() as connection:
            set_up_worker_role(connection, f"farm_{service}", password=None)


def test_run_again_it_takes_away_what_was_added(engine: Engine, urls: Mapping[Service, str]) -> None:
    def may(what: str) -> object:
        return value(engine, f"SELECT has_table_privilege('farm_web', 'tokens', '{what}')")

    with engine.begin() as connection:
        connection.execute(text("GRANT INSERT, DELETE ON tokens TO farm_web"))
    assert may("INSERT")
    with engine.begin() as connection:
        set_up_service_roles(connection, dict.fromkeys(Service))
    assert not may("INSERT")
    assert not may("DELETE")

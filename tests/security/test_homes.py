"""Another account of the machine plants a home, or modules, where the farm is run: nothing of it is used."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm import python_program
from farm.errors import HomeUntrusted
from farm.ownership import why_untrusted
from farm.services.home import PASSABLE, Home
from farm.settings import settings
from support.commands import NOWHERE
from support.folders import open_folder
from support.homes import embedded_settings, environment

STRANGER = 23_456
"""A user id that no account of this machine has."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders to others, and become them")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can enter and only we write to, in the sticky /tmp."""
    with open_folder() as made:
        yield made


def planted(home: Path, uid: int = STRANGER) -> Path:
    home.mkdir(parents=True)
    (home / "names.json").write_text('{"database": "9c3e5b1f3b2e", "campaigns": ["planted"]}')
    os.chown(home, uid, uid)
    return home


def farm(at: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = environment(at)
    del variables["FARM_HOME"]
    line = [str(Path(sys.executable).with_name("farm")), *words]
    return subprocess.run(line, cwd=at, env=variables, capture_output=True, text=True, timeout=240, check=False)


# --- homes that somebody else made ----------------------------------------------------------------------


@as_root
def test_a_home_that_another_account_planted_in_a_parent_folder_is_refused(folder: Path) -> None:
    home = planted(folder / ".farm")
    work = folder / "work" / "deeper"
    work.mkdir(parents=True)
    done = farm(work, "status")
    assert done.returncode == 2
    assert str(home) in done.stderr
    assert f"it belongs to uid {STRANGER}, and you are root. Run the farm as its owner" in done.stderr
    assert "set FARM_HOME" in done.stderr
    assert "Traceback" not in done.stderr
    assert {place.name for place in home.iterdir()} == {"names.json"}, "nothing was made in it"


@as_root
def test_root_takes_no_home_in_the_folder_of_another_account(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns the folder could put another home there, between the check and its use."""
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    monkeypatch.chdir(theirs)
    settings.cache_clear()
    with pytest.raises(HomeUntrusted, match=f"{theirs} belongs to uid {STRANGER}"):
        settings()
    with pytest.raises(HomeUntrusted, match="could replace it"):
        Home.open(embedded_settings(theirs / ".farm"))
    assert list(theirs.iterdir()) == []


@as_root
def test_a_link_that_another_account_planted_is_not_followed(folder: Path) -> None:
    own, open_to_all = folder / "own", folder / "tmp"
    own.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    (open_to_all / ".farm").symlink_to(own)
    assert why_untrusted(open_to_all / ".farm") is None, "our own link"
    os.chown(open_to_all / ".farm", STRANGER, STRANGER, follow_symlinks=False)
    assert f"{open_to_all / '.farm'} belongs to uid {STRANGER}" in str(why_untrusted(open_to_all / ".farm"))


@as_root
def test_an_ordinary_account_is_refused_the_home_of_another(folder: Path) -> None:
    planted(folder / ".farm", STRANGER + 1)

    def judge() -> bool:
        return "it belongs to uid" in str(why_untrusted(folder / ".farm"))

    assert as_stranger(judge)


def as_stranger(judge: Callable[[], bool]) -> bool:
    """What a function says that runs as the stranger, in a process of its own."""
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os._exit(0 if judge() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("place", [".farm", "."], ids=["home", "folder-above"])
def test_a_home_that_every_account_can_write_to_or_replace_is_refused(folder: Path, place: str) -> None:
    (folder / "work" / ".farm").mkdir(parents=True, mode=0o700)
    open_to_all = (folder / "work" / place).resolve()
    open_to_all.chmod(0o777)
    with pytest.raises(HomeUntrusted, match="every account can write to") as refused:
        Home.open(embedded_settings(folder / "work" / ".farm"))
    assert f" {open_to_all}." in str(refused.value), "the command that repairs it"


@as_root
def test_a_group_with_other_members_must_not_be_able_to_replace_the_home(folder: Path) -> None:
    shared = next(entry for entry in pwd.getpwall() if entry.pw_gid != 0)
    os.chown(folder, 0, shared.pw_gid)
    folder.chmod(0o775)
    assert "the group" in str(why_untrusted(folder / ".farm"))
    os.chown(folder, 0, 0)
    assert why_untrusted(folder / ".farm") is None, "a group of one's own, as where the umask is 002"


def test_a_home_of_ones_own_in_a_sticky_folder_is_used(folder: Path) -> None:
    folder.chmod(0o1777)
    assert Home.open(embedded_settings(folder / ".farm")).path == folder / ".farm"


# --- who may read a home --------------------------------------------------------------------------------


def test_homes_are_closed_to_other_accounts(folder: Path) -> None:
    home = Home.open(embedded_settings(folder / ".farm"))
    mode = 0o711 if os.getuid() == 0 else 0o700
    assert stat.S_IMODE(home.path.stat().st_mode) == mode
    closed = {place.name: stat.S_IMODE(place.stat().st_mode) & 0o077 for place in home.path.iterdir()}
    assert {name for name, open_bits in closed.items() if open_bits} <= {".gitignore"}


def test_homes_of_older_versions_are_closed_when_they_are_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = folder / ".farm"
    (home / "logs").mkdir(parents=True)
    (home / "mlflow.db").write_text("")
    home.chmod(0o755)
    Home.open(embedded_settings(home))
    assert stat.S_IMODE(home.stat().st_mode) & ~PASSABLE == 0
    assert stat.S_IMODE((home / "logs").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "mlflow.db").stat().st_mode) == 0o600
    assert caplog.messages == [], "nobody else could write to it"


@as_root
def test_a_home_that_a_group_could_write_to_is_closed_with_a_word(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = next(entry for entry in pwd.getpwall() if entry.pw_gid != 0)
    home = folder / ".farm"
    home.mkdir()
    os.chown(home, 0, shared.pw_gid)
    home.chmod(0o770)
    Home.open(embedded_settings(home))
    assert stat.S_IMODE(home.stat().st_mode) & ~PASSABLE == 0
    assert f"{home} could be written by its group" in caplog.text


# --- modules in the current folder ----------------------------------------------------------------------


@pytest.fixture
def trap(folder: Path) -> Path:
    """A folder in which every package that the farm imports first has a namesake that leaves a mark."""
    for name in ("numpy", "farm", "workers", "trainer", "celery", "billiard", "kombu", "psutil", "sqlalchemy"):
        (folder / f"{name}.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    return folder


def test_programs_of_the_farm_import_nothing_from_the_current_folder(trap: Path) -> None:
    line = python_program.program("workers.devices.discovery_process", "cpu")
    subprocess.run(line, cwd=trap, env=environment(trap), capture_output=True, timeout=120, check=True)
    assert list(trap.glob("*.ran")) == []


def test_celery_imports_tasks_from_where_the_farm_is_installed(trap: Path) -> None:
    script = (
        "from farm.broker.celery_app import make_app\n"
        "app = make_app('redis://127.0.0.1:1/0', include=('workers.tasks',))\n"
        "app.loader.import_default_modules()\n"
    )
    line = [sys.executable, "-P", "-c", script]
    variables = environment(trap, FARM_DATABASE_URL=NOWHERE)
    subprocess.run(line, cwd=trap, env=variables, capture_output=True, timeout=120, check=True)
    assert list(trap.glob("*.ran")) == []


def test_what_programs_start_imports_nothing_from_the_current_folder_either(trap: Path) -> None:
    """Celery starts its child as `python -c`, which looks in the current folder unless the environment forbids it."""
    script = (
        "import subprocess, sys\n"
        "from farm.settings import environment_for_children\n"
        "subprocess.run([sys.executable, '-c', 'import billiard.spawn, numpy'], env=environment_for_children(), check=True)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], cwd=trap, env=environment(trap), timeout=120, check=True)
    assert list(trap.glob("*.ran")) == []

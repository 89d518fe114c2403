"""One process of a host for each device, whoever made the file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from farm.errors import DeviceLocked, DeviceLockUnusable
from workers.device_lock import DeviceLock, default_folder

HOLD = """
import sys
from pathlib import Path
from workers.device_lock import DeviceLock
lock = DeviceLock.take(sys.argv[1], Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_device_is_locked_once_and_the_refusal_names_the_holder_and_what_to_do(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, "GPU-a", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DeviceLocked, match=rf"process {holder.pid} of this host .*Stop that one"):
            DeviceLock.take("GPU-a", tmp_path)
        DeviceLock.take("GPU-b", tmp_path).release()
        holder.kill()
    DeviceLock.take("GPU-a", tmp_path).release()


def test_who_takes_the_lock_of_one_that_is_gone_knows_it_by_its_name(tmp_path: Path) -> None:
    first = DeviceLock.take("GPU-a", tmp_path)
    name = first.name
    first.release()
    first.release()
    again, other = DeviceLock.take("GPU-a", tmp_path), DeviceLock.take("GPU-b", tmp_path)
    assert again.name == name != other.name


def test_a_lock_that_nobody_refers_to_is_free(tmp_path: Path) -> None:
    lock = DeviceLock.take("GPU-a", tmp_path)
    del lock
    DeviceLock.take("GPU-a", tmp_path)


def test_every_user_of_the_host_can_lock_the_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        DeviceLock.take("GPU-a", tmp_path)
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


@pytest.mark.parametrize("uuid", ["../../GPU", "a/b", "GPU\0", "x" * 300])
def test_no_uuid_leads_out_of_the_folder(tmp_path: Path, uuid: str) -> None:
    folder = tmp_path / "locks"
    DeviceLock.take(uuid, folder)
    assert len(list(folder.iterdir())) == 1
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    DeviceLock.take("GPU-a", tmp_path / "locks").release()
    (file,) = (tmp_path / "locks").iterdir()
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(DeviceLockUnusable, match=r"symbolic link.*FARM_DEVICE_LOCKS"):
        DeviceLock.take("GPU-a", tmp_path / "locks")
    assert victim.read_text() == "precious"


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    DeviceLock.take("GPU-a", tmp_path).release()
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DeviceLockUnusable, match="no plain file"):
        DeviceLock.take("GPU-a", tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceLockUnusable, match="FARM_DEVICE_LOCKS"):
        DeviceLock.take("GPU-a", tmp_path / "file" / "locks")


def test_the_usual_folder_is_one_that_every_user_shares() -> None:
    assert default_folder() in (Path("/var/lock"), Path("/tmp"))
    assert default_folder().stat().st_mode & stat.S_IWOTH


def test_a_read_only_folder_of_the_system_holds_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only root."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr("workers.device_lock._SYSTEM", tmp_path)
    assert default_folder() == tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    assert default_folder() == Path("/tmp")

"""A file that the farm writes for a user is there whole, or the one before it is."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import farm
from farm import atomic_write
from farm.atomic_write import replacing, write_bytes, write_text
from farm.errors import BadInput

OLD = "the report of yesterday"


class Stops(Exception):
    pass


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_half(file: Path) -> None:
    with replacing(file) as draft:
        draft.write_text("half of")
        raise Stops


def test_a_writer_that_fails_midway_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(OLD)
    with pytest.raises(Stops):
        write_half(file)
    assert file.read_text() == OLD
    assert left_in(tmp_path) == ["report.html"]
    with pytest.raises(Stops):
        write_half(tmp_path / "new.html")
    assert left_in(tmp_path) == ["report.html"]


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(OLD)
    program = f"""
import resource, signal
from pathlib import Path
from farm.atomic_write import write_text
from farm.errors import BadInput
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(Path({str(file)!r}), "x" * 5000)
except BadInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{file} cannot be written: File too large\n"
    assert file.read_text() == OLD
    assert left_in(tmp_path) == ["rows.csv"]


def test_a_draft_lies_beside_its_place_with_the_same_suffix(tmp_path: Path) -> None:
    with replacing(tmp_path / "rows.parquet") as draft:
        assert (draft.parent, draft.suffix) == (tmp_path, ".parquet")
        draft.write_text("new")
    assert left_in(tmp_path) == ["rows.parquet"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "new.csv", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o666 & ~mask


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(OLD)
    file.chmod(0o640)
    write_text(file, "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "report.html", tmp_path / "latest.html"
    link.symlink_to(Path("there") / "report.html")
    for text in ("first", "second"):  # it points to nothing at first
        write_text(link, text)
        assert link.is_symlink()
        assert file.read_text() == text
    assert left_in(tmp_path / "there") == ["report.html"]


def test_a_pipe_gets_the_content_when_it_is_complete(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = list[str]()
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    with replacing(pipe) as draft:
        draft.write_text("half of ")
        with draft.open("a") as file:
            file.write("the rows")
    reader.join(60)
    assert got == ["half of the rows"]
    assert left_in(tmp_path) == ["pipe"]


def test_standard_output_is_written_and_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    program = "from pathlib import Path; from farm.atomic_write import write_text; write_text(Path({!r}), 'rows\\n')"
    for name in ("/dev/stdout", str(out)):
        with out.open("w") as file:
            command = [sys.executable, "-c", program.format(name)]
            subprocess.run(command, stdout=file, check=True)
            before = os.fstat(file.fileno()).st_ino
        assert (out.read_text(), out.stat().st_ino) == ("rows\n", before)


def test_a_device_that_is_full_is_one_message() -> None:
    with pytest.raises(BadInput, match=r"^/dev/full cannot be written: No space left on device$"):
        write_bytes(Path("/dev/full"), b"rows")


@pytest.mark.parametrize(
    ("path", "why"), [("", "Is a directory"), ("nowhere/rows.csv", "No such file or directory")], ids=["folder", "nowhere"]
)  # fmt: skip
def test_what_cannot_be_written_is_named(tmp_path: Path, path: str, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        write_text(tmp_path / path, "rows")
    assert str(refused.value) == f"{tmp_path / path} cannot be written: {why}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(OLD)
    file.chmod(0o444)
    with pytest.raises(BadInput, match="Permission denied"):
        write_text(file, "new")
    assert file.read_text() == OLD


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EROFS], ids=errno.errorcode.get)
def test_a_file_in_a_folder_that_takes_no_other_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(OLD)

    def made_elsewhere(folder: Path, suffix: str) -> Path:
        if folder == tmp_path:
            raise OSError(refusal, os.strerror(refusal))
        return made_in(folder, suffix)

    made_in = atomic_write._made_in
    monkeypatch.setattr(atomic_write, "_made_in", made_elsewhere)
    with pytest.raises(Stops):
        write_half(file)
    assert file.read_text() == OLD
    write_text(file, "new")
    assert file.read_text() == "new"
    with pytest.raises(BadInput):
        write_text(tmp_path / "another.html", "new")


def test_a_file_that_is_mounted_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    file.write_text(OLD)

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", busy)
    write_text(file, "new")
    assert file.read_text() == "new"
    assert left_in(tmp_path) == ["report.html"]


DIRECT = re.compile(
    r"\.write_text\(|\.write_bytes\(|\.savefig\(|\.to_(parquet|csv)\(|\.open\(\"[wxa]|write_table\(|ParquetWriter\("
)


@pytest.mark.parametrize("folder", ["cli", "report", "analysis"])
def test_nothing_that_writes_for_users_writes_in_place(folder: str) -> None:
    """What is written there goes through a draft, or into memory."""
    places = [
        f"{file.name}:{number}"
        for file in (Path(farm.__file__).parent / folder).rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if DIRECT.search(line) and not re.search(r"\bdraft\b|savefig\(file,", line)
    ]
    assert places == []

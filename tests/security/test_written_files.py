"""A server names files, sends bombs, or a command is repeated: no file is written where it should not be, none is lost."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from farm import registry
from farm.api import remote
from farm.atomic_write import replacing, require_new, write_text
from farm.cli.write_parameters import FILE as PARAMETERS
from farm.errors import BadArchive, BadInput, FileThere
from support.commands import called
from support.homes import environment

MINE = "all:\n\techo mine\n"

Answers = Mapping[str, tuple[dict[str, str], bytes]]
"""The end of a path -> the headers and content of the answer."""


@contextmanager
def server(answers: Answers) -> Iterator[str]:
    """A server of somebody else's, on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            headers, content = next(answer for end, answer in answers.items() if path.endswith(end))
            self.send_response(200)
            for header, value in headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


Farm = Callable[..., str]


@contextmanager
def client(folder: Path, answers: Answers) -> Iterator[Farm]:
    """Runs commands of the farm in a folder through such a server; gives what they say on stderr."""
    with server(answers) as url:

        def run(*words: str, ends: int = 2) -> str:
            done = called(words, folder, environment(folder / ".farm", FARM_API_URL=url))
            assert done.returncode == ends, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            return done.stderr

        yield run


def report_named(name: str) -> Answers:
    return {
        "/report": ({"Content-Type": "text/html", "Content-Disposition": f'attachment; filename="{name}"'}, b"theirs")
    }


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Makefile", ".bashrc", "..", "x.html.sh", "-rf.html", "a b.html", "\x1b]0;.html"])
def test_a_server_does_not_choose_which_file_a_report_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "Makefile").write_text(MINE)
    with client(tmp_path, report_named(name)) as farm:
        assert "is not taken as the name of a file. Name the file with --output, in letters" in farm(
            "report", "quickstart"
        )
    assert (tmp_path / "Makefile").read_text() == MINE
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_a_report_with_a_sound_name_is_written_once(tmp_path: Path) -> None:
    with client(tmp_path, report_named("quickstart.html")) as farm:
        farm("report", "quick", ends=0)
        (tmp_path / "quickstart.html").write_text("mine")
        assert "is there already and is not overwritten" in farm("report", "quick")
        assert (tmp_path / "quickstart.html").read_text() == "mine"
        farm("report", "quick", "--force", ends=0)
    assert (tmp_path / "quickstart.html").read_text() == "theirs"


def model(name: str) -> bytes:
    keys = ("run_id", "rows", "configurations", "shapes", "sources", "table_hash", "median_error_pct", "mean_error_pct",
            "decision", "sound", "conditions")  # fmt: skip
    known = {"name": name, "version": "1", "device_type": "cpu", "aliases": [], "tested_on": "-", "metrics": {}}
    return json.dumps(known | dict.fromkeys(keys) | {"created_at": "2026-01-01T00:00:00Z", "champions": []}).encode()


def model_named(name: str, archive: bytes) -> Answers:
    return {"/files": ({"Content-Type": "application/zip"}, archive), "/models/cpu": ({}, model(name))}


def archive(tmp_path: Path, entries: Mapping[str, bytes]) -> bytes:
    file = tmp_path / "sent.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    content = file.read_bytes()
    file.unlink()
    return content


@pytest.mark.parametrize("name", ["../planted", "/tmp/planted-by-a-server", ".ssh", "..", "a/../../b", ""])
def test_a_server_does_not_choose_the_folder_of_a_model(tmp_path: Path, name: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    answers = model_named(name, archive(tmp_path, {"MLmodel": b"run: me"}))
    # The second time by the name, which is where the files are asked for.
    with client(work, {**answers, "": answers["/files"]}) as farm:
        assert "is not taken as the name of a file. Name the file with --to, in letters" in farm(
            "models", "pull", "cpu"
        )
    assert list(work.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_a_model_with_a_sound_name_is_pulled(tmp_path: Path) -> None:
    answers = model_named("gemm-forest-cpu", archive(tmp_path, {"MLmodel": b"flavors: {}", "artifacts/a.txt": b"a"}))
    with client(tmp_path, answers) as farm:
        farm("models", "pull", "cpu", ends=0)
        assert (tmp_path / "gemm-forest-cpu" / "artifacts" / "a.txt").read_bytes() == b"a"
        assert "is not an empty folder" in farm("models", "pull", "cpu")


# --- bombs ----------------------------------------------------------------------------------------------


def test_a_small_archive_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = archive(tmp_path, {"MLmodel": b"", "artifacts/zeros": bytes(200_000_000)})
    assert len(bomb) < 250_000
    with client(tmp_path, model_named("gemm-forest-cpu", bomb)) as farm:
        said = farm("models", "pull", "cpu")
    assert "is not unpacked" in said
    assert "unpack to 200,000,000, more than 50 times as many" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "/outside", "a//b", "a\\b", "C:x", "a/../b"])
def test_names_in_an_archive_are_no_paths_to_elsewhere(tmp_path: Path, name: str) -> None:
    file = tmp_path / "sent.zip"
    file.write_bytes(archive(tmp_path, {name: b"x"}))
    with pytest.raises(BadArchive, match="which is not a file of a model"):
        registry.unpack(file, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["sent.zip"]


def test_too_many_files_and_what_is_no_archive_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "sent.zip"
    file.write_bytes(archive(tmp_path, {f"{n}": b"" for n in range(2_001)}))
    with pytest.raises(BadArchive, match="2,001 files"):
        registry.unpack(file, tmp_path / "model")
    file.write_bytes(b"no archive")
    with pytest.raises(BadArchive, match="not a readable ZIP file"):
        registry.unpack(file, tmp_path / "model")


def test_answers_that_unpack_without_end_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_DOCUMENT_BYTES", 1 << 20)
    monkeypatch.setattr(remote, "MAX_DOWNLOAD_BYTES", 1 << 20)
    packed = gzip.compress(bytes(1 << 26))
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/html"}
    with client(tmp_path, {"": (headers, packed)}) as farm:
        for words in (("models",), ("report", "quickstart", "-o", "page.html")):
            assert "its answer has more than 1,048,576 bytes" in farm(*words, ends=3)
    assert list(tmp_path.iterdir()) == []


# --- files that are there -------------------------------------------------------------------------------


def test_a_file_that_is_there_stays_without_force(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(MINE)
    with pytest.raises(FileThere, match="add --force"):
        write_text(file, "rows", force=False)
    assert file.read_text() == MINE
    write_text(file, "rows", force=True)
    assert file.read_text() == "rows"


def test_a_file_that_is_made_meanwhile_stays_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"

    def written_by_both() -> None:
        with replacing(file, force=False) as draft:
            draft.write_text("ours")
            file.write_text(MINE)

    with pytest.raises(FileThere):
        written_by_both()
    assert file.read_text() == MINE
    assert os.listdir(tmp_path) == ["rows.csv"]  # noqa: PTH208 - hidden files too


def test_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").symlink_to(tmp_path / "authorized_keys")
    with pytest.raises(FileThere):
        write_text(tmp_path / "rows.csv", "rows", force=False)
    assert not (tmp_path / "authorized_keys").exists()


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (Path("/dev/null"), tmp_path / "pipe", tmp_path):
        require_new(place, force=False)
    with pytest.raises(BadInput, match="Is a directory"):
        write_text(tmp_path, "rows", force=False)


def test_each_command_with_an_output_has_force() -> None:
    """Folders of kernels are left out: their files are named by what is in them."""
    commands = json.loads(PARAMETERS.read_text())

    def options(node: object) -> Iterator[str]:
        yield from re.findall(r'"(--[a-z-]+)"', json.dumps(node))

    without = [
        name
        for name, parameters in commands.items()
        if {"--output", "--plot", "--png"} & {*options(parameters)} and "--force" not in options(parameters)
    ]
    assert [name for name in without if not name.startswith("kernels")] == []

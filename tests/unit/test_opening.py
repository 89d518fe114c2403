"""`farm open` without a database: files, served pages, and terminals without a browser."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.services.home import Home, write_json
from farm.services.served import announced, served
from farm.settings import Settings
from support.commands import NOWHERE, Command, farm_here, refused


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return farm_here(tmp_path, NOWHERE)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open."""
    found = list[str]()

    def opens(address: str) -> bool:
        found.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    return found


@pytest.fixture
def port() -> Iterator[int]:
    """A port that accepts connections, as a server's does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def home_of(folder: Path) -> Settings:
    return Settings(home=folder / ".farm")


def url_of(home: Settings) -> str | None:
    found = served(home)
    return None if found is None else found.url


WITH_DISPLAY = {"DISPLAY": ":0", "TERM": "xterm", "BROWSER": ""}


def test_a_report_file_is_opened_by_its_path(command: Command, opened: list[str], tmp_path: Path) -> None:
    (tmp_path / "a b.html").write_text("<html>")
    done = command("open", "a b.html", **WITH_DISPLAY)
    address = (tmp_path / "a b.html").as_uri()
    assert (done.returncode, done.stdout, opened) == (0, f"{address}\n", [address])
    printed = command("open", "a b.html", "--print", **WITH_DISPLAY)
    assert (printed.stdout, len(opened)) == (f"{tmp_path / 'a b.html'}\n", 1)
    refused(command("open", "no.html", **WITH_DISPLAY), 2, "no report file no.html", "farm report")


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": "", "TERM": "xterm", "SSH_CONNECTION": "x"}, "over SSH"),
        ({"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": "", "TERM": "xterm", "SSH_CONNECTION": ""}, "no display"),
        ({**WITH_DISPLAY, "TERM": "dumb"}, "TERM=dumb"),
    ],
)
def test_without_a_display_the_address_is_printed_and_the_reason_given(
    command: Command, opened: list[str], tmp_path: Path, environment: dict[str, str], says: str
) -> None:
    (tmp_path / "r.html").write_text("<html>")
    done = command("open", "r.html", **environment)
    assert (done.returncode, done.stdout, opened) == (0, f"{(tmp_path / 'r.html').as_uri()}\n", [])
    assert says in done.stderr


def test_a_browser_that_does_not_start_is_told(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.html").write_text("<html>")
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    done = command("open", "r.html", **WITH_DISPLAY)
    assert done.returncode == 0
    assert "no browser was found" in done.stderr


def test_the_page_that_this_home_serves_is_opened(
    command: Command, opened: list[str], tmp_path: Path, port: int
) -> None:
    refused(command("open", **WITH_DISPLAY), 3, "farm serve")
    with announced(home_of(tmp_path), f"http://0.0.0.0:{port}"):
        done = command("open", **WITH_DISPLAY)
    assert (done.returncode, opened) == (0, [f"http://127.0.0.1:{port}/"])
    refused(command("open", **WITH_DISPLAY), 3, "farm serve")


def test_the_address_of_the_api_is_that_of_its_page(command: Command, opened: list[str]) -> None:
    command("open", FARM_API_URL="https://farm.example:8000", **WITH_DISPLAY)
    assert opened == ["https://farm.example:8000/"]


def test_a_server_that_ended_or_does_not_answer_is_passed_over(tmp_path: Path, port: int) -> None:
    home = home_of(tmp_path)
    with announced(home, f"http://127.0.0.1:{port}"):
        assert url_of(home) == f"http://127.0.0.1:{port}"
        # A newer note of a process that is gone, and one of a port that nobody listens on.
        run = Home.of(home).run
        write_json(run / "serve-1.json", {"url": f"http://127.0.0.1:{port}/x", "pid": os.getpid(), "stamp": "other"})
        write_json(run / "serve-2.json", {"url": "http://127.0.0.1:1", "pid": os.getpid(), "stamp": None})
        assert url_of(home) == f"http://127.0.0.1:{port}"


def test_a_home_that_cannot_be_written_is_served_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".farm").mkdir()
    (tmp_path / ".farm" / "run").write_text("a file where the folder of notes would be")
    with announced(home_of(tmp_path), "http://127.0.0.1:1"):
        assert served(home_of(tmp_path)) is None

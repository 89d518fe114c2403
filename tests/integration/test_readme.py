"""The README and the tutorial, followed from top to bottom by one user in one folder, on a machine without a GPU and with nothing prepared.

Blocks that need Docker, a GPU or other hosts are marked by a comment before them, `<!-- needs: gpu -->`, which readers do not see.
All others are run in order, line by line, as they stand. Three things are done as a user would: `make` finds its environment made
already, `farm serve` is ended by Ctrl-C once it answers, and the port is a free one. `make test` is left out, as it would
run far longer than all the rest.
"""

from __future__ import annotations

import io
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import farm
from support.commands import called
from support.folders import open_folder
from support.homes import environment, holder, let_go, need_embedded_services, processes_under, urls_of

ROOT = Path(farm.__file__).parent.parent
PAGES = "\n".join((ROOT / name).read_text() for name in ("README.md", "docs/tutorial.md"))
"""The tutorial goes on where the README ends."""

NEEDS = {
    "gpu": r"cuda|cublaslt|compare-cards\.yaml|--fill",
    "docker": r"docker",
    "hosts": r"farm-host|host:gpu07|--host 0\.0\.0\.0",
}
"""What a block may need that is not here, and what then stands in it."""

PROCESS = ("run", "up", "down", "replay", "train", "watch")
"""Commands that start programs, or end them, have a process of their own; others are run in this one, to save its imports."""

_BLOCK = re.compile(r"(?:^<!-- needs: (\w+) -->\n)?^```(sh|console|python)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str | None, str, str]]:
    """What each block needs, its language, and its lines."""
    return [(needs, language, text) for needs, language, text in _BLOCK.findall(PAGES)]


def commands_in(language: str, text: str) -> list[str]:
    if language == "python":
        return [text]
    lines = [line.removeprefix("$ ") for line in text.splitlines() if language == "sh" or line.startswith("$ ")]
    return [re.sub(r"\s{2,}#.*", "", line) for line in lines if line.strip()]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A user's checkout: the files of this one, and nothing that it has made."""
    need_embedded_services()
    with open_folder() as made:
        for name in ("Makefile", "pyproject.toml", "requirements", "examples", "docs"):
            (made / name).symlink_to(ROOT / name)
        programs = made / ".venv" / "bin"
        programs.mkdir(parents=True)
        for program in Path(sys.executable).parent.iterdir():
            (programs / program.name).symlink_to(program)
        (programs / "activate").unlink(missing_ok=True)
        (programs / "activate").write_text('export PATH="$PWD/.venv/bin:$PATH"\n')
        for stamp in (".ready", ".ready-build"):
            (made / ".venv" / stamp).touch()
        try:
            yield made
        finally:
            down = [sys.executable, "-m", "farm", "down"]
            subprocess.run(down, cwd=made, env=environment(made / ".farm"), check=False)
            assert processes_under(made) == []


def run_in(folder: Path, command: str, variables: dict[str, str]) -> None:
    words = shlex.split(command) if "\n" not in command else []
    plain = words[:1] == ["farm"] and not re.search(r"[*|&<>]", command)
    if words[:2] == ["farm", "serve"]:
        serve(folder, words, variables)
        return
    if plain and words[1] not in PROCESS:
        done = called(words[1:], folder, variables)
    else:
        shell = [sys.executable, "-c", command] if "\n" in command else ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(
            shell, cwd=folder, env=variables, capture_output=True, text=True, timeout=900, check=False
        )
    assert done.returncode == 0, (
        f"{command}\nended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    assert "Traceback" not in done.stderr, command


def serve(folder: Path, words: list[str], variables: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", *words, "--port", str(port)],
        cwd=folder,
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/login") as page:
                    assert isinstance(page, io.IOBase) or page.status == 200
                    break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < end, "the server did not answer"
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


@pytest.mark.long
@pytest.mark.timeout(1800)  # of a machine that does much else
def test_a_user_who_follows_the_readme_and_the_tutorial_from_top_to_bottom_gets_through(folder: Path) -> None:
    kept = {
        k: v for k, v in environment(folder).items() if k not in ("FARM_HOME", "MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV")
    }
    # Nothing trains or measures longer than it must, and Make takes the environment for made.
    variables = {**kept, "MAKEFLAGS": "-o .venv/.ready -o .venv/.ready-build", "FARM_DEVICES": "auto"}
    with ExitStack() as held:
        for needs, language, text in blocks():
            if needs is not None and needs != "":
                continue
            for command in commands_in(language, text):
                if command == "make test":
                    continue
                if command.startswith(". "):
                    variables["PATH"] = f"{folder / '.venv' / 'bin'}:{variables['PATH']}"
                    process = held.enter_context(holder(folder / ".farm"))
                    urls_of(process)
                    held.callback(let_go, process)
                    continue
                run_in(folder, command, variables)


def test_only_blocks_that_need_what_is_not_here_are_left_out() -> None:
    marked = [(needs, text) for needs, _, text in blocks() if needs]
    assert {needs for needs, _ in marked} == set(NEEDS)
    for needs, text in marked:
        assert re.search(NEEDS[needs], text), text
    assert len(re.findall("<!-- needs:", PAGES)) == len(marked)
    ran = [line for needs, language, text in blocks() if not needs for line in commands_in(language, text)]
    assert len(ran) > 25
    assert {"replay", "compare", "report", "health", "train", "serve", "import"} <= {
        line.split()[1] for line in ran if line.startswith("farm ")
    }

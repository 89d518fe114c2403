"""`farm completion SHELL`: the scripts complete in the shells that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.completion_names import remember
from support.imports import farm_alone

IN_SHELL = {
    "bash": """
source {script}
complete -p farm >/dev/null || exit 1
COMP_WORDS=(farm {word}); COMP_CWORD={at}
_farm_completion farm
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # zsh completes only in its line editor, so its own functions are replaced.
    "zsh": """
compdef() {{ :; }}
_arguments() {{ print -l -- "$@"; }}
_files() {{ :; }}
source {script}
words=(farm {word}); CURRENT=$(({at} + 1))
_farm_completion
""",
    "fish": """
source {script}
complete -C "farm {word}"
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A `farm` on the PATH, and a home that knows a campaign."""
    program = tmp_path / "bin" / "farm"
    program.parent.mkdir()
    run = "import sys; sys.argv[0] = 'farm'; from farm.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{run}" "$@"\n')
    program.chmod(0o755)
    home = tmp_path / ".farm"
    home.mkdir()
    remember(home, None, {"campaigns": ["tile-sweep", "quickstart"]})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
    return {**kept, "PATH": f"{program.parent}:{os.environ['PATH']}", "FARM_HOME": str(home), "HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", IN_SHELL)
@pytest.mark.parametrize(("word", "offered"), [("predi", "predict"), ("watch til", "tile-sweep")])
def test_a_shell_completes_commands_and_names(
    shell: str, word: str, offered: str, environment: dict[str, str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(farm_alone("completion", shell).stdout)
    text = IN_SHELL[shell].format(script=script, word=word, at=len(word.split()))
    ran = subprocess.run(
        [shell, *(["--norc"] if shell == "bash" else []), "-c", text],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert offered in ran.stdout
    assert "quickstart" not in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("shell", IN_SHELL)
def test_a_script_is_printed_whole_for_each_shell(shell: str) -> None:
    ran = farm_alone("completion", shell)
    assert (ran.code, ran.stderr) == (0, "")
    assert "_FARM_COMPLETE" in ran.stdout
    assert f"complete_{shell}" in ran.stdout


def test_another_shell_is_a_mistake_that_names_those_that_are_supported() -> None:
    ran = farm_alone("completion", "tcsh")
    assert ran.code == 2
    assert "bash" in ran.stderr
    assert "Traceback" not in ran.stderr

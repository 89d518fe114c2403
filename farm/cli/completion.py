"""`farm completion`: the scripts that complete `farm` in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

# `farm --show-completion` prints the same script, for the shell that it runs in.
from typer._completion_shared import get_completion_script


class Shell(StrEnum):
    """Shells that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell: bash, zsh or fish.", show_default=False)],
) -> None:
    """Print the script that completes farm in a shell: commands, options, and names of campaigns, devices and models.

    Save it in the folder where the shell looks for completions. docs/operating.md names the folders.

    Examples:
        farm completion bash
        farm completion zsh
    """
    typer.echo(get_completion_script(prog_name="farm", complete_var="_FARM_COMPLETE", shell=shell.value))

"""How the farm starts a module of its own as a program."""

from __future__ import annotations

import sys

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""For the environment of programs that start others with Python: none of them imports from its current folder."""


def program(module: str, *words: str) -> list[str]:
    """The command that runs a module.

    Python would import from the current folder first (`-P`: it does not), which may be `/tmp`, where every account can put a
    `numpy.py`.
    """
    return [sys.executable, "-P", "-m", module, *words]

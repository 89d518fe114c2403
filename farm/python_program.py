"""Commands that run modules of the farm as programs."""

from __future__ import annotations

import sys

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment for programs that start Python programs: none imports from its current folder."""


def program(module: str, *words: str) -> list[str]:
    """The command that runs a module.

    Python would import from the current folder first (`-P`: it does not), which may be `/tmp`, where every account can put a
    `numpy.py`.
    """
    return [sys.executable, "-P", "-m", module, *words]

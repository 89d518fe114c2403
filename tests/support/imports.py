"""Which modules a command line imports, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

RUN = """
import json, sys
from farm.cli import main
sys.argv = ["farm", *json.loads(sys.argv[1])]
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
sys.stderr.write("\\n" + json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules}), sorted(sys.modules)]))
"""


class Ran:
    """A command line that ended: its exit code, its standard output, and the packages and modules it had imported."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.stdout = done.stdout
        *lines, last = done.stderr.splitlines()
        self.code, packages, modules = json.loads(last)
        self.stderr = "\n".join(lines).strip()
        self.packages, self.modules = frozenset(packages), frozenset(modules)


def farm_alone(*arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
    """Runs `farm` with these arguments."""
    command = [sys.executable, "-c", RUN, json.dumps(arguments)]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=True)
    return Ran(done)

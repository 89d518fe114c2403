"""The guardian finds what its program left behind, whatever other processes do meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from farm.services import guardian


def test_children_are_found_while_other_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def ended(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        # What the kernel answers for a process that ends while its files are looked at.
        if str(path).startswith("/proc/") and str(path).endswith("/stat"):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", ended)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        found = guardian.children()
    assert child.pid in found

"""Folders of tests that programs under other accounts work in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter, with a path short enough for sockets. It is removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix="farm-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)

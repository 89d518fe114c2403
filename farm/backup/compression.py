"""Files of rows, compressed with Zstandard."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from farm.backup.files import BLOCK, open_inside

_CODEC = "zstd"


class _Hashed:
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self._digest.update(view)
        self.bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def write(blocks: Iterable[bytes], target: Path) -> tuple[int, str] | None:
    """Writes a new file, on disk when this returns. Returns its size and SHA-256; None for no blocks, and no file then."""
    remaining = iter(blocks)
    if (first := next(remaining, None)) is None:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        hashed = _Hashed(file)
        stream = pa.CompressedOutputStream(hashed, _CODEC)
        try:
            stream.write(first)
            for block in remaining:
                stream.write(block)
        except BaseException:
            with suppress(OSError):  # a full disk, again
                stream.close()
            raise
        stream.close()
        file.flush()
        os.fsync(file.fileno())
    return hashed.bytes, hashed.sha256


def read(folder: Path, path: str) -> Iterator[bytes]:
    """The content of a compressed file in a folder. Raises `OSError` for a file that cannot be read."""
    with open_inside(folder, path) as file, pa.CompressedInputStream(pa.PythonFile(file, mode="r"), _CODEC) as stream:
        while block := stream.read(BLOCK):
            yield block

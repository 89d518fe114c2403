"""Reads arrays of `.npz` files strictly: no pickles, and nothing but the arrays that are expected, of their types and sizes.

`numpy.load` allocates the size that a header states. Here a header must agree with the actual bytes, which are counted before
they are unpacked.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_BYTES = 1 << 29
"""Of the arrays of one file, unpacked: forests of a million rows take a tenth of it."""

_MAX_HEADER = 1000


class BadFiles(ValueError):
    """The files of a model contradict themselves, or hold what no model has."""


@dataclass(frozen=True)
class Expected:
    """What an array must be: its type as numpy writes it (`U` for texts of any length), and its shape, None where any."""

    dtype: str
    shape: tuple[int | None, ...] = ()


def read_arrays(content: bytes, name: str, expected: Mapping[str, Expected]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a `.npz` file, which cannot be written to. `name` is what errors call it. Raises `BadFiles`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            found = sorted(member.filename for member in members)
            wanted = sorted(f"{each}.npy" for each in expected)
            if found != wanted:
                raise BadFiles(f"{name} holds {_listed(found)}, and not {_listed(wanted)}")
            size = sum(member.file_size for member in members)
            if size > MAX_BYTES:
                raise BadFiles(f"{name} unpacks to {size:,} bytes; a model has at most {MAX_BYTES:,}")
            return {each: _array(archive.read(f"{each}.npy"), f"{name}: {each}", expected[each]) for each in expected}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise BadFiles(f"{name} is no file of arrays: {error}") from None


def require(holds: Any, what: str) -> None:
    """Raises `BadFiles` with `what` where it does not hold (everywhere, for an array)."""
    if not np.all(holds):
        raise BadFiles(what)


def _array(content: bytes, name: str, expected: Expected) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise BadFiles(f"{name} has a header of version {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
        raise BadFiles(f"{name} has no header of an array: {error}") from None
    fits = dtype.kind == "U" and dtype.byteorder in "=<" if expected.dtype == "U" else dtype == np.dtype(expected.dtype)
    if dtype.hasobject or not fits:
        raise BadFiles(f"{name} holds {dtype}, and not {expected.dtype}")
    if len(shape) != len(expected.shape) or any(
        want is not None and want != has for want, has in zip(expected.shape, shape, strict=True)
    ):
        raise BadFiles(f"{name} has the shape {shape}, and not {expected.shape}")
    values = content[stream.tell() :]
    if math.prod(shape) * dtype.itemsize != len(values) or min(shape, default=0) < 0:
        raise BadFiles(f"{name} claims the shape {shape}, which its {len(values):,} bytes do not have")
    if dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    return np.frombuffer(values, dtype).reshape(shape, order="F" if by_columns else "C")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:8])
    return f"{shown} …" if len(names) > 8 else shown or "nothing"

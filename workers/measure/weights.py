"""Matrices that are filled with a tensor of a file: read once, checked, and cut to the problem."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidOnDevice
from farm.gemm import ElementType
from farm.operands import MatrixRules
from farm.weights import Tensor, read_tensor
from workers.measure.elements import decode, encode

_KEPT = 4
"""Tensors that a process keeps mapped."""

_BLOCK = 2**22
"""Elements that are decoded at once: 32 MiB."""


def elements_of(rules: MatrixRules, kind: ElementType, count: int, rows: int, columns: int) -> NDArray[Any]:
    """[rows, columns], contiguous: the upper left part of the tensor.

    Args:
        kind: The matrix's type, which must be the tensor's; a tensor of f32 may fill a matrix of tf32 and is rounded.
        count: Matrices of the problem's batch, or of its groups. It must be 1, because a file has one matrix.
        rows: Of the matrix as it lies in memory: B of the layout `t` is [n, k].
        columns: As `rows`.

    Raises:
        InvalidOnDevice: The file is not here or has another content, the tensor does not fit, or the problem has several such matrices.
    """
    tensor, name = _checked(rules), rules.weights_name
    if count != 1:
        raise InvalidOnDevice(
            why=f"{name} is one matrix, and the problem has {count} of them in a batch or in groups; remove these, or fill the "
            "matrices with a distribution"
        )
    if kind.per_item > 1:
        raise InvalidOnDevice(
            why=f"no file has elements of {kind}; fill that matrix with a distribution, not with {name}"
        )
    wanted = ElementType.F32 if kind is ElementType.TF32 else kind
    if tensor.kind is not wanted:
        raise InvalidOnDevice(why=f"{name} is {tensor.kind}, and the problem has {kind}; use a tensor of that type")
    own = tensor.elements.shape
    if own[0] < rows or own[1] < columns:
        raise InvalidOnDevice(
            why=f"{name} is {own[0]}x{own[1]}, and the problem needs {rows}x{columns} as its layout has it; a larger tensor "
            "is cut, a smaller one does not fit"
        )
    part = np.ascontiguousarray(tensor.elements[:rows, :columns])
    return encode(kind, part) if kind is ElementType.TF32 else part


def _checked(rules: MatrixRules) -> Tensor:
    assert rules.file is not None
    path = Path(rules.file)
    try:
        state = path.stat()
    except OSError as error:
        raise InvalidOnDevice(
            why=f"{path} cannot be read on this host ({error.strerror}); copy the file to that path on each worker"
        ) from None
    try:
        return _read(path, rules.tensor, rules.sha256 or "", (state.st_ino, state.st_size, state.st_mtime_ns))
    except ValueError as error:
        raise InvalidOnDevice(why=str(error)) from None


@lru_cache(maxsize=_KEPT)
def _read(path: Path, name: str | None, sha256: str, _state: tuple[int, ...]) -> Tensor:
    """Reads and checks a tensor; `_state` changes with the file."""
    tensor = read_tensor(path, name)
    if tensor.sha256 != sha256:
        raise ValueError(
            f"{path} on this host is another file than the campaign's: its tensor does not have the SHA-256 {sha256[:8]}…; "
            "copy the same file to each worker"
        )
    rows = max(1, _BLOCK // tensor.elements.shape[1])
    blocks = (tensor.elements[first : first + rows] for first in range(0, tensor.elements.shape[0], rows))
    if not all(np.isfinite(decode(tensor.kind, block)).all() for block in blocks):
        raise ValueError(f"{path} has elements that are not finite; use a tensor of numbers")
    return tensor

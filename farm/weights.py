"""Tensors of `.npy` and `.safetensors` files, which matrices may be filled with.

A tensor's bytes are mapped, not loaded. The library `safetensors` gives no NumPy array of bf16 and 8-bit floats, so the
header is read here: 8 bytes with its length, then JSON with the type, shape and place of each tensor (see
https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.gemm import ElementType

_E = ElementType

_TYPES: dict[str, tuple[ElementType, str]] = {
    "F64": (_E.F64, "<f8"),
    "F32": (_E.F32, "<f4"),
    "F16": (_E.F16, "<f2"),
    "BF16": (_E.BF16, "<u2"),
    "F8_E4M3": (_E.F8E4M3, "|u1"),
    "F8_E5M2": (_E.F8E5M2, "|u1"),
    "I8": (_E.I8, "|i1"),
    "I32": (_E.I32, "<i4"),
}
"""Types of safetensors: the farm's, and the array type that holds their elements."""

_NPY_TYPES = {np.dtype(stored): kind for kind, stored in _TYPES.values() if not stored.endswith(("u1", "u2"))}

_MAX_HEADER_BYTES = 100 * 2**20
"""The limit of the format."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix as a file has it."""

    kind: ElementType
    # [rows, columns]; elements lie as in `workers.measure.elements`.
    elements: NDArray[Any]

    @property
    def sha256(self) -> str:
        """In hex, of the type, the shape and the elements in row-major order."""
        rows, columns = self.elements.shape
        found = hashlib.sha256(f"{self.kind} {rows}x{columns}\n".encode())
        found.update(np.ascontiguousarray(self.elements).view(np.uint8).data)
        return found.hexdigest()


def read_tensor(path: Path, name: str | None) -> Tensor:
    """A tensor of a file.

    Args:
        path: A `.npy` or `.safetensors` file.
        name: The tensor's name; None for `.npy`.

    Raises:
        ValueError: Why it cannot be read, and what to do.
    """
    try:
        if not path.is_file():
            raise ValueError(f"there is no file {path}; write the path of a .npy or .safetensors file")
        found = _of_npy(path) if name is None else _of_safetensors(path, name)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if found.elements.ndim != 2 or not found.elements.size:
        shape = "x".join(map(str, found.elements.shape))
        raise ValueError(f"{_full_name(path, name)} has the shape [{shape}]; name a tensor of two dimensions")
    return found


def describe(path: Path, name: str | None) -> str:
    """JSON with the keys of `MatrixRules` that name a tensor on any host. Raises `ValueError`, as `read_tensor`."""
    path = path.absolute()
    named = {} if name is None else {"tensor": name}
    return json.dumps({"file": str(path), **named, "sha256": read_tensor(path, name).sha256})


def _full_name(path: Path, name: str | None) -> str:
    return str(path) if name is None else f"{name} of {path}"


def _of_npy(path: Path) -> Tensor:
    try:
        elements = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no .npy file of numbers: {error}") from None
    kind = _NPY_TYPES.get(elements.dtype) if isinstance(elements, np.ndarray) else None
    if kind is None:
        known = ", ".join(str(one) for one in _NPY_TYPES.values())
        raise ValueError(
            f"{path} has numbers of the type {getattr(elements, 'dtype', '?')}; a .npy file may have {known}, and a "
            ".safetensors file bf16, f8e4m3 and f8e5m2 too"
        )
    return Tensor(kind, elements)


def _of_safetensors(path: Path, name: str) -> Tensor:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"{path} is no .safetensors file: its header does not fit into it")
        try:
            tensors = json.loads(file.read(length))
            tensors.pop("__metadata__", None)
            entries = {key: (one["dtype"], tuple(one["shape"]), *one["data_offsets"]) for key, one in tensors.items()}
        except (ValueError, AttributeError, KeyError, TypeError):
            raise ValueError(f"{path} is no .safetensors file: its header is not JSON with tensors") from None
    if name not in entries:
        known = ", ".join(sorted(entries)[:5]) + (" …" if len(entries) > 5 else "")
        raise ValueError(f"{path} has no tensor {name}; it has {known}")
    dtype, shape, start, end = entries[name]
    if dtype not in _TYPES:
        raise ValueError(f"{_full_name(path, name)} is {dtype}; use a tensor of {', '.join(_TYPES)}")
    kind, stored = _TYPES[dtype]
    count = int(np.prod(shape, dtype=object))
    if not 0 <= start <= end <= size - 8 - length or end - start != count * kind.bytes:
        raise ValueError(f"{path} is damaged: {name} does not lie inside it; copy the file again")
    if not count:
        return Tensor(kind, np.empty(shape, stored))
    return Tensor(kind, np.memmap(path, stored, "r", offset=8 + length + start, shape=shape))

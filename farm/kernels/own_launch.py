"""The launch of an own kernel: its bounds, and the limits of CUDA and Triton. Everything here is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.gemm import MAX_EXTENT

_MAX_GRID, _MAX_BLOCK = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64)
MAX_THREADS = 1024
"""CUDA C++ Programming Guide, technical specifications: the same for every compute capability."""

WARP = 32
_MAX_WARPS, _MAX_STAGES = 32, 16


@dataclass(frozen=True, slots=True)
class Launch:
    """The bounds of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int

    @property
    def blocks(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z


class BadLaunch(ValueError):
    """Why a launch has no valid bounds."""


def launch_of(grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> Launch:
    """Raises `BadLaunch` where CUDA takes no such bounds."""
    for key, bounds, limits in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
        for axis, bound, limit in zip("xyz", bounds, limits, strict=False):
            if not 1 <= bound <= limit:
                raise BadLaunch(f"its {key} has {_shown(bound)} along {axis}, and CUDA takes 1 to {limit:,}")
    if not 0 <= shared_bytes <= MAX_EXTENT:
        raise BadLaunch(f"its shared_bytes are {_shown(shared_bytes)}")
    return Launch(_three(grid), _three(block), shared_bytes)


def check_triton_options(warps: int, stages: int) -> None:
    """Raises `BadLaunch` where Triton takes no such options."""
    if not (1 <= warps <= _MAX_WARPS and warps & (warps - 1) == 0):
        raise BadLaunch(f"its warps are {_shown(warps)}, and Triton takes 1, 2, 4, 8, 16 or {_MAX_WARPS}")
    if not 1 <= stages <= _MAX_STAGES:
        raise BadLaunch(f"its stages are {_shown(stages)}; use 1 to {_MAX_STAGES}")


def whole(what: str, text: str, value: float) -> int:
    """The value of an expression as a whole number. Raises `BadLaunch`."""
    if not (isinstance(value, int) or value.is_integer()):
        raise BadLaunch(f"its {what} {text!r} is {value:g}, which is not a whole number")
    return int(value)


def _shown(bound: int) -> str:
    return f"{bound:,}" if abs(bound) < 10**18 else f"a number of {bound.bit_length()} bits"


def _three(bounds: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*bounds, 1, 1)[:3]
    return x, y, z

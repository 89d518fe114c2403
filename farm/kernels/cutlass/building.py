"""Which points of the space CUTLASS can be compiled for, and compute what they should.

The templates check most of their requirements. They do not check that the threads of a block load and store every element of its
tile exactly once. Kernels that do not would compile and compute a wrong result.
"""

from __future__ import annotations

from farm.gemm import ElementType, Layout
from farm.kernels.cutlass.point import AMPERE, WARP, Operand, Point
from farm.kernels.family import Reason
from farm.kernels.rules import EIGHT_BIT_FLOATS, TYPES_OF_CUDA, computes, fuses_floats, has_type

_E = ElementType
_FIRST_CAPABILITY = {_E.F32: (7, 5), _E.F16: (7, 5), _E.I8: (7, 5), _E.TF32: AMPERE, _E.BF16: AMPERE, _E.F64: AMPERE}

_LINE_BYTES = 128
"""A line of shared memory: all of its banks."""
_MAX_THREADS = 1024
"""Threads of a block: CUDA C++ Programming Guide, technical specifications."""


def types_exist(p: Point) -> Reason:
    t = p.problem.types
    if t.ab in EIGHT_BIT_FLOATS:
        return f"does not compute {t.ab}: CUTLASS 2.x multiplies 8-bit floats on compute capability 8.9 alone"
    if t.ab not in TYPES_OF_CUDA:
        return f"does not compute {t.ab}: A and B must have elements of the same type"
    reason = computes(t, TYPES_OF_CUDA[t.ab]) or has_type(t.ab, _FIRST_CAPABILITY[t.ab], p.capability)
    if reason is not None:
        return reason
    if t.ab is _E.I8 and p.problem.layout is not Layout.NT:
        return f"multiplies i8 in layout nt only, where k is contiguous in A and B, not {p.problem.layout}"
    return None


def operations_exist(p: Point) -> Reason:
    fused = p.problem.fused
    if (why := fuses_floats(p.problem)) is not None:
        return why
    if fused.bias and p.problem.beta:
        return f"adds a bias in the place of C: with fused={fused}, beta must be 0, not {p.problem.beta:g}"
    return None


def stages_exist(p: Point) -> Reason:
    has = p.capability
    if p.stages > 2 and has < AMPERE:
        return (
            f"copies asynchronously where stages={p.stages}, which needs compute capability 8.0, "
            f"the device has {has[0]}.{has[1]}; stages=2 does without"
        )
    if p.stages == 2 and p.ab is _E.F64:
        return "has kernels for f64 with 3 stages or more only"
    return None


def warps_fit(p: Point) -> Reason:
    for name, tile, warp in (("m", p.tile_m, p.warp_m), ("n", p.tile_n, p.warp_n)):
        if tile % warp:
            return f"needs a tile of whole warp tiles: tile_{name}={tile} is no multiple of warp_{name}={warp}"
    most = p.device.max_threads_per_block or _MAX_THREADS
    if p.threads > most:
        return f"needs {p.threads} threads in a block ({p.warps_m} x {p.warps_n} warps), the device allows {most}"
    return None


def instructions_fit(p: Point) -> Reason:
    m, n, step = p.instruction
    what = f"{p.ab} multiplied by {m}x{n}x{step} instructions" if p.on_tensor_cores else f"{m} x {n} lanes"
    for name, warp, unit in (("warp_m", p.warp_m, m), ("warp_n", p.warp_n, n)):
        if warp % unit:
            return f"needs {name} to be a multiple of {unit} for {what}, not {warp}"
    if p.tile_k % (2 * step):
        return f"needs tile_k to be a multiple of {2 * step}, an even number of steps, for {what}, not {p.tile_k}"
    return None


def simt_fits(p: Point) -> Reason:
    """Further requirements of SIMT kernels (DefaultMmaCore, DefaultThreadMapSimt)."""
    if p.on_tensor_cores:
        return None
    lanes_m, lanes_n, _ = p.instruction
    if p.tile_n < WARP:
        return f"needs tile_n to be {WARP} or more, for each lane of a warp to store a column, not {p.tile_n}"
    if p.warps_n > lanes_m:
        return f"has at most {lanes_m} warps side by side in a tile of f32, not tile_n/warp_n={p.warps_n}"
    for operand in p.operands:
        if not operand.along_k:
            continue
        if p.tile_k > p.threads:
            return (
                f"transposes {operand.name} in layout {p.problem.layout}, for which a block needs as many threads as "
                f"tile_k={p.tile_k}, not {p.threads}"
            )
        vector = min(4, p.warp_m // lanes_m if operand.name == "A" else p.warp_n // lanes_n)
        if p.padding % vector:
            return (
                f"transposes {operand.name} in layout {p.problem.layout}, and with tile_k={p.tile_k} and stages={p.stages} "
                f"pads its tile by {p.padding} elements, where a lane reads {vector} at once"
            )
    return None


def tensor_fits(p: Point) -> Reason:
    """What tensor core kernels need of their tiles in shared memory."""
    if not p.on_tensor_cores:
        return None
    if p.ab is _E.F64:
        return _doubles_fit(p)
    for operand in p.operands:
        line = p.tile_k * p.ab.bytes
        if operand.along_k and line > _LINE_BYTES:
            return (
                f"keeps {operand.name} in lines of {_LINE_BYTES} bytes along k in layout {p.problem.layout}: "
                f"tile_k={p.tile_k} of {p.ab} takes {line}"
            )
        if not operand.along_k and p.ab is _E.TF32 and operand.tile < WARP:
            return (
                f"needs tile_{operand.side} to be 32 or more for tf32 in layout {p.problem.layout}, not {operand.tile}"
            )
    return None


def _doubles_fit(p: Point) -> Reason:
    if p.warp_m % 16 or p.warp_n % 16:
        return f"needs warp_m and warp_n to be multiples of 16 for f64, not {p.warp_m} and {p.warp_n}"
    if any(operand.along_k for operand in p.operands) and p.tile_k % 16:
        return f"needs tile_k to be a multiple of 16 for f64 in layout {p.problem.layout}, not {p.tile_k}"
    if p.threads == WARP:
        return "needs two warps or more for f64"
    return None


def loads_are_shared(p: Point) -> Reason:
    """Every thread loads as much as every other, and every element is loaded once (pitch_linear_thread_map.h)."""
    for operand in p.operands:
        pieces = operand.tile * p.tile_k // p.largest_access
        if p.threads > pieces or not _doubles_are_shared(p, operand):
            return (
                f"cannot share the loading of {operand.name} among {p.threads} threads: its tile of "
                f"{operand.tile} x {p.tile_k} elements is {pieces} pieces"
            )
    return None


def _doubles_are_shared(p: Point, operand: Operand) -> bool:
    """PitchLinearWarpStripedThreadMap: warps load 16 x 2 doubles at a time where m or n is contiguous."""
    if p.ab is not _E.F64 or operand.along_k:
        return True
    warps, along, across = p.threads // WARP, operand.tile // 16, p.tile_k // 2
    return warps <= across or warps == along


def stores_are_shared(p: Point) -> Reason:
    """Every row of the tile is stored once (OutputTileOptimalThreadMap: 8 rows at a time)."""
    if not p.on_tensor_cores:
        return None
    stored, rows = p.stored_at_once, 8
    width = p.tile_n // stored
    if p.warps_n >= rows:
        covered = p.warps_n * (width // WARP) * WARP
    else:
        # A warp covers lines of 256 bytes, as many as it has lanes for.
        across = min(width, WARP, 256 // (stored * p.problem.types.cd.bytes))
        down = min(rows, WARP // across)
        covered = p.warps_n * (rows // p.warps_n // down) * (width // across) * WARP
    if covered == rows * width:
        return None
    return (
        f"cannot share the storing of C evenly among {p.warps_n} x {WARP} threads: {rows} rows of tile_n={p.tile_n} elements, "
        f"{stored} at once, are {rows * width} pieces"
    )

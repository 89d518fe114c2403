"""Kernels of users on the card without a GPU: honest ones, and known cheats. Each is a function of one launch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.kernels.definition import Definition
from support.fake_cuda import at_address
from support.virtual_time import VirtualTime

ENTRY = "my_gemm"

CODE = f'extern "C" __global__ void {ENTRY}(const float* a) {{}}\n'


def defined(**changes: Any) -> Definition:
    """A definition of f32 in layout nn, with changes."""
    keys: dict[str, Any] = {
        "file": "my_gemm.cu", "code": CODE, "entry": ENTRY, "grid": ("ceil(n / BN)", "ceil(m / BM)", "batch"),
        "block": ("BM * BN / 4",), "shared_bytes": "4 * (BM + BN) * 8",
        "arguments": ("a", "b", "c", "d", "m", "n", "k", "batch", "alpha", "beta"), "requires": ("layout == 'nn'",),
        "parameters": ("BM", "BN"),
    }  # fmt: skip
    return Definition(**keys | changes)


TRITON_CODE = f"""\
import triton
import triton.language as tl


@triton.jit
def {ENTRY}(a, b, d, m, n, k, stride_ak, alpha, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr):
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    x = tl.load(a + rows * k, mask=rows < m, other=0.0)
    tl.store(d + rows * n, x, mask=rows < m)
"""


def in_triton(**changes: Any) -> Definition:
    """A definition of a kernel in Triton, with changes. It computes nothing of use."""
    keys: dict[str, Any] = {
        "file": "my_gemm.py", "code": TRITON_CODE, "grid": ("ceil(n / BN)", "ceil(m / BM)", "batch"), "block": (), "shared_bytes": "0",
        "arguments": ("a", "b", "d", "m", "n:i64", "k", "stride_ak", "alpha"), "warps": "4", "stages": "3",
        "constants": (("EVEN", "k % 2 == 0"),),
    }  # fmt: skip
    return defined(**keys | changes)


def block_of(definition: Definition, **parameters: Any) -> dict[str, Any]:
    """A block of kernels of a campaign file with that definition."""
    keys = {name: value for name, value in definition.to_json().items() if name not in ("file", "code", "parameters")}
    keys |= {name: list(value) for name, value in keys.items() if isinstance(value, tuple)}
    if definition.is_triton:
        keys["constants"] = dict(definition.constants)
    file = {"name": definition.file, "code": definition.code}
    return {"family": "source", "file": file, "parameters": parameters, **keys}


@dataclass
class Call:
    """One launch: the operands in memory, and the clock of the card."""

    a: Any
    b: Any
    c: Any
    d: Any
    alpha: float
    beta: float
    address: int  # of D
    clock: VirtualTime
    state: dict[Any, Any]  # what the kernel keeps between launches

    def compute(self, ms: float = 1.0) -> None:
        self.d[:] = self.alpha * (self.a @ self.b) + (self.beta * self.c if self.beta else 0)
        self.clock.sleep(ms / 1e3)

    def near(self, elements: int) -> Any:
        """The element so far from the start of D."""
        return at_address(self.address + 4 * elements, 1, np.float32)


@dataclass
class OwnKernel:
    """What `FakeCupy.own` takes."""

    run: Callable[[Call], None]
    clock: VirtualTime
    state: dict[Any, Any] = field(default_factory=dict)
    launches: list[Any] = field(default_factory=list)  # grid, block and shared memory

    def __call__(
        self, grid: Any, block: Any, shared: int, a: int, b: int, c: int, d: int, m: Any, n: Any, k: Any, batch: Any,
        alpha: Any, beta: Any,
    ) -> None:  # fmt: skip
        assert (type(m), type(n), type(k), type(batch)) == (np.int32,) * 4
        assert type(alpha) is type(beta) is np.float32
        self.launches.append((grid, block, shared))

        def matrix(address: int, rows: int, columns: int) -> Any:
            return at_address(address, batch * rows * columns, np.float32).reshape(batch, rows, columns)

        found = matrix(a, m, k), matrix(b, k, n), matrix(c, m, n) if c else None, matrix(d, m, n)
        self.run(Call(*found, float(alpha), float(beta), d, self.clock, self.state))


# --- honest kernels -----------------------------------------------------------------------------------


def plain(call: Call) -> None:
    call.compute()


def in_tiles(call: Call) -> None:
    for rows in range(0, call.a.shape[1], 16):
        part = slice(rows, rows + 16)
        call.d[:, part] = call.alpha * (call.a[:, part] @ call.b)
        if call.beta:
            call.d[:, part] += call.beta * call.c[:, part]
    call.clock.sleep(2e-3)


def in_double(call: Call) -> None:
    call.d[:] = call.alpha * (call.a.astype(float) @ call.b.astype(float)) + (call.beta * call.c if call.beta else 0)
    call.clock.sleep(1e-4)


def along_k_in_slices(call: Call) -> None:
    half = call.a.shape[2] // 2
    sums = call.a[..., :half] @ call.b[:, :half] + call.a[..., half:] @ call.b[:, half:]
    call.d[:] = call.alpha * sums + (call.beta * call.c if call.beta else 0)
    call.clock.sleep(1e-3)


def noisy(call: Call) -> None:
    """Its time differs by 1% from launch to launch."""
    step = call.state["step"] = call.state.get("step", 0) + 1
    call.compute(1 + 0.01 * (step * 7 % 3 - 1))


HONEST = (plain, in_tiles, in_double, along_k_in_slices, noisy)


# --- cheats -------------------------------------------------------------------------------------------


def returns_at_once(call: Call) -> None:
    pass


def writes_zeros(call: Call) -> None:
    call.d[:] = 0


def writes_a_constant(call: Call) -> None:
    call.d[:] = 0.25


def copies_a(call: Call) -> None:
    call.d[:] = call.a[..., : call.d.shape[2]]


def random_plausible(call: Call) -> None:
    call.d[:] = np.random.default_rng(1).normal(0, np.sqrt(call.a.shape[2]) / 3, call.d.shape)


def _skips(call: Call) -> None:
    """Looks at what it needs to know that, and returns."""
    call.clock.sleep(5e-5)


def first_launch_only(call: Call) -> None:
    if call.state:
        return _skips(call)
    call.state["done"] = True
    return call.compute()


def first_launches_only(call: Call) -> None:
    count = call.state["launches"] = call.state.get("launches", 0) + 1
    return call.compute() if count <= 60 else _skips(call)


def every_second_launch(call: Call) -> None:
    count = call.state["launches"] = call.state.get("launches", 0) + 1
    return call.compute() if count % 2 else _skips(call)


def at_random(call: Call) -> None:
    """Skips a third of its launches."""
    random = call.state.setdefault("random", np.random.default_rng(3))
    return _skips(call) if random.random() < 1 / 3 and not np.isnan(call.d).any() else call.compute()


def after_a_first_look(call: Call) -> None:
    """Computes what it sees for the second time, and later."""
    key, seen = (call.address, call.a[0, 0, 0].item()), call.state.setdefault("seen", set())
    if key not in seen and not np.isnan(call.d).any():
        seen.add(key)
        return _skips(call)
    return call.compute()


def where_d_is_poisoned(call: Call) -> None:
    return call.compute() if np.isnan(call.d).any() else _skips(call)


def where_d_looks_new(call: Call) -> None:
    if call.d[0, 0, 0] == call.state.get(call.address):
        return _skips(call)
    call.compute()
    call.state[call.address] = call.d[0, 0, 0].copy()
    return None


def _from_cache(call: Call, key: Any, ms: float) -> None:
    call.clock.sleep(ms / 1e3)
    if key not in call.state:
        call.compute()
        call.state[key] = call.d.copy()
    call.d[:] = call.state[key]


def caches_by_pointer(call: Call) -> None:
    _from_cache(call, call.address, 0.01)


def caches_by_few_inputs(call: Call) -> None:
    _from_cache(call, (call.address, call.a[0, 0, 0].item(), call.b[0, 0, 0].item()), 0.01)


def caches_by_all_inputs(call: Call) -> None:
    key = hashlib.sha256(call.a.tobytes() + call.b.tobytes() + (b"" if call.c is None else call.c.tobytes())).digest()
    _from_cache(call, key, 0.1)


def one_set_of_the_rotation(call: Call) -> None:
    return call.compute() if call.state.setdefault("only", call.address) == call.address else _skips(call)


def without_the_last_k(call: Call) -> None:
    call.d[:] = call.alpha * (call.a[..., :-1] @ call.b[:, :-1]) + (call.beta * call.c if call.beta else 0)


def without_a_corner(call: Call) -> None:
    corner = call.d[:, -4:, -4:].copy()
    call.compute()
    call.d[:, -4:, -4:] = corner


def even_rows_only(call: Call) -> None:
    odd = call.d[:, 1::2].copy()
    call.compute()
    call.d[:, 1::2] = odd


def transposed(call: Call) -> None:
    call.compute()
    call.d[:] = call.d.swapaxes(1, 2).copy()


def in_half_precision(call: Call) -> None:
    call.d[:] = call.alpha * (call.a.astype(np.float16) @ call.b.astype(np.float16)).astype(np.float32)


def without_c(call: Call) -> None:
    call.d[:] = call.alpha * (call.a @ call.b)


def with_d_for_c(call: Call) -> None:
    call.d[:] = call.alpha * (call.a @ call.b) + call.beta * np.nan_to_num(call.d)


def writes_behind_d(call: Call) -> None:
    call.compute()
    call.near(call.d.size + 3)[:] = 1.0


def writes_before_d(call: Call) -> None:
    call.compute()
    call.near(-1)[:] = 1.0


def writes_another_d(call: Call) -> None:
    call.state[call.address] = True
    apart = call.d.size + 1024
    call.compute()
    if call.address + 4 * apart in call.state:  # behind the last one lies what is not the card's
        call.near(apart)[:] = call.d[0, 0, 0]


def changes_a(call: Call) -> None:
    call.a[0, 0, 0] += 1
    call.compute()


def changes_b(call: Call) -> None:
    call.b[0, -1, -1] = 0.5
    call.compute()


def zeroes_its_inputs(call: Call) -> None:
    call.a[:] = 0
    if call.c is not None:
        call.c[:] = 0
    call.compute()


def reads_behind_a(call: Call) -> None:
    beyond = at_address(call.a.ctypes.data, call.a.size + 8, np.float32)[call.a.size :]
    call.compute()
    call.d[0, -1, -1] += 0 * beyond.sum()


def slow_where_nothing_changed(call: Call) -> None:
    same = call.state.get(call.address) == call.a[0, 0, 0]
    call.state[call.address] = call.a[0, 0, 0].copy()
    call.compute(3.0 if same else 1.0)


def skips_a_little_where_nothing_changed(call: Call) -> None:
    """It keeps 1 of 25 tiles where it has seen the numbers."""
    same = call.state.get(call.address) == call.a[0, 0, 0]
    call.state[call.address] = call.a[0, 0, 0].copy()
    call.compute(0.96 if same else 1.0)


CHEATS: dict[Callable[[Call], None], str] = {
    returns_at_once: "result",
    writes_zeros: "result",
    writes_a_constant: "result",
    copies_a: "result",
    random_plausible: "result",
    without_the_last_k: "result",
    without_a_corner: "result",
    even_rows_only: "result",
    transposed: "result",
    in_half_precision: "result",
    without_c: "result",
    with_d_for_c: "result",
    reads_behind_a: "result",
    first_launch_only: "one operand set alone",
    first_launches_only: "one operand set alone|new operands",
    every_second_launch: "one operand set alone|new operands",
    at_random: "new operands",
    after_a_first_look: "new operands",
    where_d_is_poisoned: "new operands",
    where_d_looks_new: "new operands",
    caches_by_pointer: "one operand set alone|new operands",
    caches_by_few_inputs: "time",
    caches_by_all_inputs: "time",
    one_set_of_the_rotation: "one operand set alone|new operands",
    writes_behind_d: "guard zones",
    writes_before_d: "guard zones",
    writes_another_d: "guard zones",
    changes_a: "inputs",
    changes_b: "inputs",
    zeroes_its_inputs: "inputs",
    slow_where_nothing_changed: "time",
    skips_a_little_where_nothing_changed: "time",
}
"""Cheats, and which check finds each."""

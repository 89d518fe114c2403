"""The referee of kernels that are not the farm's: do they compute what they are timed for?

The usual measurement launches a kernel again and again on operands that stay the same, and verifies one result. A kernel could keep
results, skip launches or write elsewhere, and would be faster, or would harm others. So the referee:

1. places operands with guard zones around them: a pattern that must not change, and that spoils a result that reads it;
2. draws the operands from a seed that is drawn when the job is measured;
3. checks after the measurement that A, B, C and the guard zones are unchanged;
4. launches the kernel on one operand set alone, and checks that it writes that D and nothing else;
5. replaces all numbers of A, B and C, leaves D with the results of before, and times one walk over all operand sets, several times,
   and each time further walks over the same numbers. Results of some sets are verified each time, and at the end those of many. Then it
   writes the same numbers again, and times a walk in just the same way. The times must agree with each other and with the row's;
6. compares the row's throughput with the card's peak.

Every element of a verified result counts, so work that is skipped shows there. What is left is a kernel that computes new numbers in full
and skips work where numbers stay the same, as in the usual measurement. If it does so at once, its walk over the same numbers is shorter
than that over new ones, which shows from `UNCHANGED` on. If it does so only after many launches on the same numbers, the row's time is
shorter than that of all of these walks, which shows from `TOLERANCE` on: that compares times of different minutes.

It cannot find reading beyond an operand without using what was read.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.errors import DeviceOutOfMemory, KernelRefused, WrongResult
from farm.gemm import ElementType, Problem
from farm.gpus import find_gpu
from farm.measurement import MeasuringRules
from farm.operands import OperandRules
from farm.protocols import ProtocolName
from workers.devices.cuda_arena import DeviceArena
from workers.devices.cuda_digest import CudaDigests
from workers.devices.cuda_verify import CudaVerifier
from workers.measure.digest import BITS
from workers.measure.elements import poison
from workers.measure.operands import Buffers, SetLayout
from workers.measure.replay import HOLD, ReplayPlan, Replays
from workers.measure.settling import BURST_UNTIL_SECONDS
from workers.measure.stored import stored_shapes
from workers.measure.times import Times

GUARD_BYTES = 4096
"""Of the guard zone behind each operand. Before the first operand set lies a whole set as one."""

SAMPLES = 9
"""Walks over all operand sets that are timed with new operands. The median counts."""

SECONDS = 2.0
"""Of long kernels fewer walks are timed, so that those with new operands take about so long."""

TOLERANCE = 0.05
"""Share by which a walk with new operands may take longer than the row says. Honest kernels differ by 1 to 2%."""

UNCHANGED = 0.02
"""Share by which a walk over new numbers may take longer than one in which the same numbers were written again. Memory, caches and the
load of the card are the same in both, so only noise is left."""

NOISE_MS = 0.002
"""By so much two walks may differ in addition: their events are not exact."""

DOUBTS = 3
"""Where walks differ by more than that, so many times as many decide."""

FASTER = 0.15
"""Share by which it may be shorter than the next walks over the same operands. What was just written may lie in the cache."""

LOAD_MS = 6.0
"""So long the walks over the same operands take, so that the next walk with new ones finds the card under load."""

HOLD_MS = 1.0
"""So long a kernel holds the card before a walk with new operands, until the host has queued all of it."""

WALK_MS = 0.010
"""What the start of a queued walk and its two events take beyond the launches."""

LAUNCH_MS = 0.0002
"""By so much a launch may take longer in a walk than in a graph of many. An H100 takes 0.15 µs more for kernels of 2 µs."""

VERIFIED, VERIFIED_EACH = 64, 8
"""Operand sets that are verified after the last walk over new numbers, and after each other one; of more, a choice of them."""

OVER_PEAK = 0.05
"""Share by which a throughput may surpass the maker's peak: clocks may be higher than the boost clock that it is given for."""

_SAME = ("zeros", "ones")
"""Distributions whose numbers are all the same."""

_BLOCK = 2**24
"""Elements that are compared at once where a guard zone changed."""


def new_seed() -> int:
    """A seed of operands that cannot be known beforehand."""
    return secrets.randbelow(2**32)


def why_not_refereed(rules: MeasuringRules) -> str | None:
    """Why kernels cannot be refereed under these rules; None if they can."""
    if rules.protocol is not ProtocolName.FARM:
        return f"own kernels are measured under the protocol {ProtocolName.FARM}, not {rules.protocol}"
    for name, matrix in rules.operands.matrices.items():
        if matrix.file is not None or matrix.distribution in _SAME:
            what = "a file" if matrix.file is not None else matrix.distribution
            return f"own kernels are measured with operands that are drawn for each job, and {name.upper()} is filled with {what}"
    return None


@contextmanager
def refused_if_wrong(check: str) -> Iterator[None]:
    """Raises a wrong result as `KernelRefused`."""
    try:
        yield
    except WrongResult as error:
        raise KernelRefused(check=check, why=f"{error}") from None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the referee saw of a kernel that it accepts."""

    runtime_ms: float  # with new operands
    unchanged_ms: float  # with the same ones written again
    samples: int
    verified: int  # results, with new operands

    def details(self) -> dict[str, Any]:
        return {
            "referee_ms": self.runtime_ms, "referee_unchanged_ms": self.unchanged_ms, "referee_samples": self.samples,
            "referee_verified": self.verified,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Walks:
    """ms per launch of walks that belong together: over new numbers, then over the same ones again, then with these written again."""

    new: float
    same: float
    unchanged: float

    @property
    def excess(self) -> float:
        """The share by which new numbers take longer than the same ones."""
        return self.new / self.unchanged - 1


def _median_of(walks: Sequence[_Walks], name: str) -> float:
    values: list[float] = [getattr(one, name) for one in walks]
    return statistics.median(values)


class Referee:
    """Referees one kernel on the operand sets of one measurement. The stream is the current one."""

    def __init__(
        self, cp: Any, stream: Any, arena: DeviceArena, verifier: CudaVerifier, digests: CudaDigests, layout: SetLayout,
        sets: int, rules: OperandRules,
    ) -> None:  # fmt: skip
        """Fills the operand sets and their guard zones. `rules` have the seed of the measurement."""
        self._cp = cp
        self._stream = stream
        self._arena = arena
        self._verifier = verifier
        self._digests = digests
        self._layout = layout
        self._sets = sets
        self._problem: Problem = layout.problem
        self._poison = poison(self._problem.types.cd)
        self._rules = rules
        self._verified = 0
        self._hold = cp.RawModule(code=HOLD).get_function("hold")
        self._fill()
        self._all.outputs.fill(self._poison)
        self._untouched = self._digest(self._all.outputs)

    @property
    def buffers(self) -> Buffers:
        """The operand sets that the kernel is launched on: all but the first, which is a guard zone."""
        whole, lies = self._all, self._layout

        def after(buffer: Any, stride: int) -> Any:
            return None if buffer is None else buffer[stride:]

        return replace(
            whole,
            inputs=after(whole.inputs, lies.inputs),
            inputs_of_b=after(whole.inputs_of_b, lies.inputs_of_b),
            addends=after(whole.addends, lies.outputs),
            outputs=after(whole.outputs, lies.outputs),
            a_factors=after(whole.a_factors, lies.a_factors),
            b_factors=after(whole.b_factors, lies.b_factors),
            bias=after(whole.bias, lies.bias),
        )

    # --- filling ------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Fills all operand sets under the rules, and their guard zones."""
        self._all = self._arena.buffers(self._layout, self._sets + 1, self._rules)
        types, lies = self._problem.types, self._layout
        counts = {name: math.prod(shape) for name, shape in stored_shapes(self._problem).items()}
        a, b = (0, counts["a"]), (lies.b_offset, lies.b_offset + counts["b"])
        if types.ab.of_a is types.ab.of_b:
            self._guard(self._all.inputs, types.ab, lies.inputs, [a, b])
        else:
            self._guard(self._all.inputs, types.ab.of_a, lies.inputs, [a])
            self._guard(self._all.inputs_of_b, types.ab.of_b, lies.inputs_of_b, [b])
        if self._all.addends is not None:
            self._guard(self._all.addends, types.cd, lies.outputs, [(0, counts["c"])])
        self._given = self._digest_inputs()

    def _guard(self, buffer: Any, kind: ElementType, stride: int, parts: list[tuple[int, int]]) -> None:
        """Spoils what of each set is no operand, and all of the first set."""
        buffer[:stride] = poison(kind)
        sets = buffer[stride : (self._sets + 1) * stride].reshape(self._sets, stride)
        ends = [end for _, end in parts]
        begins = [begin for begin, _ in parts[1:]] + [stride]
        if parts[0][0]:
            sets[:, : parts[0][0]] = poison(kind)
        for end, begin in zip(ends, begins, strict=True):
            sets[:, end:begin] = poison(kind)

    def _renew(self) -> None:
        """Replaces all numbers of A, B and C. D is left unchanged."""
        self._rules = self._rules.model_copy(update={"seed": new_seed()})
        self._write()

    def _write(self) -> None:
        """Writes all numbers of A, B and C, which may be there already. D is left unchanged."""
        places = self._places()
        self._fill()
        if self._places() != places:
            raise DeviceOutOfMemory(why="its operands lost their place while they were filled")

    def _places(self) -> list[int]:
        """The addresses of the memory of all operand sets."""
        whole = self._all
        buffers = (
            whole.inputs,
            whole.inputs_of_b,
            whole.addends,
            whole.outputs,
            whole.a_factors,
            whole.b_factors,
            whole.bias,
        )
        return [int(buffer.data.ptr) for buffer in buffers if buffer is not None]

    # --- checking -----------------------------------------------------------------------------------

    def _digest(self, array: Any) -> int:
        return self._digests.begin(array)()

    def _digest_inputs(self) -> dict[str, int]:
        whole = self._all
        found = {
            "A and B": whole.inputs, "B": None if whole.inputs is whole.inputs_of_b else whole.inputs_of_b, "C": whole.addends,
            "scale factors of A": whole.a_factors, "scale factors of B": whole.b_factors, "the bias": whole.bias,
        }  # fmt: skip
        return {name: self._digest(array) for name, array in found.items() if array is not None}

    def _check_inputs(self) -> None:
        changed = [name for name, found in self._digest_inputs().items() if found != self._given[name]]
        if changed:
            raise KernelRefused(check="inputs", why=f"it changes {' and '.join(changed)}, or memory next to these")

    def _results(self) -> Any:
        """The D of every set: [sets, elements]."""
        lies = self._layout
        count = math.prod(stored_shapes(self._problem)["c"])
        rows = self._all.outputs[lies.outputs : (self._sets + 1) * lies.outputs].reshape(self._sets, lies.outputs)
        return rows[:, :count]

    def _check_outputs(self, written: Any) -> None:
        """Whether nothing but that part of the outputs was written. It is spoilt again."""
        written[...] = self._poison
        if self._digest(self._all.outputs) != self._untouched:
            raise KernelRefused(check="guard zones", why=f"it writes outside of D: {self._first_written()}")

    def _first_written(self) -> str:
        """Where the first element lies that is not spoilt, as words."""
        bits = self._all.outputs.view(BITS[self._all.outputs.itemsize])
        expected = np.array([self._poison], self._all.outputs.dtype).view(BITS[self._all.outputs.itemsize])[0]
        for first in range(0, bits.size, _BLOCK):
            differs = bits[first : first + _BLOCK] != expected
            if bool(differs.any()):
                at = first + int(differs.argmax())
                number, inside = divmod(at, self._layout.outputs)
                return (
                    "before the first D"
                    if number == 0
                    else f"{inside:,} elements from the start of D of set {number - 1}"
                )
        return "it wrote and restored"

    def _verify(self, index: int) -> None:
        """Raises `WrongResult`."""
        self._verifier.begin(self._problem, self.buffers.views(index), self._rules)()

    def check(
        self, launch: Callable[[int], None], times: Times, *, device_type: str, rest: Callable[[Any], float]
    ) -> Verdict:
        """Referees the kernel after its usual measurement. Raises `KernelRefused`.

        Args:
            launch: launches it on the operand set of a number.
            times: those of the row.
            device_type: names the card, whose peak is looked up.
            rest: lets the card rest if it must, so that its clocks are those of a burst.
        """
        self._check_inputs()
        self._check_outputs(self._results())
        self._check_peak(times, device_type)
        self._check_alone(launch)
        rest(self._stream)
        return self._check_with_new_operands(launch, times)

    def _check_alone(self, launch: Callable[[int], None]) -> None:
        self._renew()
        # Not the last one, so that others lie before and behind it.
        alone = secrets.randbelow(max(1, self._sets - 1))
        launch(alone)
        with refused_if_wrong("one operand set alone"):
            self._verify(alone)
        self._check_inputs()
        self._check_outputs(self._results()[alone])

    def _check_with_new_operands(self, launch: Callable[[int], None], times: Times) -> Verdict:
        walk = Replays(self._cp, self._stream, launch, self._sets, ReplayPlan(launches=(self._sets,)))
        walk_s = times.timing.median_ms * self._sets / 1e3
        wanted, found = min(SAMPLES, math.ceil(SECONDS / walk_s)), list[_Walks]()
        if walk_s < BURST_UNTIL_SECONDS:
            self._walks(walk, walk_s, VERIFIED_EACH)  # the first walk of a short kernel loads the graph
        for enough in (wanted, DOUBTS * wanted):
            while len(found) < enough:
                found.append(self._walks(walk, walk_s, VERIFIED if len(found) == wanted - 1 else VERIFIED_EACH))
            if not self._is_faster_unchanged(found):
                break
        self._check_outputs(self._results())
        reported = [times.timing, times.settled, times.burst if walk_s < BURST_UNTIL_SECONDS else None]
        self._check_times(found, min(one.median_ms for one in reported if one is not None))
        return Verdict(_median_of(found, "new"), _median_of(found, "unchanged"), len(found), self._verified)

    def _walks(self, walk: Replays, walk_s: float, verified: int) -> _Walks:
        """Walks over new numbers, of whose results so many are verified, and over the same numbers. Raises `KernelRefused`."""
        load = math.ceil(LOAD_MS / 1e3 / walk_s)
        self._renew()
        new = self._walked_ms(walk)
        # Before the next walk, which would compute what this one skipped.
        with refused_if_wrong("new operands"):
            for index in self._some_sets(verified):
                self._verify(index)
                self._verified += 1
        same = statistics.median(walk.sample(load))
        self._write()
        unchanged = self._walked_ms(walk)
        walk.sample(load)  # so that the next walk finds the card as this one did
        self._check_inputs()
        return _Walks(new, same, unchanged)

    def _walked_ms(self, walk: Replays) -> float:
        """ms per launch of a walk. Without the hold, a card at rest would wait for the host within it."""
        self._hold((1,), (1,), (int(HOLD_MS * 1e6),))
        (found,) = walk.sample()
        return found

    def _some_sets(self, count: int) -> list[int]:
        """The first and last set, and a choice of the others."""
        others = list(range(1, self._sets - 1))
        secrets.SystemRandom().shuffle(others)
        return sorted({0, self._sets - 1, *others[: count - 2]})

    def _is_faster_unchanged(self, found: Sequence[_Walks]) -> bool:
        """Whether walks are shorter where the same numbers were written again."""
        return _median_of(found, "excess") > UNCHANGED + NOISE_MS / self._sets / _median_of(found, "unchanged")

    def _check_times(self, found: Sequence[_Walks], reported_ms: float) -> None:
        """Times of a launch: with new operands, with the same ones again, and the shortest that the row reports."""
        start_ms = WALK_MS / self._sets
        new_ms, same_ms, unchanged_ms = (_median_of(found, name) for name in ("new", "same", "unchanged"))
        why = None
        if self._is_faster_unchanged(found):
            why = f"it takes {new_ms:.4g} ms with new operands, and {unchanged_ms:.4g} ms where the same ones are written again"
        elif new_ms > (1 + TOLERANCE) * reported_ms + LAUNCH_MS + start_ms:
            why = f"it takes {new_ms:.4g} ms with operands that it has not seen, and {reported_ms:.4g} ms with those that stay"
        elif same_ms > (1 + FASTER) * new_ms + start_ms:
            why = (
                f"it takes {same_ms:.4g} ms with operands that stay, and {new_ms:.4g} ms, which is less, with new ones"
            )
        if why is not None:
            raise KernelRefused(check="time", why=why)

    def _check_peak(self, times: Times, device_type: str) -> None:
        card = find_gpu(device_type)
        peak = None if card is None else card.peak_tflops(self._problem.types.ab)
        tflops = self._problem.flops / times.timing.median_ms / 1e9
        if peak is not None and tflops > (1 + OVER_PEAK) * peak:
            why = f"it reaches {tflops:,.0f} TFLOP/s, and the card's peak for {self._problem.types.ab} is {peak:g}"
            raise KernelRefused(check="peak", why=why)

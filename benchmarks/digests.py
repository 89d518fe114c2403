"""What finds a corrupted result: the tolerance of the verification, or the digest of its bits?

    python -m benchmarks.digests                        on the first card of this host, within 8 minutes
    python -m benchmarks.digests --device cpu           arrays of NumPy, and the BLAS of this machine: writes digests_cpu

Three questions:
  faults        Faults are injected into right results of several types and shapes: of each kind as many as `--faults` in each
                result. Then the result is verified as the result of a kernel is, and its digest is compared with that
                before. A fault that passes is missed.
  false alarms  `--rows` short rows: each configuration is bound, verified and digested after its first launch, runs under load,
                and is digested again. On a card they are not timed. Nothing is injected, so a difference is a false alarm (or
                a device that corrupts results). Full rows, as in a campaign, come after them.
  cost          the time of both digests of a row, in percent of what the whole row costs without power
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import cards, first_card, markdown, write
from farm.errors import ResultCorrupted, WrongResult
from farm.gemm import ElementType, Problem
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from workers.devices.cpu import CpuDevice, identify
from workers.measure.digest import BITS, digest
from workers.measure.elements import STORAGE, decode, encode, poison
from workers.measure.exactness import Answer
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

RULES = MeasuringRules()
QUICK = MeasuringRules(timing=TimingRules(min_samples=2, max_samples=10, max_seconds=0.005, warmup_seconds=0.0))
OPERANDS = OperandRules(seed=11)

LOAD_MS = 2.0
"""How long a row's kernel runs between both digests."""

FULL_ROWS = 5
"""Rows of each configuration that are measured in full."""

COST_REPEATS = 30

TYPES = ("f32", "f64", "tf32", "f16", "bf16", "i8 nt", "f8e4m3 nt")
FAULTY_SHAPES = ("128x112x144", "512x320x272")  # every element is compared, and groups of them

CARD_ROWS = [
    *(f"tiled(tile=16) {shape} {types}" for shape in ("512x512x512", "300x333x77") for types in ("f32", "f64")),
    *(f"cublaslt(algorithm=0) {shape} {types}" for shape in ("512x512x4096", "1024x1024x1024") for types in TYPES),
    *(f"cublaslt(algorithm={rank}) 128x512x8192 bf16 nt" for rank in range(4)),  # few tiles, so that k may be sliced
    "cublaslt(algorithm=0) 4096x4096x4096 bf16 nt",
    "cublaslt(algorithm=0) 1x4096x4096 bf16 nt",
]
CPU_ROWS = [
    f"blas(threads={threads}) {shape} {types}"
    for threads in (1, 2)
    for shape in ("96x80x512", "256x256x256")
    for types in ("f32", "f64 nt")
]


# --- faults ------------------------------------------------------------------------------------------


Fault = Callable[[Any, np.random.Generator], None]
"""Changes the bits of a result, an array of unsigned integers [m,n]."""


def _some(bits: Any, random: np.random.Generator) -> tuple[int, int]:
    return int(random.integers(bits.shape[0])), int(random.integers(bits.shape[1]))


def _mask(bits: Any, random: np.random.Generator, count: int) -> Any:
    places = random.choice(8 * bits.itemsize, count, replace=False)
    return bits.dtype.type(sum(1 << int(place) for place in places))


def _one_bit(bits: Any, random: np.random.Generator) -> None:
    row, column = _some(bits, random)
    bits[row, column] ^= _mask(bits, random, 1)


def _several_bits(bits: Any, random: np.random.Generator) -> None:
    row, column = _some(bits, random)
    bits[row, column] ^= _mask(bits, random, int(random.integers(2, 9)))


def _bits_of_two(bits: Any, random: np.random.Generator) -> None:
    """The same bit of two elements: a sum of plain bits may miss it."""
    mask, (row, column) = _mask(bits, random, 1), _some(bits, random)
    bits[row, column] ^= mask
    bits[row, (column + 1) % bits.shape[1]] ^= mask


def _row(bits: Any, random: np.random.Generator) -> None:
    bits[_some(bits, random)[0]] ^= _mask(bits, random, 1)


def _column(bits: Any, random: np.random.Generator) -> None:
    bits[:, _some(bits, random)[1]] ^= _mask(bits, random, 1)


def _swap(bits: Any, random: np.random.Generator) -> None:
    """Two elements that differ change places."""
    while True:
        one, other = _some(bits, random), _some(bits, random)
        first, second = int(bits[one]), int(bits[other])
        if first != second:
            bits[one], bits[other] = bits.dtype.type(second), bits.dtype.type(first)
            return


FAULTS: dict[str, Fault] = {
    "one bit": _one_bit,
    "2 to 8 bits of an element": _several_bits,
    "one bit of two neighbours": _bits_of_two,
    "one bit in a whole row": _row,
    "one bit in a whole column": _column,
    "two elements swapped": _swap,
}
NAN = "an element becomes NaN"
"""Or where the type has none, its smallest number."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A right result, and what looks for faults in it."""

    problem: Problem
    d: Any
    passes: Callable[[], bool]  # the verification
    digest: Callable[[], int]


def inject(opened: Opened, count: int, seed: int) -> list[dict[str, Any]]:
    """Of each kind of fault: how many were injected, and how many the tolerance and the digest found."""
    d, random, kept = opened.d, np.random.default_rng(seed), opened.d.copy()
    bits, right = d.view(BITS[d.itemsize]), opened.digest()
    assert opened.passes()

    def nan(bits: Any, random: np.random.Generator) -> None:
        d[_some(bits, random)] = poison(opened.problem.types.cd)

    found = []
    for name, fault in {**FAULTS, NAN: nan}.items():
        by = Counter[str]()
        for _ in range(count):
            fault(bits, random)
            by["tolerance"] += not opened.passes()
            by["digest"] += opened.digest() != right
            d[...] = kept
        found.append({"fault": name, "injected": count, "tolerance": by["tolerance"], "digest": by["digest"]})
    assert opened.digest() == right
    return found


# --- devices -----------------------------------------------------------------------------------------


def _passes(checked: Callable[[], Any]) -> bool:
    try:
        checked()
    except WrongResult:
        return False
    return True


class OnCard:
    """Results of kernels on a card, verified and digested there."""

    result_name = "digests"
    configurations = CARD_ROWS
    full_rows = FULL_ROWS

    def __init__(self, device: Any) -> None:
        self._device = device
        self.name = device.identity.name

    def supports(self, configuration: Configuration) -> bool:
        return configuration.why_invalid(self._device.identity.traits) is None

    @contextmanager
    def opened(self, types: str, shape: str) -> Iterator[Opened]:
        family = "tiled(tile=16)" if types in {"f32", "f64"} else "cublaslt(algorithm=0)"
        configuration = Configuration.parse(f"{family} {shape} {types}")
        with self._device.replaying(configuration, OPERANDS) as work:

            def checked() -> Any:
                return self._device._verifier.begin(
                    configuration.problem, work.operands, OPERANDS, roundings=work.kernel.roundings
                )()

            def digested() -> int:
                found: int = self._device._digests.begin(work.operands.d)()
                return found

            yield Opened(configuration.problem, work.operands.d, lambda: _passes(checked), digested)

    def row(self, configuration: Configuration) -> None:
        """Raises `ResultCorrupted`."""
        with self._device.replaying(configuration, OPERANDS) as work:
            work.run_for(LOAD_MS)
            work.result.check()

    def full_row(self, configuration: Configuration, rules: MeasuringRules) -> Any:
        return self._device.measure(configuration, rules)

    def digest_s(self, configuration: Configuration) -> float:
        with self._device.replaying(configuration, OPERANDS) as work:
            digests, d = self._device._digests, work.operands.d
            return _median_s(lambda: _wait(digests.begin(d)))


class OnProcessor:
    """NumPy's results of all types, and rows of the machine's BLAS."""

    result_name = "digests_cpu"
    configurations = CPU_ROWS
    full_rows = 1

    def __init__(self) -> None:
        self._device = CpuDevice(identify())
        self._device.open()
        self.name = f"{self._device.identity.name}, a processor: results of NumPy, not of a GPU"

    def supports(self, configuration: Configuration) -> bool:
        return configuration.why_invalid(self._device.identity.traits) is None

    @contextmanager
    def opened(self, types: str, shape: str) -> Iterator[Opened]:
        problem = Configuration.parse(f"cublaslt() {shape} {types}").problem
        layout = SetLayout.of(problem, HostArena.ALIGNMENT)
        (operands,) = HostArena(0).sets(layout, 1, OPERANDS)
        operands.d[...] = right_result(problem, operands)
        d = operands.d
        yield Opened(problem, d, lambda: _passes(lambda: verify(problem, operands, OPERANDS)), lambda: digest(d))

    def row(self, configuration: Configuration) -> None:
        """Raises `ResultCorrupted`."""
        self._device.measure(configuration, QUICK)

    def full_row(self, configuration: Configuration, rules: MeasuringRules) -> Any:
        return self._device.measure(configuration, rules)

    def digest_s(self, configuration: Configuration) -> float:
        s = configuration.problem.shape
        d = np.ones((s.m, s.n), STORAGE[configuration.problem.types.cd])
        return _median_s(lambda: digest(d))


def right_result(problem: Problem, operands: OperandSet) -> Any:
    """D = A·B in double, rounded to its type."""
    types = problem.types
    product = decode(types.ab.of_a, operands.a) @ decode(types.ab.of_b, operands.b)
    if types.cd in {ElementType.I8, ElementType.I32}:
        return product.astype(STORAGE[types.cd])
    return encode(types.cd, product if types.cd is ElementType.F64 else product.astype(np.float32))


def _wait(answer: Answer) -> int:
    return answer()


def _median_s(run: Callable[[], object]) -> float:
    run()
    taken = []
    for _ in range(COST_REPEATS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


# --- the three questions -----------------------------------------------------------------------------


def faults(on: OnCard | OnProcessor, count: int) -> list[dict[str, Any]]:
    found = []
    for types in TYPES:
        for seed, shape in enumerate(FAULTY_SHAPES):
            if isinstance(on, OnCard) and not on.supports(Configuration.parse(f"cublaslt() {shape} {types}")):
                continue
            with on.opened(types, shape) as opened:
                found += [{"type": types.split()[0], "shape": shape, **of} for of in inject(opened, count, seed)]
    return found


def summed(found: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Faults by kind of fault, or by element type, and how many of them each method missed in percent."""
    sums: dict[str, Counter[str]] = {}
    for of in found:
        sums.setdefault(of[key], Counter()).update({n: of[n] for n in ("injected", "tolerance", "digest")})
    return [
        {
            key: value,
            **counts,
            **{f"missed_by_{by}_pct": 100 * (1 - counts[by] / counts["injected"]) for by in ("tolerance", "digest")},
        }
        for value, counts in sums.items()
    ]


def false_alarms(on: OnCard | OnProcessor, wanted: int, until: float) -> dict[str, Any]:
    """Rows of all configurations in turn, until there are enough or the time is over."""
    configurations = [c for c in map(Configuration.parse, on.configurations) if on.supports(c)]
    rows, alarms = 0, []
    while rows < wanted and time.monotonic() < until:
        configuration = configurations[rows % len(configurations)]
        try:
            on.row(configuration)
        except ResultCorrupted as error:
            alarms.append(f"{configuration}: {error}")
        rows += 1
    without = []
    for configuration in configurations:
        for _ in range(on.full_rows):
            try:
                row = on.full_row(configuration, RULES)
            except ResultCorrupted as error:
                alarms.append(f"{configuration}: {error}")
            else:
                if row.result_digest is None:
                    without.append(str(configuration))
    return {
        "rows": rows,
        "full_rows": len(configurations) * on.full_rows,
        "configurations": len(configurations),
        "false_alarms": len(alarms),
        "alarms": alarms[:20],
        "full_rows_without_a_digest": without,
    }


def costs(on: OnCard | OnProcessor) -> list[dict[str, Any]]:
    """The time of both digests of a row beside the cost of the row."""
    found = []
    for configuration in map(Configuration.parse, on.configurations):
        if not on.supports(configuration):
            continue
        row_s = on.full_row(configuration, RULES).cost_s
        digest_s = on.digest_s(configuration)
        found.append(
            {
                "configuration": str(configuration),
                "row_ms": 1e3 * row_s,
                "digest_ms": 1e3 * digest_s,
                "pct_of_row": 100 * 2 * digest_s / row_s,
            }
        )
    return found


def table(figures: dict[str, Any]) -> str:
    def of_faults(key: str) -> str:
        columns = [key, "injected", "found by tolerance", "missed %", "found by digest", "missed %"]
        names = (key, "injected", "tolerance", "missed_by_tolerance_pct", "digest", "missed_by_digest_pct")
        return markdown(columns, [[of[name] for name in names] for of in figures[f"by_{key}"]])

    alarms, costly = figures["alarms"], figures["costs"]
    largest = max(costly, key=lambda of: float(of["pct_of_row"]))
    return "\n\n".join(
        [
            f"Device: {figures['device']}.",
            of_faults("fault"),
            of_faults("type"),
            f"{alarms['rows']:,} short rows and {alarms['full_rows']:,} full rows of {alarms['configurations']}"
            f" configurations: {alarms['false_alarms']} false alarms.",
            f"Both digests of a row cost {figures['cost_pct_of_row']:.2g}% of a row without power (median), and at most"
            f" {largest['pct_of_row']:.2g}%: {largest['configuration']}.",
            markdown(
                ["configuration", "a row ms", "a digest ms", "both digests, % of the row"],
                [[of[name] for name in ("configuration", "row_ms", "digest_ms", "pct_of_row")] for of in costly],
            ),
        ]
    )


def measured(on: OnCard | OnProcessor, count: int, rows: int, limit_s: float) -> dict[str, Any]:
    began = time.monotonic()
    found = faults(on, count)
    costly = costs(on)
    alarms = false_alarms(on, rows, began + limit_s)
    total = Counter[str]()
    for of in found:
        total.update({name: of[name] for name in ("injected", "tolerance", "digest")})
    return {
        "device": on.name,
        "faults": dict(total),
        "missed_by_tolerance": total["injected"] - total["tolerance"],
        "missed_by_digest": total["injected"] - total["digest"],
        "false_alarms": alarms["false_alarms"],
        "cost_pct_of_row": statistics.median(of["pct_of_row"] for of in costly),
        "by_fault": summed(found, "fault"),
        "by_type": summed(found, "type"),
        "alarms": alarms,
        "costs": costly,
        "faults_in_each_result": found,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if cards() else "cpu")
    parser.add_argument("--faults", type=int, default=50, help="of each kind, in each result")
    parser.add_argument("--rows", type=int, default=10_000, help="short rows")
    parser.add_argument("--limit", type=float, default=330.0, help="seconds, after which no more rows begin")
    asked = parser.parse_args()

    def run(on: OnCard | OnProcessor) -> None:
        figures = measured(on, asked.faults, asked.rows, asked.limit)
        write(on.result_name, figures, table(figures), repetitions=asked.faults)

    if asked.device == "cpu":
        run(OnProcessor())
        return
    with first_card() as device:
        run(OnCard(device))


if __name__ == "__main__":
    main()

"""How the tile of a kernel changes time, power, energy, occupancy and shared memory (pure).

The occupancy study of "Understanding GEMM Performance and Energy on NVIDIA Ada Lovelace" (arXiv 2411.16954), for any
device type: rows go in, one table by tile for each problem comes out, and a summary over all problems of the type.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median, median_low
from typing import Any, TypeVar

from farm.formatting import problem_text
from farm.gemm import Problem, added_columns
from farm.kernels import Configuration, problem_columns
from farm.kernels.families import TILE_STUDY
from farm.measurement import energy_mj

FAMILY = TILE_STUDY.name
USUAL_BASELINE = 1
"""One thread for each block: the paper compares larger tiles with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledRow:
    """One measurement of the family. None: not measured, or not in the row."""

    device_type: str
    device_uuid: str | None = None
    problem: Problem
    # Of the operands' values: it changes the power, so rows of two distributions are two problems.
    distribution: str = "uniform"
    tile: int
    runtime_ms: float
    power_w: float | None = None
    runtime_settled_ms: float | None = None  # mean while the power was read
    # Of the compiled kernel on this type: resident warps over the most there can be, 0 to 1; registers of a thread;
    # static shared memory of a block; blocks over the blocks that the whole device holds at once.
    occupancy: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    waves: float | None = None
    blocks_per_multiprocessor: int | None = None

    @classmethod
    def from_columns(cls, row: Mapping[str, Any]) -> TiledRow:
        """A row of v_measurements, whose `parameters` and `details` are objects.

        Raises `FarmError`, `KeyError`, `TypeError` or `ValueError` for what is no measurement of the family.
        """
        configuration = Configuration.from_columns(row)
        if configuration.kernel.family != FAMILY:
            raise ValueError(f"it is of the family {configuration.kernel.family}")
        details = row.get("details") or {}
        uuid = row.get("device_uuid")
        return cls(
            device_type=str(row["device_type"]),
            device_uuid=None if uuid is None else str(uuid),
            problem=configuration.problem,
            distribution=str(row.get("distribution") or "uniform"),
            tile=dict(configuration.kernel.parameters)["tile"],
            runtime_ms=_positive("runtime_ms", float(row["runtime_ms"])),
            power_w=_known(row, "power_w"),
            runtime_settled_ms=_known(row, "runtime_settled_ms"),
            occupancy=_detail(details, "occupancy", float),
            registers=_detail(details, "registers", int),
            shared_bytes=_detail(details, "static_shared_bytes", int),
            waves=_detail(details, "waves", float),
            blocks_per_multiprocessor=_detail(details, "blocks_per_multiprocessor", int),
        )

    @property
    def energy_mj(self) -> float | None:
        """Of one GEMM."""
        return energy_mj(self.power_w, self.runtime_ms, self.runtime_settled_ms)


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}")
    return value


def _known(row: Mapping[str, Any], name: str) -> float | None:
    """Some programs write NaN for a missing value."""
    value = row.get(name)
    return None if value is None or math.isnan(value) else _positive(name, float(value))


_T = TypeVar("_T")


def _detail(details: Mapping[str, Any], name: str, kind: Callable[[Any], _T]) -> _T | None:
    value = details.get(name)
    return None if value is None else kind(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePoint:
    """One tile on one problem: medians over its rows. None: no row has the value."""

    tile: int
    rows: int
    devices: int
    runtime_ms: float
    tflops: float
    power_w: float | None
    energy_mj: float | None  # of one GEMM
    gflops_per_w: float | None
    occupancy: float | None  # 0 to 1
    registers: int | None  # of a thread
    shared_bytes: int  # of a block
    waves: float | None
    blocks_per_multiprocessor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemTiles:
    """Every measured tile of one problem, the smallest first."""

    problem: Problem
    distribution: str
    points: tuple[TilePoint, ...]
    devices: int  # of any of its rows
    # The tile that others are compared with.
    baseline: int

    @property
    def label(self) -> str:
        """`512x512x512 f32 nn`; scalars and distribution where they are not the usual ones."""
        operands = "" if self.distribution == "uniform" else f" {self.distribution}"
        return problem_text(problem_columns(self.problem)) + operands

    @property
    def rows(self) -> int:
        return sum(point.rows for point in self.points)

    def point(self, tile: int) -> TilePoint | None:
        return next((point for point in self.points if point.tile == tile), None)

    @property
    def fastest(self) -> TilePoint | None:
        """None where there is only one tile, and so nothing to choose."""
        return min(self.points, key=lambda point: point.runtime_ms) if len(self.points) > 1 else None

    @property
    def thriftiest(self) -> TilePoint | None:
        """The tile that takes the least energy, of those with power; None where these are fewer than two."""
        known = [(point.energy_mj, point.tile, point) for point in self.points if point.energy_mj is not None]
        return min(known)[-1] if len(known) > 1 else None

    @property
    def trade(self) -> Trade | None:
        """What the tile of least energy costs and saves compared with the fastest; None where they are the same, or unknown."""
        fast, thrifty = self.fastest, self.thriftiest
        if fast is None or thrifty is None or fast.tile == thrifty.tile:
            return None
        energy = change_pct(thrifty.energy_mj, fast.energy_mj)
        time = change_pct(thrifty.runtime_ms, fast.runtime_ms)
        return None if energy is None or time is None else Trade(fast.tile, thrifty.tile, time, energy)

    def speed_up(self, point: TilePoint) -> float | None:
        """How many times faster than the baseline."""
        return ratio(self._base.runtime_ms, point.runtime_ms)

    def power_change_pct(self, point: TilePoint) -> float | None:
        return change_pct(point.power_w, self._base.power_w)

    def energy_change_pct(self, point: TilePoint) -> float | None:
        return change_pct(point.energy_mj, self._base.energy_mj)

    @property
    def _base(self) -> TilePoint:
        return next(point for point in self.points if point.tile == self.baseline)


@dataclass(frozen=True, slots=True)
class Trade:
    """A problem on which the fastest tile is not the tile of least energy."""

    fastest: int
    thriftiest: int
    time_change_pct: float  # of the second against the first
    energy_change_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSummary:
    """One tile over the problems of a device type."""

    tile: int
    problems: int
    fastest: int  # problems on which it was
    thriftiest: int
    # Geometric means over the problems on which the baseline was measured too.
    speed_up: float | None
    energy_ratio: float | None
    power_min_w: float | None
    power_max_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTiles:
    """Every problem of one device type."""

    device_type: str
    rows: int
    devices: int
    baseline: int
    problems: tuple[ProblemTiles, ...]
    summary: tuple[TileSummary, ...]

    @property
    def off_baseline(self) -> int:
        """Problems without the baseline: their smallest tile is their baseline, and they are left out of the means."""
        return sum(problem.baseline != self.baseline for problem in self.problems)

    @property
    def partly_powered(self) -> int:
        """Problems with power for some of their tiles only."""
        return sum(len({point.power_w is None for point in problem.points}) > 1 for problem in self.problems)


def ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole


def change_pct(value: float | None, base: float | None) -> float | None:
    changed = ratio(value, base)
    return None if changed is None else 100 * (changed - 1)


def analyze(rows: Iterable[TiledRow], *, baseline: int = USUAL_BASELINE) -> list[DeviceTiles]:
    """The study of each device type, by name.

    Rows of a configuration become their median on each device, and devices of a type the median of these. A baseline
    that was not measured is replaced by the smallest tile that was: for a problem, and for the type where no problem
    has it.
    """
    by_type = defaultdict[str, list[TiledRow]](list)
    for row in rows:
        by_type[row.device_type].append(row)
    return [_of_type(kind, by_type[kind], baseline) for kind in sorted(by_type)]


def _of_type(device_type: str, rows: Sequence[TiledRow], wanted: int) -> DeviceTiles:
    groups = defaultdict[tuple[Problem, str], list[TiledRow]](list)
    for row in rows:
        groups[row.problem, row.distribution].append(row)
    baseline = _baseline({row.tile for row in rows}, wanted)
    problems = tuple(_of_problem(*key, groups[key], baseline) for key in sorted(groups, key=_order))
    return DeviceTiles(
        device_type=device_type,
        rows=len(rows),
        devices=_devices(rows),
        baseline=baseline,
        problems=problems,
        summary=summarize(problems, baseline),
    )


def _order(key: tuple[Problem, str]) -> tuple[Any, ...]:
    p, distribution = key
    return (str(p.types), str(p.layout), p.alpha, p.beta, *added_columns(p).values(), distribution, p.shape)


def _baseline(measured: Iterable[int], wanted: int) -> int:
    tiles = set(measured)
    return wanted if wanted in tiles else min(tiles)


def _devices(rows: Iterable[TiledRow]) -> int:
    return len({row.device_uuid for row in rows})


def _of_problem(problem: Problem, distribution: str, rows: Sequence[TiledRow], baseline: int) -> ProblemTiles:
    by_tile = defaultdict[int, list[TiledRow]](list)
    for row in rows:
        by_tile[row.tile].append(row)
    points = tuple(_point(problem, tile, by_tile[tile]) for tile in sorted(by_tile))
    return ProblemTiles(
        problem=problem,
        distribution=distribution,
        points=points,
        devices=_devices(rows),
        baseline=_baseline(by_tile, baseline),
    )


def _point(problem: Problem, tile: int, rows: Sequence[TiledRow]) -> TilePoint:
    runtime_ms = _over_devices(rows, lambda row: row.runtime_ms)
    assert runtime_ms is not None
    assert TILE_STUDY.tile_shared_bytes is not None
    energy = _over_devices(rows, lambda row: row.energy_mj)
    shared = _whole(row.shared_bytes for row in rows)
    return TilePoint(
        tile=tile,
        rows=len(rows),
        devices=_devices(rows),
        runtime_ms=runtime_ms,
        tflops=problem.flops / runtime_ms / 1e9,
        power_w=_over_devices(rows, lambda row: row.power_w),
        energy_mj=energy,
        gflops_per_w=ratio(problem.flops / 1e6, energy),
        occupancy=_over_devices(rows, lambda row: row.occupancy),
        registers=_whole(row.registers for row in rows),
        shared_bytes=TILE_STUDY.tile_shared_bytes(problem, tile) if shared is None else shared,
        waves=_over_devices(rows, lambda row: row.waves),
        blocks_per_multiprocessor=_whole(row.blocks_per_multiprocessor for row in rows),
    )


def _over_devices(rows: Iterable[TiledRow], value: Callable[[TiledRow], float | None]) -> float | None:
    """The median over devices of their medians; None where no row has the value."""
    of_device = defaultdict[str | None, list[float]](list)
    for row in rows:
        found = value(row)
        if found is not None:
            of_device[row.device_uuid].append(found)
    return median(median(values) for values in of_device.values()) if of_device else None


def _whole(values: Iterable[int | None]) -> int | None:
    """The median as one of the values, since nothing has half a register."""
    known = [value for value in values if value is not None]
    return median_low(known) if known else None


def summarize(problems: Sequence[ProblemTiles], baseline: int) -> tuple[TileSummary, ...]:
    """Each tile over all problems."""
    tiles = sorted({point.tile for problem in problems for point in problem.points})
    return tuple(_summary(tile, problems, baseline) for tile in tiles)


def _summary(tile: int, problems: Sequence[ProblemTiles], baseline: int) -> TileSummary:
    pairs = [(problem, point) for problem in problems if (point := problem.point(tile)) is not None]
    compared = [(problem, problem.point(baseline), point) for problem, point in pairs]
    speed_ups = [base.runtime_ms / point.runtime_ms for _, base, point in compared if base is not None]
    energies = [ratio(point.energy_mj, base.energy_mj) for _, base, point in compared if base is not None]
    powers = [point.power_w for _, point in pairs if point.power_w is not None]
    return TileSummary(
        tile=tile,
        problems=len(pairs),
        fastest=sum(problem.fastest is point for problem, point in pairs),
        thriftiest=sum(problem.thriftiest is point for problem, point in pairs),
        speed_up=_mean(speed_ups),
        energy_ratio=_mean(energies),
        power_min_w=min(powers, default=None),
        power_max_w=max(powers, default=None),
    )


def _mean(ratios: Iterable[float | None]) -> float | None:
    known = [value for value in ratios if value is not None]
    return geometric_mean(known) if known else None

"""The results of a campaign as columns: one point for each configuration on each device type (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from farm.compare.statistics import Floats, Ints, medians_at
from farm.formatting import problem_text, types_of_text
from farm.gemm import PROBLEM_COLUMNS, ElementType, Problem
from farm.gpus import Gpu, find_gpu
from farm.kernels import Kernel, problem_columns, problem_of
from farm.sparsity import Sparsity

Bools = np.ndarray[Any, np.dtype[np.bool_]]

_FIGURES = ("runtime_ms", "runtime_burst_ms", "power_limited", "power_w", "energy_mj", "occupancy")


@dataclass(frozen=True, kw_only=True)
class Results:
    """One point for each configuration on each device type: medians over its rows, NaN where no row has the figure."""

    types: Sequence[str]  # device types
    problems: Sequence[Problem]
    kernels: Sequence[Kernel]
    # [points] each: the number of its type, problem and kernel.
    type: Ints
    problem: Ints
    kernel: Ints
    # The number of its rows.
    rows: Ints
    runtime_ms: Floats
    runtime_burst_ms: Floats
    power_limited: Floats  # 1 where its rows are held by the power limiter, 0 where not
    power_w: Floats
    energy_mj: Floats
    occupancy: Floats  # 0 to 1

    def __len__(self) -> int:
        return len(self.runtime_ms)

    def taken(self, which: Ints | Bools) -> Results:
        """Some of the points; types, problems and kernels keep their numbers."""
        names = ("type", "problem", "kernel", "rows", *_FIGURES)
        return replace(self, **{name: getattr(self, name)[which] for name in names})

    # --- of the problems -----------------------------------------------------------------------------

    def _of_problem(self, values: Sequence[float]) -> Floats:
        return np.asarray(values, np.float64)[self.problem] if len(values) else np.zeros(0)

    @cached_property
    def flops(self) -> Floats:
        """2·m·n·k·batch."""
        return self._of_problem([float(problem.flops) for problem in self.problems])

    @cached_property
    def intensity(self) -> Floats:
        """flop per byte of compulsory traffic."""
        return self._of_problem([problem.arithmetic_intensity for problem in self.problems])

    @cached_property
    def problem_names(self) -> list[str]:
        return [problem_text(problem_columns(problem)) for problem in self.problems]

    @cached_property
    def element_types(self) -> list[str]:
        """Those of all problems, such as `f32` or `f16:f16:f32`."""
        return sorted({types_of_text(str(problem.types)) for problem in self.problems})

    @cached_property
    def element_type(self) -> Ints:
        """Which of `element_types` each point has."""
        numbers = [self.element_types.index(types_of_text(str(problem.types))) for problem in self.problems]
        return np.array(numbers, np.int64)[self.problem]

    @cached_property
    def tflops(self) -> Floats:
        return self.flops / self.runtime_ms / 1e9

    @cached_property
    def gflops_per_w(self) -> Floats:
        """GFLOP/s per W, which is GFLOP per J: by the energy of one GEMM."""
        return self.flops / self.energy_mj / 1e6

    @cached_property
    def burst_ratio(self) -> Floats:
        """The burst time over the median time."""
        return self.runtime_burst_ms / self.runtime_ms

    # --- of the kernels --------------------------------------------------------------------------------

    @cached_property
    def kernel_names(self) -> list[str]:
        return short_names(self.kernels)

    @cached_property
    def families(self) -> list[str]:
        return sorted({kernel.family for kernel in self.kernels})

    @cached_property
    def family(self) -> Ints:
        """Which of `families` each point has."""
        return np.array([self.families.index(kernel.family) for kernel in self.kernels], np.int64)[self.kernel]

    # --- compared with the best of its problem --------------------------------------------------------------

    @cached_property
    def place(self) -> Ints:
        """A number for each problem on each device type."""
        return self.type * len(self.problems) + self.problem

    def least(self, values: Floats) -> Floats:
        """For each point the least value among the points of its problem on its device type; NaN where none has one."""
        found = np.full(len(self.types) * len(self.problems), np.inf)
        known = np.isfinite(values)
        np.minimum.at(found, self.place[known], values[known])
        found[np.isinf(found)] = np.nan
        return found[self.place]

    @cached_property
    def share_of_best(self) -> Floats:
        """The time of the problem's fastest kernel over the point's own: 1 is the fastest."""
        return self.least(self.runtime_ms) / self.runtime_ms

    @cached_property
    def fastest(self) -> Bools:
        """Whether it is the fastest of its problem: one point of each problem on each device type."""
        return self._first_of_least(self.runtime_ms)

    @cached_property
    def thriftiest(self) -> Bools:
        """Whether it takes the least energy of the points of its problem that have one."""
        return self._first_of_least(self.energy_mj)

    def _first_of_least(self, values: Floats) -> Bools:
        order = np.lexsort((np.arange(len(self)), values, self.place))
        order = order[np.isfinite(values[order])]
        first = np.ones(len(order), bool)
        first[1:] = self.place[order][1:] != self.place[order][:-1]
        found = np.zeros(len(self), bool)
        found[order[first]] = True
        return found

    @cached_property
    def on_front(self) -> Bools:
        """Whether no other kernel of its problem is as good in time and in energy, and better in one of them.

        Among points that have an energy; the others are on no front.
        """
        known = np.flatnonzero(np.isfinite(self.energy_mj))
        order = known[np.lexsort((self.energy_mj[known], self.runtime_ms[known], self.place[known]))]
        found = np.zeros(len(self), bool)
        if not len(order):
            return found
        place, time, energy = self.place[order], self.runtime_ms[order], self.energy_mj[order]
        first = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
        for begin, end in zip(first, np.r_[first[1:], len(order)], strict=True):
            times, energies = time[begin:end], energy[begin:end]
            # The same time and energy twice are both on the front, or neither.
            new = np.r_[True, (times[1:] != times[:-1]) | (energies[1:] != energies[:-1])]
            least_before = np.r_[np.inf, np.minimum.accumulate(energies[new])[:-1]]
            found[order[begin:end]] = (energies[new] < least_before)[np.cumsum(new) - 1]
        return found

    # --- compared with the card -------------------------------------------------------------------------------

    @cached_property
    def cards(self) -> list[Gpu | None]:
        """The maker's data of each device type's card."""
        return [find_gpu(device_type) for device_type in self.types]

    @cached_property
    def roof_tflops(self) -> Floats:
        """The roofline at the point's intensity (Williams, Waterman and Patterson, CACM 52, 2009); NaN where it is unknown."""
        found = np.full(len(self), np.nan)
        inputs = np.array([(str(problem.types.ab), str(problem.sparsity)) for problem in self.problems]).reshape(-1, 2)
        for number, card in enumerate(self.cards):
            if card is None:
                continue
            for name, sparsity in np.unique(inputs, axis=0):
                peak = card.peak_tflops(ElementType(name), Sparsity(sparsity))
                if peak is None:
                    continue
                of = (self.type == number) & (inputs[self.problem] == (name, sparsity)).all(axis=1)
                found[of] = np.minimum(peak, self.intensity[of] * card.memory_gb_per_s / 1e3)
        return found


def reduced(columns: Mapping[str, Any], rows: int) -> Results:
    """Points from rows.

    Args:
        columns: [rows] values of `PROBLEM_COLUMNS`, `device_type`, `family`, `parameters` (JSON text) and `_FIGURES`. Texts are
            pairs of numbers [rows] and the texts that they number.
    """
    types, type_names = columns["device_type"]
    problem, problems = _problems(columns)
    kernel, kernels = _kernels(columns)
    key = (types * max(len(problems), 1) + problem) * max(len(kernels), 1) + kernel
    found, first, of = np.unique(key, return_index=True, return_inverse=True)
    count = len(found)
    return Results(
        types=type_names,
        problems=problems,
        kernels=kernels,
        type=types[first],
        problem=problem[first],
        kernel=kernel[first],
        rows=np.bincount(of, minlength=count) if rows else np.zeros(0, np.int64),
        **{name: _medians(columns[name], of, count) for name in _FIGURES},
    )


def _medians(values: Floats, of: Ints, count: int) -> Floats:
    known = np.isfinite(values)
    return medians_at(values[known], of[known], count)


def _numbered(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """A number from 0 for each different row of the columns, and a row that has each."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, own = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return code.astype(np.int64, copy=False), first


def _problems(columns: Mapping[str, Any]) -> tuple[Ints, list[Problem]]:
    texts = ("ab", "cd", "acc", "layout", "scale", "fused", "groups", "sparsity")
    code, first = _numbered([columns[name][0] if name in texts else columns[name] for name in PROBLEM_COLUMNS])

    def made(row: int) -> Problem:
        return problem_of(
            {
                name: columns[name][1][columns[name][0][row]] if name in texts else columns[name][row]
                for name in PROBLEM_COLUMNS
            }
        )

    return code, [made(int(row)) for row in first]


def _kernels(columns: Mapping[str, Any]) -> tuple[Ints, list[Kernel]]:
    (family, families), (parameters, texts) = columns["family"], columns["parameters"]
    code, first = _numbered([family, parameters])
    return code, [
        Kernel(families[family[row]], tuple(sorted(json.loads(texts[parameters[row]]).items()))) for row in first
    ]


def short_names(kernels: Sequence[Kernel]) -> list[str]:
    """Each kernel with the parameters that vary among the kernels of its family: `cutlass(stages=2,swizzle=1)`."""
    varying = varying_parameters(kernels)
    return [
        f"{kernel.family}({','.join(f'{name}={value}' for name, value in kernel.parameters if name in varying[kernel.family])})"
        for kernel in kernels
    ]


def varying_parameters(kernels: Sequence[Kernel]) -> dict[str, dict[str, list[int]]]:
    """The parameters of each family that have several values among its kernels, with these in rising order."""
    values = dict[str, dict[str, set[int]]]()
    for kernel in kernels:
        of_family = values.setdefault(kernel.family, {})
        for name, value in kernel.parameters:
            of_family.setdefault(name, set()).add(value)
    return {
        family: {name: sorted(found) for name, found in parameters.items() if len(found) > 1}
        for family, parameters in values.items()
    }

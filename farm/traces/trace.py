"""What a trace gives: GEMMs with the number of their calls, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farm.errors import BadTrace, FarmError
from farm.gemm import INPUT_TYPES, ElementType, ElementTypes, Layout, Problem, Shape
from farm.groups import MAX_GROUPS, Groups
from farm.language_models.layer_gemm import LayerGemm

MAX_GEMMS = 100_000
"""Different GEMMs of one trace."""

SHARED = "Products of some batches share a matrix. The farm measures batches whose products have matrices of their own."
"""A remark of several formats."""

_E = ElementType
_ACCUMULATORS = {_E.F64: _E.F64, _E.I8: _E.I32}


@dataclass(frozen=True, slots=True)
class Trace:
    """The GEMMs of a trace.

    Attributes:
        format: The name of the format.
        gemms: Each with the number of its calls; `name` is the operation of the library. The most work first.
        left_out: Calls that are not in `gemms`, by reason.
        remarks: What the format does not record, and what is assumed instead.
    """

    format: str
    gemms: tuple[LayerGemm, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """What people should know, one line each."""
        yield from self.remarks
        for why, calls in self.left_out.items():
            yield f"Left out: {calls:,} {'call' if calls == 1 else 'calls'}: {why}"


class TraceFormat(Protocol):
    """A format of traces."""

    @property
    def name(self) -> str:
        """For people, as in `TunableOp`."""

    @property
    def looks_for(self) -> str:
        """What is a GEMM in it, for the error of a file without any."""


class LogFormat(TraceFormat, Protocol):
    """A format of lines, among which others may stand."""

    def begins(self, line: str) -> bool:
        """Whether a line is one of this format."""

    def read(self, lines: Lines, found: Gemms) -> None:
        """Reads all lines. Raises `BadTrace`."""


class Lines:
    """The lines of a file from the first one of its format, with the number of the last one that was read."""

    def __init__(self, name: str, lines: Iterable[str], *, before: int = 0) -> None:
        self.name = name
        self.number = before
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            yield line.rstrip("\r")

    def wrong(self, why: str) -> BadTrace:
        """The error of the line that was read last."""
        return BadTrace(where=f"{self.name}:{self.number}", why=why)


class Gemms:
    """Collects the GEMMs of a trace."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Problem]] = Counter()
        self._left_out: Counter[str] = Counter()
        self._remarks: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(
        self,
        name: str,
        shape: tuple[int, int, int],
        types: tuple[ElementType, ElementType, ElementType],
        layout: Layout,
        *,
        accumulator: ElementType | None = None,
        calls: int = 1,
        **rest: object,
    ) -> None:
        """Adds calls of one product, or leaves them out where the farm has no such problem.

        Args:
            name: The operation.
            shape: m, n and k.
            types: Those of A, B and D.
            layout: How A and B lie in memory.
            accumulator: Its type; by default the usual one of the type of A.
            calls: How many.
            rest: Other fields of the problem.
        """
        a, b, d = types
        ab = next((one for one in INPUT_TYPES if (one.of_a, one.of_b) == (a, b)), None)
        d = _E.F32 if d is _E.TF32 else d
        if 0 in shape:
            self.leave_out("a matrix without elements", calls)
        elif ab is None:
            self.leave_out(f"{name} of A in {a} and B in {b}", calls)
        else:
            try:
                kinds = ElementTypes(ab, d, accumulator or _ACCUMULATORS.get(ab, _E.F32))
                problem = Problem(Shape(*shape), kinds, layout, **rest)  # type: ignore[arg-type]  # fields by name
            except FarmError as error:
                self.leave_out(f"{name}: {error}", calls)
                return
            self._counts[name, problem] += calls
            if len(self._counts) > MAX_GEMMS:
                raise BadTrace(
                    where=name, why=f"the trace has more than {MAX_GEMMS:,} different GEMMs; record fewer steps"
                )

    def leave_out(self, why: str, calls: int = 1) -> None:
        """Counts calls that are not read."""
        if why not in self._left_out and len(self._left_out) >= 20:
            why = "other reasons"
        self._left_out[why] += calls

    def remark(self, text: str) -> None:
        """Notes what is assumed."""
        self._remarks[text] = None

    def trace(self, name: str) -> Trace:
        """What was collected."""
        order = sorted(self._counts, key=lambda key: (-key[1].flops * self._counts[key], key[0], str(key[1])))
        gemms = tuple(LayerGemm(name, problem, float(self._counts[name, problem])) for name, problem in order)
        return Trace(name, gemms, dict(self._left_out.most_common()), tuple(self._remarks))

    @property
    def reasons(self) -> str:
        """Why calls were left out, in words; empty without any."""
        return "; ".join(f"{calls:,} of {why}" for why, calls in self._left_out.most_common(5))


def transposed(strides: tuple[int, int]) -> bool:
    """Whether a matrix whose rows and columns have these strides lies transposed in memory."""
    return strides[0] == 1 != strides[1]


def layout_of(a_transposed: bool, b_transposed: bool) -> Layout:
    """The layout with these letters."""
    return Layout(("t" if a_transposed else "n") + ("t" if b_transposed else "n"))


def balanced_groups(a: Sequence[int], b: Sequence[int], found: Gemms) -> Groups:
    """The groups of the rows of A [m, k], with B [groups, k, n], of a recorder that has no rows of each. Raises `ValueError`."""
    if len(a) != 2 or len(b) != 3 or a[1] != b[1]:
        raise ValueError("groups that are not of the rows of A")
    if not 1 <= b[0] <= MAX_GROUPS:
        raise ValueError(f"{b[0]:,} groups")
    found.remark("The rows of each group are not recorded: they are taken as balanced.")
    each, more = divmod(a[0], b[0])
    return Groups.of(each + (group < more) for group in range(b[0]))

"""PyTorch's profiler: the JSON of `export_chrome_trace`, recorded with `record_shapes=True`.

Each operation that computes a product is an event with the sizes, strides and types of its inputs. Operations that call others,
as `aten::linear` calls `aten::addmm`, contain the events of these in time; only operations of `_READ` are counted, and of two in one
another the outer one. Kernels that are replayed by a CUDA graph have no such events. Source: traces of PyTorch 2.13.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.errors import BadTrace
from farm.fusion import Fusion
from farm.gemm import ElementType
from farm.scale import Scale
from farm.traces.torch_types import NUMBERED, parsed_scale, scale_of, torch_type
from farm.traces.trace import SHARED, Gemms, balanced_groups, layout_of, transposed

MAX_EVENTS = 2_000_000
"""Events of products in one trace."""

_MAX_EVENT = 2**24
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_LIST = re.compile(r"\s*\[\s*\{")
_JSON = re.compile(r'\s*(?:\{|\[\s*\{)\s*"')
_OTHER = re.compile(r"::\w*(?:mm|gemm|mv|moe)_?$|^triton_tem_\w*mm")
"""Operations that multiply matrices too, by their names: those of other libraries, and kernels that Inductor made."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of an operation, by position."""

    sizes: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[Any]
    values: Sequence[Any]

    def matrix(self, place: int) -> list[int]:
        """Its sizes. Raises `ValueError` where it is none."""
        return _whole(self.sizes, place)

    def lies_transposed(self, place: int) -> bool:
        strides = _whole(self.strides, place)[-2:]
        return len(strides) == 2 and transposed((strides[0], strides[1]))

    def type(self, place: int) -> ElementType:
        """Raises `ValueError` for one that the farm has not."""
        return torch_type(str(self.types[place]) if place < len(self.types) else "")

    def value(self, place: int, default: float) -> float:
        """A number. Raises `ValueError`."""
        text = str(self.values[place]) if place < len(self.values) else ""
        return float(text) if text else default

    def numbered(self, place: int) -> ElementType | None:
        """A type that is given by its number; None if it is not given. Raises `ValueError`."""
        number = str(self.values[place]) if place < len(self.values) else ""
        if number and number not in NUMBERED:
            raise ValueError(f"the output type number {number[:10]}")
        return NUMBERED.get(number)

    def given(self, place: int) -> bool:
        return place < len(self.types) and bool(self.types[place])


def _whole(values: Sequence[Any], place: int) -> list[int]:
    found = values[place] if place < len(values) else None
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise ValueError("an input without sizes")
    return found


@dataclass(frozen=True, slots=True)
class _Product:
    """What is common to the operations: A [batch, m, k] and B [batch, k, n]."""

    inputs: _Inputs
    a: int
    b: int

    @property
    def sizes(self) -> tuple[list[int], int, int, int]:
        """The batch, m, n and k. Raises `ValueError`."""
        a, b = self.inputs.matrix(self.a), self.inputs.matrix(self.b)
        if not 2 <= len(a) == len(b) <= 3:
            raise ValueError(f"A {a} and B {b}, which are no two matrices")
        (*batch, m, k), (*others, inner, n) = a, b
        if inner != k or batch != others:
            raise ValueError(f"A {a} and B {b}, which do not fit")
        return batch, m, n, k

    def add(self, name: str, calls: int, found: Gemms, *, d: ElementType, **rest: Any) -> None:
        batch, m, n, k = self.sizes
        if batch > [1] and any(_whole(self.inputs.strides, place)[:1] == [0] for place in (self.a, self.b)):
            found.remark(SHARED)
        found.add(
            name,
            (m, n, k),
            (self.inputs.type(self.a), self.inputs.type(self.b), d),
            layout_of(self.inputs.lies_transposed(self.a), self.inputs.lies_transposed(self.b)),
            calls=calls,
            batch=batch[0] if batch else 1,
            **rest,
        )


_RECIPES = {"[0]": "tensor", "[1]": "row", "[4]": "1x128", "[5]": "128x128"}
"""Scale factors by the number of `torch.nn.functional.ScalingType`."""

_Add = Callable[[str, _Inputs, int, Gemms], None]


def _mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    _Product(inputs, 0, 1).add(name, calls, found, d=inputs.numbered(2) or inputs.type(0))


def _int_mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    _Product(inputs, 0, 1).add(name, calls, found, d=ElementType.I32)


def _addmm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    beta, alpha = inputs.value(3, 1.0), inputs.value(4, 1.0)
    added, strides = inputs.matrix(0), _whole(inputs.strides, 0)
    vector = len(added) == 1 or (len(added) == 2 and strides[0] == 0)
    if vector and beta not in (0.0, 1.0):
        raise ValueError("a bias with a factor")
    biased = vector and beta == 1.0
    fused = Fusion.BIAS if biased else Fusion.NONE
    if name == "_addmm_activation":
        word = "gelu" if inputs.values[5:6] == ["True"] else "relu"
        fused = Fusion.parse(f"bias+{word}" if biased else word)
    _Product(inputs, 1, 2).add(
        name, calls, found, d=inputs.type(1), fused=fused, alpha=alpha, beta=0.0 if vector else beta
    )


def _scaled_mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    d = inputs.numbered(6) or inputs.type(0)
    _add_scaled(name, _Product(inputs, 0, 1), calls, found, d=d, bias=4, scales=(2, 3))


def _scaled_mm_v2(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    of_a, of_b = (_RECIPES.get(str(inputs.values[place])) if place < len(inputs.values) else None for place in (3, 6))
    scale = None if of_a is None or of_b is None else parsed_scale(of_a, of_b)
    if scale is None:
        raise ValueError("scale factors that the farm has not")
    fused = Fusion.BIAS if inputs.given(8) else Fusion.NONE
    d = inputs.numbered(9) or inputs.type(0)
    _Product(inputs, 0, 1).add(name, calls, found, d=d, scale=scale, fused=fused)


def _cutlass_scaled_mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    _add_scaled(name, _Product(inputs, 1, 2), calls, found, d=inputs.type(0), bias=5, scales=(3, 4))


def _add_scaled(
    name: str, product: _Product, calls: int, found: Gemms, *, d: ElementType, bias: int, scales: tuple[int, int]
) -> None:
    inputs, (_, m, n, k) = product.inputs, product.sizes
    of_a, of_b = (inputs.matrix(place) for place in scales)
    # vLLM has those of the columns of B one below the other, as its checkpoints.
    scale = scale_of(of_a, of_b, m=m, n=n, k=k) or scale_of(of_a, of_b[::-1], m=m, n=n, k=k)
    if scale is None or any(inputs.type(place) is not ElementType.F32 for place in scales):
        raise ValueError("scale factors that the farm has not")
    product.add(name, calls, found, d=d, scale=scale, fused=Fusion.BIAS if inputs.given(bias) else Fusion.NONE)


def _grouped_mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    _add_grouped(name, inputs, calls, found, d=inputs.type(0), scale=Scale.NONE)


def _scaled_grouped_mm(name: str, inputs: _Inputs, calls: int, found: Gemms) -> None:
    _add_grouped(name, inputs, calls, found, d=inputs.numbered(7) or ElementType.BF16, scale=Scale.ROW)


def _add_grouped(name: str, inputs: _Inputs, calls: int, found: Gemms, *, d: ElementType, scale: Scale) -> None:
    rows, weights = inputs.matrix(0), inputs.matrix(1)
    groups = balanced_groups(rows, weights, found)
    found.add(
        name,
        (rows[0], weights[2], rows[1]),
        (inputs.type(0), inputs.type(1), d),
        layout_of(False, inputs.lies_transposed(1)),
        calls=calls,
        scale=scale,
        groups=groups,
    )


_READ: Mapping[str, _Add] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::_int_mm": _int_mm,
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::baddbmm": _addmm,
    "aten::baddbmm_": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::_scaled_mm": _scaled_mm,
    "aten::_scaled_mm_v2": _scaled_mm_v2,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _scaled_grouped_mm,
    "_C::cutlass_scaled_mm": _cutlass_scaled_mm,
}
"""The operations that are read. The last one is vLLM's."""


class Profiler:
    """See the module."""

    name = "PyTorch profiler"
    looks_for = "a PyTorch profiler's events of aten::mm, aten::addmm, aten::bmm, aten::_scaled_mm or aten::_grouped_mm with sizes (record with record_shapes=True, and without CUDA graphs)"

    def begins(self, head: str) -> bool:
        """Whether a file with that beginning is JSON."""
        return _JSON.match(head) is not None

    def read(self, name: str, chunks: Iterable[str], found: Gemms) -> None:
        """Reads a file. Raises `BadTrace`."""
        calls = _Calls()
        for line, event in _events(name, chunks):
            if isinstance(event, dict) and event.get("ph") == "X":
                try:
                    calls.note(event)
                except ValueError as error:
                    raise BadTrace(where=f"{name}:{line}", why=str(error)) from None
        calls.add_to(found)


def _events(name: str, chunks: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The events of a file, which may be larger than the memory, each with the number of its line."""
    decoder, source, line = json.JSONDecoder(), iter(chunks), 1
    text = next(source, "")
    start = _LIST.match(text) or _EVENTS.search(text)
    while start is None:
        more = next(source, None)
        if more is None:
            raise BadTrace(where=name, why="it is JSON without traceEvents, so no trace of a profiler")
        line += text[:-64].count("\n")
        text = text[-64:] + more
        start = _EVENTS.search(text)
    place = start.end() - (1 if start.re is _LIST else 0)
    line += text.count("\n", 0, place)
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            line += text[place] == "\n"
            place += 1
        if text[place : place + 1] == "]":
            return
        try:
            event, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:  # a ValueError alone for a number with too many digits
            more = next(source, None) if len(text) - place < _MAX_EVENT else None
            if more is not None:
                text, place = text[place:] + more, 0
                continue
            if isinstance(error, json.JSONDecodeError):
                line += text.count("\n", place, error.pos)
            raise BadTrace(where=f"{name}:{line}", why="it is not JSON from here on, or it is cut off") from None
        yield line, event
        line += text.count("\n", place, end)
        place = end


@dataclass(frozen=True, slots=True)
class _Call:
    """An event: where it was, and what it computes by its number in a list; None for another operation."""

    thread: tuple[str, str]
    begin: float
    end: float
    product: int | None
    name: str


class _Calls:
    """The events of operations that multiply matrices."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._inputs: list[tuple[str, _Inputs | None]] = []
        self._calls: list[_Call] = []
        self._steps: set[str] = set()

    def note(self, event: Mapping[str, Any]) -> None:
        """Keeps an event of such an operation. Raises `ValueError`."""
        name = event.get("name")
        if isinstance(name, str) and name.startswith("ProfilerStep#"):
            self._steps.add(name)
        if not isinstance(name, str) or event.get("cat") == "kernel" or not (name in _READ or _OTHER.search(name)):
            return
        begin, length = _time(event, "ts"), _time(event, "dur")
        number = self._number(name, event.get("args")) if name in _READ else None
        thread = str(event.get("pid")), str(event.get("tid"))
        self._calls.append(_Call(thread, begin, begin + length, number, name))
        if len(self._calls) > MAX_EVENTS:
            raise ValueError(f"there are more than {MAX_EVENTS:,} products; record fewer steps")

    def _number(self, name: str, args: object) -> int:
        """The number of an operation with these inputs."""
        fields = args if isinstance(args, dict) else {}
        lists = [fields.get(one) for one in ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")]
        key = name, json.dumps(lists)
        if key not in self._numbers:
            self._numbers[key] = len(self._inputs)
            known = isinstance(lists[0], list) and isinstance(lists[2], list)
            of_each = [one if isinstance(one, list) else [] for one in lists]
            self._inputs.append((name, _Inputs(*of_each) if known else None))
        return self._numbers[key]

    def add_to(self, found: Gemms) -> None:
        """Adds the outermost operations that are read."""
        if len(self._steps) > 1:
            found.remark(f"Counts are those of {len(self._steps):,} steps of the profiler together.")
        counts: dict[int | str, int] = {}
        for call in self._outermost():
            key = call.name if call.product is None else call.product
            counts[key] = counts.get(key, 0) + 1
        for key, calls in counts.items():
            if isinstance(key, str):
                found.leave_out(f"{key} is not read", calls)
                continue
            name, inputs = self._inputs[key]
            short = name.rsplit("::", 1)[-1].removesuffix("_")
            try:
                if inputs is None:
                    raise ValueError("no sizes; record with record_shapes=True")
                _READ[name](short, inputs, calls, found)
            except ValueError as error:
                found.leave_out(f"{name}: {error}", calls)

    def _outermost(self) -> Iterator[_Call]:
        """Those that are read and in no other such one, and others that neither contain nor are in one."""
        ordered = sorted(self._calls, key=lambda call: (call.thread, call.begin, -call.end))
        around: _Call | None = None  # the last one that is read
        waiting: list[_Call] = []  # others that may contain one that is read
        for call in ordered:
            if around is not None and call.thread == around.thread and call.end <= around.end:
                continue
            closed = [one for one in waiting if one.thread != call.thread or one.end <= call.begin]
            yield from closed
            waiting = [one for one in waiting if one not in closed]
            if call.product is None:
                if not waiting:  # of two in one another the outer one
                    waiting.append(call)
            else:
                waiting = []
                around = call
                yield call
        yield from waiting


def _time(event: Mapping[str, Any], name: str) -> float:
    found = event.get(name, 0)
    try:
        time = float(found)
    except (TypeError, ValueError, OverflowError):
        time = math.nan
    if not math.isfinite(time):
        raise ValueError(f"{name} of an event of {str(event.get('name'))[:40]} is {str(found)[:20]!r}, not a time")
    return time

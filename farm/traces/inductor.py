"""Inductor's log of matrix products, as torch.compile writes it with TORCH_LOGS=+inductor.

| lines | have | when |
| --- | --- | --- |
| `Tuned aten.mm: m=8, n=96, k=64, mat1_dtype=…` | one for each product of a compiled graph | with TORCH_LOGS=+inductor |
| `AUTOTUNE mm(8x64, 64x96)`, `strides: …`, `dtypes: …` | sizes, strides and types of a product that is autotuned | always with max-autotune |
| the table `Overview info of inductor aten mms` | the count of each product so far | with TORCH_LOGS=+inductor |

Counts are those of compiled graphs: a graph that runs ten times has its products once. Source: logs of PyTorch 2.13.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from farm.fusion import Fusion
from farm.gemm import ElementType
from farm.scale import Scale
from farm.traces.torch_types import scale_of, torch_type
from farm.traces.trace import Gemms, Lines, balanced_groups, layout_of, transposed

_TUNED = re.compile(
    r"Tuned aten\.(?P<name>\w+)(?:\.\w+)?: (?:batch(?:_size)?=(?P<batch>\w+), )?m=(?P<m>\w+), n=(?P<n>\w+), k=(?P<k>\w+), "
    r"(?:mat1_dtype=(?P<a>[\w.]+), mat2_dtype=(?P<b>[\w.]+), )?.*?Layout\('[^']*', (?P<d>[\w.]+)"
)
_GROUPED = re.compile(
    r"Tuned aten\._(?P<scaled>scaled_)?grouped_mm\S*: mat1_shape=\[(?P<a>[\d, ]+)\], mat2_shape=\[(?P<b>[\d, ]+)\], "
    r"mat1_dtype=(?P<of_a>[\w.]+), mat2_dtype=(?P<of_b>[\w.]+), .*?Layout\('[^']*', (?P<d>[\w.]+)"
)
_AUTOTUNE = re.compile(r"AUTOTUNE (\w+)\(([^)]*)\)")
_SIZES = re.compile(r"\d{1,12}(?:x\d{1,12})*", re.ASCII)
_STRIDES = re.compile(r"\[([\d, ]*)\]")
_ROW = re.compile(r"aten\.(\w+)(?:\.\w+)? +\| +(\d+|-) +\| +(\d+) +\| +(\d+) +\| +(\d+) +\| +(\d+)\s*$", re.ASCII)
_TABLE = "Overview info of inductor aten mms"

_NO_STRIDES = (
    "Inductor logs strides of products that it autotunes alone: B of others is taken as transposed, as weights are."
)

_FIRST = {"mm": 0, "bmm": 0, "int_mm": 0, "scaled_mm": 0, "addmm": 1, "baddbmm": 1}
"""The operations, with the place of A among their matrices."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A product as all lines have it."""

    name: str
    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class _Details:
    """What only the block of a product that is autotuned has."""

    a_transposed: bool = False
    b_transposed: bool = True
    adds_matrix: bool = False
    scale: Scale | None = Scale.TENSOR
    types: tuple[str, ...] = ()
    known: bool = False


_Types = tuple[ElementType, ElementType, ElementType]


class Inductor:
    """See the module."""

    name = "Inductor log"
    looks_for = "Inductor's lines, as Tuned aten.mm: m=8, n=96, k=64 or AUTOTUNE mm(8x64, 64x96) (record with TORCH_LOGS=+inductor)"

    def begins(self, line: str) -> bool:
        return "Tuned aten." in line or "AUTOTUNE " in line or _TABLE in line

    def read(self, lines: Lines, found: Gemms) -> None:
        read = _Read()
        for line in lines:
            try:
                read.line(line, found)
            except ValueError:
                raise lines.wrong("it has a number that is not understood; the line is damaged") from None
        read.add_to(found)


def _add_grouped(grouped: re.Match[str], found: Gemms) -> None:
    """Adds a product in groups of the rows of A, for which there are no strides: B is taken as transposed."""
    a, b = ([int(size) for size in grouped[matrix].split(",")] for matrix in ("a", "b"))
    try:
        types = tuple(torch_type(grouped[name]) for name in ("of_a", "of_b", "d"))
        groups = balanced_groups(a, b, found)
    except ValueError as error:
        found.leave_out(f"aten._grouped_mm of {error}")
        return
    scale = Scale.ROW if grouped["scaled"] else Scale.NONE
    found.remark(_NO_STRIDES)
    shape = a[0], b[2], a[1]
    found.add("grouped_mm", shape, (types[0], types[1], types[2]), layout_of(False, True), groups=groups, scale=scale)


class _Read:
    """What the lines of a log have."""

    def __init__(self) -> None:
        self._tuned: Counter[tuple[_Key, _Types]] = Counter()
        self._blocks: dict[_Key, _Details] = {}
        self._runs: Counter[_Key] = Counter()
        self._table: dict[_Key, int] = {}
        self._open: tuple[_Key, str, list[str]] | None = None  # the block whose strides and types may follow

    def line(self, line: str, found: Gemms) -> None:
        if "Tuned aten." in line:
            if tuned := _TUNED.search(line):
                self._add_tuned(tuned, found)
            elif grouped := _GROUPED.search(line):
                _add_grouped(grouped, found)
            else:
                found.leave_out(f"{line[line.index('Tuned aten.') :].split(':', maxsplit=1)[0][:60]} is not read")
        elif "AUTOTUNE " in line and (block := _AUTOTUNE.search(line)):
            self._begin(block[1].removeprefix("_").removesuffix("_v2"), block[2], found)
        elif self._open is not None and "strides: [" in line:
            self._add_strides(line)
        elif self._open is not None and "dtypes: " in line:
            key = self._open[0]
            types = tuple(text.strip() for text in line.partition("dtypes: ")[2].split(","))
            self._blocks[key] = replace(self._blocks[key], types=types)
        elif " | " in line and (row := _ROW.search(line)):
            name, batch, m, n, k, count = row.groups()
            key = _Key(
                name.removeprefix("_").removesuffix("_v2"), 1 if batch == "-" else int(batch), int(m), int(n), int(k)
            )
            self._table[key] = int(count)  # each table has the counts of all graphs before

    def _add_tuned(self, tuned: re.Match[str], found: Gemms) -> None:
        name, sizes = (
            tuned["name"].removeprefix("_").removesuffix("_v2"),
            [tuned[one] or "1" for one in ("batch", "m", "n", "k")],
        )
        if name not in _FIRST:
            found.leave_out(f"aten.{tuned['name']} is not read")
        elif not all(size.isdigit() and len(size) < 13 for size in sizes):
            found.leave_out(f"aten.{tuned['name']} with sizes that are no numbers; compile with dynamic=False")
        else:
            # Without types of inputs, as before PyTorch 2.7, they are those of the output.
            types = (tuned["a"] or tuned["d"], tuned["b"] or tuned["d"], tuned["d"])
            try:
                a, b, d = (torch_type(one) for one in types)
            except ValueError as error:
                found.leave_out(f"aten.{tuned['name']} of {error}")
                return
            self._tuned[_Key(name, *map(int, sizes)), (a, b, d)] += 1

    def _begin(self, name: str, inside: str, found: Gemms) -> None:
        self._open = None
        sizes = [text.strip() for text in inside.split(",")]
        first = _FIRST.get(name)
        matrices = [] if first is None else sizes[first : first + 2]
        shapes = [[int(one) for one in text.split("x")] for text in matrices if _SIZES.fullmatch(text)]
        if first is None or len(shapes) != 2 or not 2 <= len(shapes[0]) == len(shapes[1]) <= 3:
            if first is not None or name.endswith("mm"):
                found.leave_out(f"AUTOTUNE {name}({inside[:60]}) is not read")
            return
        (*batch, m, k), (*_, n) = shapes
        key = _Key(name, batch[0] if batch else 1, m, n, k)
        self._runs[key] += 1
        scale: Scale | None = Scale.TENSOR
        if name == "scaled_mm":
            scales = [[int(one) for one in text.split("x")] if _SIZES.fullmatch(text) else [] for text in sizes[2:4]]
            scale = scale_of(*scales, m=m, n=n, k=k) if len(scales) == 2 else None
        self._blocks.setdefault(key, _Details(scale=scale))
        self._open = key, name, sizes

    def _add_strides(self, line: str) -> None:
        assert self._open is not None
        key, name, _ = self._open
        strides = [[int(one) for one in text.split(",") if one.strip()] for text in _STRIDES.findall(line)]
        first = _FIRST[name]
        if len(strides) < first + 2 or any(len(one) < 2 for one in strides[first : first + 2]):
            return
        (*_, a0, a1), (*_, b0, b1) = strides[first : first + 2]
        self._blocks[key] = replace(
            self._blocks[key],
            a_transposed=transposed((a0, a1)),
            b_transposed=transposed((b0, b1)),
            adds_matrix=first == 1 and len(strides[0]) > 1 and strides[0][-2] != 0,
            known=True,
        )

    def add_to(self, found: Gemms) -> None:
        if self._tuned:
            for (key, types), calls in self._tuned.items():
                self._add(key, types, calls, found)
            return
        for key, runs in self._runs.items():
            names = self._blocks[key].types
            first = _FIRST[key.name]
            if len(names) < first + 2:
                found.leave_out(
                    "AUTOTUNE without dtypes, as before PyTorch 2.7; record with TORCH_LOGS=+inductor", runs
                )
                continue
            calls = self._table.get(key, runs)
            try:
                a, b = (torch_type(one) for one in names[first : first + 2])
            except ValueError as error:
                found.leave_out(f"{key.name} of {error}", calls)
                continue
            d = ElementType.I32 if a is ElementType.I8 else a
            if key.name == "scaled_mm":
                d = ElementType.BF16
                found.remark("Inductor does not log the type of scaled products: it is taken as bf16.")
            self._add(key, (a, b, d), calls, found)
        for key in self._table.keys() - self._runs.keys():
            found.leave_out("the table of products has no types; record with TORCH_LOGS=+inductor", self._table[key])

    def _add(self, key: _Key, types: _Types, calls: int, found: Gemms) -> None:
        details = self._blocks.get(key, _Details())
        if not details.known:
            found.remark(_NO_STRIDES)
        if key.name == "scaled_mm" and key not in self._blocks:
            found.remark(
                "Inductor does not log scale factors of products that it does not autotune: taken as one for each tensor."
            )
        scale = details.scale if key.name == "scaled_mm" else Scale.NONE
        if scale is None:
            found.leave_out("scaled_mm with scale factors that the farm has not", calls)
            return
        adds = key.name in ("addmm", "baddbmm")
        adds_matrix = adds and (details.adds_matrix or key.name == "baddbmm")
        found.add(
            key.name,
            (key.m, key.n, key.k),
            types,
            layout_of(details.a_transposed, details.b_transposed),
            calls=calls,
            batch=key.batch,
            beta=1.0 if adds_matrix else 0.0,
            fused=Fusion.BIAS if adds and not adds_matrix else Fusion.NONE,
            scale=scale,
        )

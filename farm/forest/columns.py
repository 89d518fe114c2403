"""The raw columns that a model takes, what a model knows about their values, and how gaps are filled.

One row is one configuration. `m, n, k, ab, family` are required. `cd, acc, layout, alpha, beta, batch, scale, fused,
groups, sparsity` have the defaults of the farm's own configurations. Every kernel parameter is a column; a gap means the default of the row's family,
or nothing where the family has no such parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from .group_sizes import GroupSizes

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("m", "n", "k", "ab", "family")
WITH_DEFAULT = ("cd", "acc", "layout", "alpha", "beta", "batch", "scale", "fused", "groups", "sparsity")
OUTPUTS = ("runtime_ms", "runtime_burst_ms", "power_w", "energy_mj", "tflops")

EXTENTS = ("m", "n", "k")
TEXTS = ("family", "ab", "cd", "acc", "layout", "scale", "fused", "groups", "sparsity")
"""The columns of texts."""

_TYPES = ("ab", "cd", "acc", "scale", "fused", "groups", "sparsity")
"""Those that `types_text` takes."""

NONE = "none"
"""No scale factors, no fused operations, no groups, or a B without known zeros."""

SPARSE = "2:4"
"""The sparsity of B: two of four elements along k are kept, each with an index of two bits."""

GROUPED = "grouped"
"""In the texts of types: the product is in groups of rows, of any number and sizes."""

_FIXED = {"alpha": 1.0, "beta": 0.0, "batch": 1.0}
_FIXED_TEXTS = {"layout": "nn", "scale": NONE, "fused": NONE, "groups": NONE, "sparsity": NONE}
"""What replaces a gap of these, in every family."""

OF_KIND = ("ab_bytes", "cd_bytes", "acc_bytes", "a_transposed", "b_transposed")
"""Numbers that follow from the texts of a row: bytes of an element, and whether an operand is transposed, as 0 and 1."""

_BLOCKS = ("a_lines", "a_inner", "b_lines", "b_inner")
"""Extents of the blocks of A and B that have one scale factor each: rows of A or columns of B, and elements along k."""

BIAS = "bias"
"""The fused operation that reads a vector, and the number that says where it is fused, as 0 and 1."""

GATE = "gate"
"""The fused operation that halves the columns of D, and the number that says where it is fused, as 0 and 1."""

BYTES_OF_B = "b_bytes"
"""The number with the bytes of an element of B: those of A but for weights of fewer bits."""

IS_SPARSE = "sparse"
"""The number that says where B is sparse, as 0 and 1."""

_OF_GROUPS = ("groups", "active_groups", "largest_group")
"""Numbers of groups, of those with rows, and of rows of the largest. Without groups all are 1: there is one matrix B."""

_NO_BLOCKS = (np.inf,) * len(_BLOCKS)
"""Without scale factors: no matrix has a part of such a block."""

_MAX_ALIGNMENT = 256
"""Wider than any vector load or tile edge that a kernel can profit from."""

_LARGEST = 2**31 - 1
"""Of extents and kernel parameters."""

FROM_ONE = frozenset(
    {
        *("threads", "tile", "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "cluster_m", "cluster_n"),
        *("swizzle", "split_k", "group_m", "warps"),
    }
)
"""Kernel parameters that are at least 1. The others are whole numbers from 0."""

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Text:
    """A column of few different texts: `values[codes[row]]`."""

    codes: Array
    values: tuple[str, ...]

    def map(self, of: Callable[[str], float]) -> Floats:
        """A number for each row, by its text."""
        return np.array([of(value) for value in self.values], "float64")[self.codes]

    def is_in(self, wanted: Container[str]) -> Bools:
        return np.array([value in wanted for value in self.values], bool)[self.codes]

    def position(self, among: Sequence[str]) -> Array:
        """The position of each row's text among these, 0 where it is none of them."""
        return np.array([among.index(value) if value in among else 0 for value in self.values], "intp")[self.codes]

    def part(self, rows: slice) -> Text:
        return Text(self.codes[rows], self.values)

    @classmethod
    def joined(cls, columns: Sequence[Text], write: Callable[..., str]) -> Text:
        """One text for each row, which `write` makes of those in the columns."""
        if len(columns[0].codes) == 1:
            return _single(write(*(column.values[column.codes[0]] for column in columns)))
        widths = tuple(max(1, len(column.values)) for column in columns)
        import pandas as pd

        codes, found = pd.factorize(np.ravel_multi_index(tuple(column.codes for column in columns), widths))
        parts = (
            [column.values[index] for index in picked.tolist()]
            for column, picked in zip(columns, np.unravel_index(found, widths), strict=True)
        )
        return cls(codes, tuple(write(*each) for each in zip(*parts, strict=True)))


_FIRST: Array = np.zeros(1, "intp")


def _single(value: str) -> Text:
    """A column of one row."""
    return Text(_FIRST, (value,))


def types_text(
    ab: str, cd: str, acc: str, scale: str = NONE, fused: str = NONE, groups: str = NONE, sparsity: str = NONE
) -> str:
    """`f8e4m3:bf16:f32 scale=row fused=bias grouped`: element types, with scale factors, fused operations, groups and sparsity where
    there are any.

    What was measured of a family is known by these texts, so a product with scale factors is something else than a plain one. The
    sizes of groups are not part of it.
    """
    added = (("" if scale == NONE else f" scale={scale}"), ("" if fused == NONE else f" fused={fused}"))
    grouped, sparse = "" if groups == NONE else f" {GROUPED}", "" if sparsity == NONE else f" sparsity={sparsity}"
    return f"{ab}:{cd}:{acc}{''.join(added)}{grouped}{sparse}"


def types_columns(types: str, m: int) -> dict[str, str]:
    """The columns that make a text of `types_text`, with all `m` rows in one group where it has groups."""
    elements, *added = types.split(" ")
    columns = dict(zip(("ab", "cd", "acc"), elements.split(":"), strict=True))
    named = (f"groups={m}" if each == GROUPED else each for each in added)
    return columns | dict(each.split("=", 1) for each in named)


def _kind_text(
    family: str, ab: str, cd: str, acc: str, layout: str, scale: str, fused: str, groups: str, sparsity: str
) -> str:
    """As in `Configurations.kinds`, of `TEXTS`."""
    return f"{family}:{types_text(ab, cd, acc, scale, fused, groups, sparsity)}:{layout}"


def is_table(frame: Mapping[str, Any] | pd.DataFrame) -> TypeGuard[pd.DataFrame]:
    """Whether it is a table of pandas. Pandas is not imported for the check, because a caller with a table has imported it."""
    # Not by pandas' own type: another thread may be importing pandas at this moment.
    return not isinstance(frame, Mapping)


def stacked(columns: Sequence[Any], rows: int) -> Floats:
    """[columns, rows], to be worked on at once: for few rows, numpy's calls take longer than their work."""
    return np.array(columns, "float64").reshape(len(columns), rows)


@dataclass(frozen=True)
class Configurations:
    """Completed rows: numbers as float64 [rows], NaN where a family has no such parameter; texts without gaps."""

    # By column, and those of `OF_KIND`, `_BLOCKS`, `BIAS`, `GATE`, `_OF_GROUPS`, `IS_SPARSE` and `BYTES_OF_B`.
    numbers: Mapping[str, Floats]
    texts: Mapping[str, Text]
    # Family, types as `types_text` writes them, and layout of each row: "family:ab:cd:acc:layout".
    kinds: Text
    # Positions of the family, the type of A and B, the scale factors and the fused operations among those of the vocabulary.
    families: Array
    types: Array
    scales: Array
    fusions: Array
    # [parameters, rows]: those of the families that were trained, in the order of `Vocabulary.trained`.
    parameters: Floats
    # [`OF_KIND`, rows].
    of_kind: Floats
    # None where no row has groups.
    sizes: GroupSizes | None = None

    def __len__(self) -> int:
        return len(self.numbers["m"])

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def parameter(self, name: str) -> Floats:
        """A kernel parameter, all NaN where no row can have it."""
        return self.numbers[name] if name in self.numbers else np.full(len(self), np.nan)

    @property
    def columns_of_d(self) -> Floats:
        """n, or half of it where there is a gate."""
        return self.numbers["n"] / (1.0 + self.numbers[GATE])

    @property
    def grouped(self) -> Bools:
        """Which rows have groups."""
        return np.zeros(len(self), bool) if self.sizes is None else self.sizes.grouped

    def row_tiles(self, edges: Floats | float) -> Floats:
        """How many tiles of so many rows cover A and D, [..., rows] as broadcast. With groups, a tile has rows of one group."""
        found: Floats = np.ceil(self.numbers["m"] / edges)
        return found if self.sizes is None else np.where(self.grouped, self.sizes.tiles(np.asarray(edges)), found)

    @cached_property
    def kernels(self) -> Array:
        """A number for the parameters of each row, uint64: see `whole_keys`."""
        return whole_keys(np.zeros(len(self), "uint64"), self.parameters)

    @cached_property
    def alignments(self) -> Floats:
        """The largest power of two, at most `_MAX_ALIGNMENT`, that divides the leading dimension of A, B and C: [3, rows].

        A leading dimension is how far rows (or columns, of a transposed operand) lie apart in memory, in elements: it decides
        how wide loads can be, which m alone does not unless A is transposed.
        """
        m, n, k = (self.numbers[name] for name in EXTENTS)
        a = np.where(self.numbers["a_transposed"] > 0, m, k)
        b = np.where(self.numbers["b_transposed"] > 0, k, n)
        whole = np.array([a, b, self.columns_of_d], "int64") | _MAX_ALIGNMENT
        return (whole & -whole).astype("float64")

    def parts(self, rows: int) -> Iterator[Configurations]:
        """These in pieces of at most so many rows; no rows are one piece."""
        if len(self) <= rows:
            yield self
            return
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            yield Configurations(
                {name: values[some] for name, values in self.numbers.items()},
                {name: text.part(some) for name, text in self.texts.items()},
                self.kinds.part(some),
                self.families[some],
                self.types[some],
                self.scales[some],
                self.fusions[some],
                self.parameters[:, some],
                self.of_kind[:, some],
                None if self.sizes is None else self.sizes.part(some),
            )


@dataclass(frozen=True)
class FamilyKnowledge:
    """What the training table holds of one kernel family. Types are as `types_text` writes them."""

    # Parameter -> the value that stands for a gap.
    parameters: Mapping[str, float]
    # Types that were measured -> the layouts that they were measured in.
    layouts: Mapping[str, tuple[str, ...]]
    # The kernels that were measured: values in the order of `parameters`.
    kernels: tuple[tuple[float, ...], ...]
    # Types -> which of the kernels were measured in them, by their positions.
    kernels_by_types: Mapping[str, tuple[int, ...]]
    # The types with measured power.
    powered: tuple[str, ...]
    # The types that were measured in batches of more than one product.
    batched: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(f"{types} in {', '.join(layouts)}" for types, layouts in self.layouts.items())


@dataclass(frozen=True)
class Vocabulary:
    """Every value of a text column that a model can predict, and the columns of its interface."""

    families: Mapping[str, FamilyKnowledge]
    # Every kernel parameter of every family, trained or not: the columns of the interface.
    parameters: tuple[str, ...]
    element_bytes: Mapping[str, int]
    # ab -> (cd, acc) that usually go with it: the defaults of those columns.
    usual_output: Mapping[str, tuple[str, str]]
    # Scale factors -> the extents of their blocks, as in `_BLOCKS`; the largest extent for a whole matrix, and 0 for one without factors.
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # ab -> bytes of an element of B, where B has fewer bits than A.
    bytes_of_b: Mapping[str, float] = field(default_factory=dict)
    # Fused operations -> each of them.
    fusions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # "family:ab:cd:acc", the types as in `FamilyKnowledge` -> representatives of the problems that were measured, int64 [problems, 9]: see `reach`.
    problems: Mapping[str, Array] = field(default_factory=dict, compare=False)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Every column that a model reads, in the order of its signature."""
        return (*REQUIRED, *WITH_DEFAULT, *self.parameters)

    def to_json(self) -> dict[str, Any]:
        """Everything but `problems`, which are arrays."""
        return {
            "families": {name: asdict(known) for name, known in self.families.items()},
            "parameters": list(self.parameters),
            "element_bytes": dict(self.element_bytes),
            "usual_output": {ab: list(types) for ab, types in self.usual_output.items()},
            "scales": {scale: list(blocks) for scale, blocks in self.scales.items()},
            "bytes_of_b": dict(self.bytes_of_b),
            "fusions": {fused: list(operations) for fused, operations in self.fusions.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], problems: Mapping[str, Array]) -> Vocabulary:
        families = {
            name: FamilyKnowledge(
                known["parameters"],
                {types: tuple(layouts) for types, layouts in known["layouts"].items()},
                tuple(tuple(kernel) for kernel in known["kernels"]),
                {types: tuple(which) for types, which in known["kernels_by_types"].items()},
                tuple(known["powered"]),
                tuple(known["batched"]),
            )
            for name, known in data["families"].items()
        }
        usual = {ab: (cd, acc) for ab, (cd, acc) in data["usual_output"].items()}
        scales = {scale: tuple(blocks) for scale, blocks in data["scales"].items()}
        fusions = {fused: tuple(operations) for fused, operations in data["fusions"].items()}
        of_b = data["bytes_of_b"]
        return cls(families, tuple(data["parameters"]), data["element_bytes"], usual, scales, of_b, fusions, problems)

    def measured(self) -> dict[str, Any]:
        """What of each family was measured, for programs that look for kernels: layouts by types, the types that were measured in
        batches, parameters, the values of these in each kernel, and by types the positions of the kernels that were measured
        in them."""
        return {
            name: {
                "layouts": {types: list(layouts) for types, layouts in known.layouts.items()},
                "batched": list(known.batched),
                "parameters": list(known.parameters),
                "kernels": [[int(value) for value in kernel] for kernel in known.kernels],
                "kernels_by_types": {types: list(which) for types, which in known.kernels_by_types.items()},
            }
            for name, known in self.families.items()
        }

    def known(self, rows: Configurations) -> Bools:
        """Which rows have only values of family, types, scale factors, fused operations, groups or none, and layout that were measured
        together, and a batch only where some was measured of these in any layout."""
        return rows.kinds.is_in(self._measured) & self._batch_known(rows)

    def _batch_known(self, rows: Configurations) -> Bools:
        single: Bools = rows["batch"] == 1
        return single if single.all() else single | rows.kinds.is_in(self._batched)

    def powered(self, rows: Configurations) -> Bools:
        """Which of the known rows have a family and types with measured power."""
        return rows.kinds.is_in(self._powered)

    def kernels(self, rows: Configurations) -> Array:
        """A number for the kernel of each row, uint64: its family and all its parameters."""
        found: Array = rows.families.astype("uint64") + rows.kernels
        return found

    @cached_property
    def family_names(self) -> tuple[str, ...]:
        """Of the vocabulary, in the order of `Configurations.families`."""
        return tuple(self.families)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Element types of A and B."""
        return tuple(self.usual_output)

    @cached_property
    def scale_names(self) -> tuple[str, ...]:
        """In the order of `Configurations.scales`."""
        return (NONE, *self.scales)

    @cached_property
    def _blocks(self) -> Floats:
        """[`_BLOCKS`, scales]: those of each of `scale_names`."""
        blocks = np.array([_NO_BLOCKS, *self.scales.values()]).T
        return np.where(blocks == 0, np.inf, blocks)

    @cached_property
    def _added(self) -> Floats:
        """Which of `fusion_names` add a bias, and which have a gate, as 0 and 1: [2, fusions]."""
        has = [[name in self.fusions.get(fused, ()) for fused in self.fusion_names] for name in (BIAS, GATE)]
        return stacked(has, len(self.fusion_names))

    @cached_property
    def fusion_names(self) -> tuple[str, ...]:
        """In the order of `Configurations.fusions`."""
        return (NONE, *self.fusions)

    @cached_property
    def operations(self) -> tuple[tuple[str, ...], Floats]:
        """The names of the operations that can be fused, and which of them each of `fusion_names` has: [operations, fusions]."""
        names = tuple(dict.fromkeys(operation for each in self.fusions.values() for operation in each))
        has = [[name in self.fusions.get(fused, ()) for fused in self.fusion_names] for name in names]
        return names, stacked(has, len(self.fusion_names))

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """The parameters of the families that were trained."""
        return tuple(
            name for name in self.parameters if any(name in known.parameters for known in self.families.values())
        )

    @cached_property
    def _measured(self) -> frozenset[str]:
        """Kinds, as in `Configurations`."""
        return frozenset(
            f"{name}:{types}:{layout}"
            for name, known in self.families.items()
            for types, layouts in known.layouts.items()
            for layout in layouts
        )

    @cached_property
    def _powered(self) -> frozenset[str]:
        """The kinds with measured power, in any layout."""
        return self._in_any_layout({name: known.powered for name, known in self.families.items()})

    @cached_property
    def _batched(self) -> frozenset[str]:
        """The kinds that were measured in batches, in any layout."""
        return self._in_any_layout({name: known.batched for name, known in self.families.items()})

    def _in_any_layout(self, types_by_family: Mapping[str, Sequence[str]]) -> frozenset[str]:
        return frozenset(
            f"{name}:{types}:{layout}"
            for name, of_family in types_by_family.items()
            for types in of_family
            for layout in self.families[name].layouts[types]
        )

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        """The columns of numbers: extents come first, then those of `_FIXED`, then `trained`."""
        return (*EXTENTS, *_FIXED, *self.trained, *(name for name in self.parameters if name not in self.trained))

    @cached_property
    def _defaults(self) -> Floats:
        """[numbers, families]: what stands for a gap, NaN where nothing does."""
        families = [_FIXED | dict(known.parameters) for known in self.families.values()]
        return stacked([[family.get(name, np.nan) for family in families] for name in self._numbers], len(families))

    @cached_property
    def _least(self) -> Floats:
        """[numbers, 1]: the least value of those that are whole numbers, minus infinity for the others."""
        least = {**dict.fromkeys(_FIXED, -np.inf), **dict.fromkeys((*EXTENTS, "batch", *FROM_ONE), 1.0)}
        return stacked([[least.get(name, 0.0)] for name in self._numbers], 1)

    def complete(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """The raw columns of `frame`, checked, with gaps filled.

        Raises ValueError naming the row, the column, and what the model knows.
        """
        rows = self.read(frame)
        self._check_known(rows, _labels(frame))
        return rows

    def read(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """As `complete`, of rows whose family, types and layout need not have been measured together."""
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            which = f"columns {', '.join(missing)} are" if len(missing) > 1 else f"column {missing[0]} is"
            raise ValueError(f"the {which} missing; the model needs {', '.join(REQUIRED)}")
        labels = _labels(frame)
        if is_table(frame) and len(frame) == 1:
            # A single value of a table takes as long to get as a column of it; the whole row takes a fifth of all of them.
            frame = {str(name): [value] for name, value in zip(frame, frame.to_numpy(object)[0], strict=True)}
        texts = {name: _text(frame, name, labels) for name in ("ab", "family")}
        _check_one_of(texts["family"], self.families, "family", labels)
        _check_one_of(texts["ab"], self.usual_output, "ab", labels)
        for position, name in enumerate(("cd", "acc")):
            usual = partial(self._usual, texts["ab"], position)
            texts[name] = _text(frame, name, labels, usual)
        for name, default in _FIXED_TEXTS.items():
            texts[name] = _text(frame, name, labels, partial(_constant, default, len(labels)))
        sizes = self._sizes(frame, texts, labels)
        of_kinds = texts if sizes is None else texts | {"groups": Text(sizes.grouped.astype("intp"), (NONE, GROUPED))}
        kinds = Text.joined([of_kinds[name] for name in TEXTS], _kind_text)
        among = {"family": self.family_names, "ab": self.types, "scale": self.scale_names, "fused": self.fusion_names}
        families, types, scales, fusions = (texts[name].position(values) for name, values in among.items())
        numbers = self._completed(frame, families, labels)
        of_kind = stacked(self._of_kind(texts), len(labels))
        sparse = texts["sparsity"].is_in((SPARSE,)).astype("float64")
        added = (
            *self._blocks.take(scales, axis=1),
            *self._added.take(fusions, axis=1),
            *_of_groups(sizes, len(labels)),
            sparse,
            self._bytes_of_b(texts["ab"]),
        )
        names = (*self._numbers, *OF_KIND, *_BLOCKS, BIAS, GATE, *_OF_GROUPS, IS_SPARSE, BYTES_OF_B)
        columns = dict(zip(names, (*numbers, *of_kind, *added), strict=True))
        if sizes is not None:
            _check_groups(sizes, columns, frame, labels)
        first = len(EXTENTS) + len(_FIXED)
        parameters = numbers[first : first + len(self.trained)]
        return Configurations(columns, texts, kinds, families, types, scales, fusions, parameters, of_kind, sizes)

    def _sizes(
        self, frame: Mapping[str, Any] | pd.DataFrame, texts: Mapping[str, Text], labels: Any
    ) -> GroupSizes | None:
        groups = texts["groups"]

        def refuse(bad: Bools, must: str) -> None:
            _refuse(bad[None], frame, ["groups"], labels, must)

        return GroupSizes.of(groups.codes, groups.values, NONE, refuse)

    def _usual(self, ab: Text, position: int) -> Text:
        """The output type or the accumulator that usually goes with each row's type, by its position in `usual_output`."""
        return Text(ab.codes, tuple(self.usual_output[each][position] for each in ab.values))

    def _of_kind(self, texts: Mapping[str, Text]) -> list[Floats]:
        """`OF_KIND` of each row."""
        bytes_of = [texts[name].map(lambda each: self.element_bytes.get(each, np.nan)) for name in ("ab", "cd", "acc")]
        layout = texts["layout"]
        return [*bytes_of, layout.map(lambda each: each[:1] == "t"), layout.map(lambda each: each[1:2] == "t")]

    def _bytes_of_b(self, ab: Text) -> Floats:
        return ab.map(lambda each: self.bytes_of_b.get(each, self.element_bytes.get(each, np.nan)))

    def _completed(self, frame: Mapping[str, Any] | pd.DataFrame, families: Array, labels: Any) -> Floats:
        """The numbers of each row, checked, with gaps filled: [`_numbers`, rows]."""
        numbers = self._defaults.take(families, axis=1)
        places = [place for place, name in enumerate(self._numbers) if name in frame]
        names = [self._numbers[place] for place in places]
        given = _numbers(frame, names, labels)
        _refuse(np.isinf(given), frame, names, labels, "a finite number")
        least = self._least[places]
        whole = (given >= least) & (given <= _LARGEST) & (given == np.floor(given))
        _refuse(~whole[: len(EXTENTS)], frame, names, labels, f"a whole number from 1 to {_LARGEST}")
        default, gaps = numbers[places], np.isnan(given)
        idle = (np.isnan(default) & ~gaps)[len(EXTENTS) :]
        if idle.any():
            column, row = (np.argwhere(idle)[0] + (len(EXTENTS), 0)).tolist()
            which = self.family_names[families[row]]
            has = ", ".join(self.families[which].parameters) or "none"
            raise ValueError(
                f"row {labels[row]}: {which} has no parameter {names[column]}, yet the row says {given[column, row]:g}; "
                f"it has: {has}"
            )
        strange = ~(whole | gaps | np.isneginf(least))
        if strange.any():
            first = least[np.argwhere(strange)[0][0]].item()
            _refuse(strange, frame, names, labels, f"a whole number from {first:g} to {_LARGEST}")
        numbers[places] = np.where(gaps, default, given)
        return numbers

    def _check_known(self, rows: Configurations, labels: Any) -> None:
        strange = ~self.known(rows)
        if not strange.any():
            return
        row = int(np.argmax(strange))
        texts = {name: text.values[text.codes[row]] for name, text in rows.texts.items()}
        family = self.families[texts["family"]]
        if rows.kinds.values[rows.kinds.codes[row]] in self._measured:
            raise ValueError(
                f"row {labels[row]}: batch is {rows['batch'][row]:g}, and this version has learned from {self.batches}; "
                "measure such batches first, or ask for batch 1"
            )
        raise ValueError(
            f"row {labels[row]}: the model was trained on {texts['family']} with {family}, not on "
            f"{types_text(*(texts[name] for name in _TYPES))} in {texts['layout']}; measure such configurations first"
        )

    @property
    def batches(self) -> str:
        """The families and types that were measured in batches, as the end of a sentence."""
        learned = [f"{name} with {', '.join(known.batched)}" for name, known in self.families.items() if known.batched]
        return f"batches of {'; '.join(learned)} alone" if learned else "no batches"


def whole_keys(group: Array, numbers: Floats) -> Array:
    """One number for each row of a group and whole numbers, [rows] and [numbers, rows]; different for different rows."""
    with np.errstate(invalid="ignore"):
        whole = np.where(np.isnan(numbers), -1.0, numbers).astype("int64").view("uint64")
    found: Array = group.astype("uint64") + _powers(len(numbers)) @ whole
    return found


@cache
def _powers(count: int) -> Array:
    """Of `_KEY`, to the power of 1 and more."""
    return np.array([pow(_KEY, power, 1 << 64) for power in range(1, count + 1)], "uint64")


_KEY = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


def _labels(frame: Mapping[str, Any] | pd.DataFrame) -> Any:
    """What rows are called in messages; as many as there are."""
    return frame.index if is_table(frame) else range(len(frame["m"]))


def _given(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Any:
    """The unchanged column. Raises ValueError if it has more or fewer values than rows."""
    column = frame[name]
    if len(column) != len(labels):
        raise ValueError(f"{name} has {len(column)} values, for {len(labels)} rows")
    return column


def _numbers(frame: Mapping[str, Any] | pd.DataFrame, names: Sequence[str], labels: Any) -> Floats:
    """The columns as numbers, [columns, rows]. Raises ValueError where a value is none."""
    if len(labels) == 1:
        # Usually all are numbers, which are found out to be so at once.
        given = np.array([_given(frame, name, labels) for name in names])
        if given.dtype.kind in "iuf":
            return given.astype("float64", copy=False)
    return stacked([_number(frame, name, labels) for name in names], len(labels))


def _number(frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any) -> Array:
    """The column as numbers. Raises ValueError where a value is none."""
    given = np.asarray(_given(frame, name, labels))
    if given.dtype.kind in "iuf":
        return given
    import pandas as pd

    parsed: Any = pd.to_numeric(pd.Series(given), errors="coerce")
    values: Floats = parsed.to_numpy("float64", na_value=np.nan)
    _refuse((np.isnan(values) & ~pd.isna(given))[None], frame, [name], labels, "a finite number")
    return values


def _refuse(bad: Bools, frame: Mapping[str, Any] | pd.DataFrame, names: Sequence[str], labels: Any, must: str) -> None:
    """Raises ValueError where a value is bad, [columns, rows], saying what it must be."""
    if bad.any():
        column, row = np.argwhere(bad)[0].tolist()
        value = np.asarray(frame[names[column]])[row]
        shown = _shown(str(value)) if isinstance(value, str) else value
        raise ValueError(f"row {labels[row]}: {names[column]} is {shown}; it must be {must}")


def _shown(text: str) -> str:
    """In quotes, with at most 60 characters of it: groups may have thousands."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _of_groups(sizes: GroupSizes | None, rows: int) -> Sequence[Floats]:
    """`_OF_GROUPS` of each row."""
    if sizes is None:
        return [np.ones(rows)] * len(_OF_GROUPS)
    return [np.where(sizes.grouped, each, 1.0) for each in (sizes.number, sizes.active, sizes.largest)]


def _check_groups(
    sizes: GroupSizes, numbers: Mapping[str, Floats], frame: Mapping[str, Any] | pd.DataFrame, labels: Any
) -> None:
    """Raises ValueError where groups do not fit the rest of their row."""
    m, batch = numbers["m"], numbers["batch"]
    for bad, why in (
        (sizes.rows != m, "they have {rows:,.0f} rows together, and m is {m:,.0f}"),
        (batch != 1, "a batch has no groups, and batch is {batch:g}"),
        (numbers["a_transposed"] > 0, "the rows of a group lie together, so the layout is nn or nt"),
    ):
        strange = np.flatnonzero(bad & sizes.grouped)
        if len(strange):
            row = int(strange[0])
            because = why.format(rows=sizes.rows[row], m=m[row], batch=batch[row])
            given = _shown(str(np.asarray(frame["groups"])[row]))
            raise ValueError(f"row {labels[row]}: groups {given} do not work: {because}")


def _text(
    frame: Mapping[str, Any] | pd.DataFrame, name: str, labels: Any, usual: Callable[[], Text] | None = None
) -> Text:
    """The column with gaps filled by what is usual."""
    if name not in frame:
        if usual is None:
            raise ValueError(f"row {labels[0]}: {name} is missing")
        return usual()
    given = _given(frame, name, labels)
    if not is_table(frame):
        given = given if isinstance(given, list) else np.asarray(given, dtype=object)
        if len(given) == 1 and isinstance(given[0], str):
            return _single(str(given[0]))  # a tenth of the time that the general way takes
    import pandas as pd

    codes, found = pd.factorize(np.asarray(given, dtype=object) if isinstance(given, list) else given)
    values = tuple(str(value) for value in found)
    gaps = codes < 0
    if not gaps.any():
        return Text(codes, values)
    if usual is None:
        raise ValueError(f"row {labels[int(np.argmax(gaps))]}: {name} is missing")
    default = usual()
    return Text(np.where(gaps, default.codes + len(values), codes), (*values, *default.values))


def _constant(value: str, rows: int) -> Text:
    """A column with one value."""
    return Text(np.zeros(rows, "intp"), (value,))


def _check_one_of(text: Text, known: Mapping[str, Any], name: str, labels: Any) -> None:
    if not known.keys() >= set(text.values):
        row = int(np.argmin(text.is_in(known)))
        raise ValueError(
            f"row {labels[row]}: {name} is {text.values[text.codes[row]]!r}, which the model has not seen; "
            f"it knows {', '.join(known)}"
        )

"""What a model knows about the values of raw columns: it completes rows, and refuses those that it has not learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import (
    BIAS,
    BLOCKS,
    BYTES_OF_B,
    EXTENTS,
    FIXED,
    FIXED_TEXTS,
    FROM_ONE,
    GATE,
    GROUPED,
    IS_SPARSE,
    NONE,
    OF_GROUPS,
    OF_KIND,
    REQUIRED,
    SPARSE,
    TEXTS,
    TYPES,
    WITH_DEFAULT,
    kind_text,
    types_text,
)
from .completed_rows import Configurations
from .group_sizes import GroupSizes
from .numeric import Array, Bools, Floats, stacked
from .raw_values import check_one_of, is_table, labels_of, numbers_in, quoted, refuse_where, text_in
from .text_columns import Text, constant

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 2**31 - 1
"""Of extents and kernel parameters."""

_NO_BLOCKS = (np.inf,) * len(BLOCKS)
"""Without scale factors: no matrix has a part of such a block."""


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
    # Scale factors -> the extents of their blocks, as in `BLOCKS`; the largest extent for a whole matrix, and 0 for one without factors.
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
        """[`BLOCKS`, scales]: those of each of `scale_names`."""
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
        """The columns of numbers: extents come first, then those of `FIXED`, then `trained`."""
        return (*EXTENTS, *FIXED, *self.trained, *(name for name in self.parameters if name not in self.trained))

    @cached_property
    def _defaults(self) -> Floats:
        """[numbers, families]: what stands for a gap, NaN where nothing does."""
        families = [FIXED | dict(known.parameters) for known in self.families.values()]
        return stacked([[family.get(name, np.nan) for family in families] for name in self._numbers], len(families))

    @cached_property
    def _least(self) -> Floats:
        """[numbers, 1]: the least value of those that are whole numbers, minus infinity for the others."""
        least = {**dict.fromkeys(FIXED, -np.inf), **dict.fromkeys((*EXTENTS, "batch", *FROM_ONE), 1.0)}
        return stacked([[least.get(name, 0.0)] for name in self._numbers], 1)

    def complete(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """The raw columns of `frame`, checked, with gaps filled.

        Raises ValueError naming the row, the column, and what the model knows.
        """
        rows = self.read(frame)
        self._check_known(rows, labels_of(frame))
        return rows

    def read(self, frame: Mapping[str, Any] | pd.DataFrame) -> Configurations:
        """As `complete`, of rows whose family, types and layout need not have been measured together."""
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            which = f"columns {', '.join(missing)} are" if len(missing) > 1 else f"column {missing[0]} is"
            raise ValueError(f"the {which} missing; the model needs {', '.join(REQUIRED)}")
        labels = labels_of(frame)
        if is_table(frame) and len(frame) == 1:
            # A single value of a table takes as long to get as a column of it; the whole row takes a fifth of all of them.
            frame = {str(name): [value] for name, value in zip(frame, frame.to_numpy(object)[0], strict=True)}
        texts = {name: text_in(frame, name, labels) for name in ("ab", "family")}
        check_one_of(texts["family"], self.families, "family", labels)
        check_one_of(texts["ab"], self.usual_output, "ab", labels)
        for position, name in enumerate(("cd", "acc")):
            usual = partial(self._usual, texts["ab"], position)
            texts[name] = text_in(frame, name, labels, usual)
        for name, default in FIXED_TEXTS.items():
            texts[name] = text_in(frame, name, labels, partial(constant, default, len(labels)))
        sizes = self._sizes(frame, texts, labels)
        of_kinds = texts if sizes is None else texts | {"groups": Text(sizes.grouped.astype("intp"), (NONE, GROUPED))}
        kinds = Text.joined([of_kinds[name] for name in TEXTS], kind_text)
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
        names = (*self._numbers, *OF_KIND, *BLOCKS, BIAS, GATE, *OF_GROUPS, IS_SPARSE, BYTES_OF_B)
        columns = dict(zip(names, (*numbers, *of_kind, *added), strict=True))
        if sizes is not None:
            _check_groups(sizes, columns, frame, labels)
        first = len(EXTENTS) + len(FIXED)
        parameters = numbers[first : first + len(self.trained)]
        return Configurations(columns, texts, kinds, families, types, scales, fusions, parameters, of_kind, sizes)

    def _sizes(
        self, frame: Mapping[str, Any] | pd.DataFrame, texts: Mapping[str, Text], labels: Any
    ) -> GroupSizes | None:
        groups = texts["groups"]

        def refuse(bad: Bools, must: str) -> None:
            refuse_where(bad[None], frame, ["groups"], labels, must)

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
        given = numbers_in(frame, names, labels)
        refuse_where(np.isinf(given), frame, names, labels, "a finite number")
        least = self._least[places]
        whole = (given >= least) & (given <= _LARGEST) & (given == np.floor(given))
        refuse_where(~whole[: len(EXTENTS)], frame, names, labels, f"a whole number from 1 to {_LARGEST}")
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
            refuse_where(strange, frame, names, labels, f"a whole number from {first:g} to {_LARGEST}")
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
            f"{types_text(*(texts[name] for name in TYPES))} in {texts['layout']}; measure such configurations first"
        )

    @property
    def batches(self) -> str:
        """The families and types that were measured in batches, as the end of a sentence."""
        learned = [f"{name} with {', '.join(known.batched)}" for name, known in self.families.items() if known.batched]
        return f"batches of {'; '.join(learned)} alone" if learned else "no batches"


def _of_groups(sizes: GroupSizes | None, rows: int) -> Sequence[Floats]:
    """`OF_GROUPS` of each row."""
    if sizes is None:
        return [np.ones(rows)] * len(OF_GROUPS)
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
            given = quoted(str(np.asarray(frame["groups"])[row]))
            raise ValueError(f"row {labels[row]}: groups {given} do not work: {because}")

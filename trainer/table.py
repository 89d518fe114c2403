"""The training table: checked, and reduced to one row per configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from farm.both_times import time_of
from farm.errors import MissingColumns, TooFewMeasurements
from farm.forest.columns import BIAS, GATE, GROUPED, NONE, REQUIRED, TEXTS, WITH_DEFAULT
from farm.forest.numeric import Array, Bools
from farm.forest.reach import MAX_PROBLEMS, positions, problems_of
from farm.forest.vocabulary import FamilyKnowledge, Vocabulary
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS, INPUT_TYPES, MAX_EXTENT, PROBLEM_COLUMNS, ElementType, ElementTypes
from farm.kernels import FAMILIES
from farm.measurement import Source
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName
from farm.scale import Scale
from trainer.choice import CHOSEN, FAMILY, chosen
from trainer.row_keys import Ints, distinct, ordered_key, ranks

MEASURED = ("runtime_ms", "runtime_burst_ms", "power_w", "energy_mj")
"""What models learn of a configuration: medians over its repeats, NaN where a column was not measured."""

LEARNED_FROM = (
    *("device_type", "source"),
    *(name for name in PROBLEM_COLUMNS if name not in ADDED_COLUMNS),
    *("family", "parameters", "runtime_ms", "power_w", "energy_mj"),
)
"""The columns that decide what a model learns: those it needs, and those that its table's hash covers. Older tables lack
`ADDED_COLUMNS`: see `with_added_columns`."""

PROBLEM = ["m", "n", "k", "ab", "layout", *ADDED_COLUMNS]
"""What makes two rows those of one problem."""

NEED_CONFIGURATIONS = 12
NEED_SHAPES = 4
"""Below these, a model evaluated on held-out shapes would be evaluated on almost nothing."""


UNTRUSTED = tuple(family.name for family in FAMILIES.values() if family.untrusted)
"""Families whose rows no model learns from: the parameters of a user's kernel mean what its source makes of them."""


def check_training_table(table: pd.DataFrame, device_type: str, left_out: Mapping[str, int] | None = None) -> None:
    """`left_out` are rows of other protocols, which the message names. Raises `MissingColumns`, and `TooFewMeasurements` where a model could not be evaluated on held-out shapes."""
    missing = [name for name in LEARNED_FROM if name not in table]
    if missing:
        raise MissingColumns(path="the training table", missing=", ".join(missing), found=", ".join(table.columns))
    rows, shapes = len(configurations(table)), len(np.unique(held_out_together(table)))
    if rows < NEED_CONFIGURATIONS or shapes < NEED_SHAPES:
        raise TooFewMeasurements(
            device_type=device_type,
            rows=rows,
            shapes=shapes,
            need_rows=NEED_CONFIGURATIONS,
            need_shapes=NEED_SHAPES,
            others=_of_weights(table) + _others(device_type, left_out or {}),
        )


def held_out_together(frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The number of each row's shape (m, n, k), in any batch: rows of one number are held out together.

    Where products in groups have n and k, all rows with these have one number, with every m, any groups and none. The ranks of one
    mixture of experts differ by a few rows in m, so they would be nearly the same problem in different folds.
    """
    groups = with_added_columns(frame)["groups"]
    key = frame[["m", "n", "k"]]
    if (groups != NONE).any():
        of_weights = (groups != NONE).groupby([key["n"], key["k"]]).transform("any")
        key = key.assign(m=key["m"].where(~of_weights, 0))
    return np.asarray(key.groupby(["m", "n", "k"], sort=True, dropna=False).ngroup(), "intp")


def _of_weights(table: pd.DataFrame) -> str:
    grouped = with_added_columns(table)["groups"] != NONE
    return " Products in groups are one shape for each n and k, with every m." if grouped.any() else ""


def _others(device_type: str, left_out: Mapping[str, int]) -> str:
    if not left_out:
        return ""
    rows = ", ".join(f"{count:,} of {name}" for name, count in left_out.items())
    return (
        f" Rows of other protocols are left out ({rows}); `farm train {device_type} --protocol NAME` learns from them."
    )


def protocols_of(table: pd.DataFrame) -> pd.Series:
    """The protocol of each row. Rows of tables that do not say it are the farm's, and unknown where they were imported."""
    if "protocol" in table and not table["protocol"].isna().any():
        return table["protocol"].astype("object")
    imported = (table["source"] == Source.IMPORTED).to_numpy() if "source" in table else np.zeros(len(table), bool)
    unsaid = pd.Series(np.where(imported, UNKNOWN_PROTOCOL, str(ProtocolName.FARM)), table.index, "object")
    return table["protocol"].astype("object").fillna(unsaid) if "protocol" in table else unsaid


def of_one_protocol(table: pd.DataFrame, wanted: str | None = None) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of one protocol, and the number of rows of each other one. These are left out: their times are other quantities.

    It is the wanted one. Without one it is the farm's where there are rows of it, and otherwise the one with most rows.
    """
    protocols = protocols_of(table)
    rows = {str(name): int(count) for name, count in protocols.value_counts().items()}
    usual = min(rows, key=lambda name: (name != ProtocolName.FARM, -rows[name], name), default=str(ProtocolName.FARM))
    chosen = wanted or usual
    others = {name: rows[name] for name in sorted(rows) if name != chosen}
    return _rows(table, protocols == chosen).assign(protocol=chosen), others


def protocol_of(table: pd.DataFrame) -> str:
    """The protocol of a table of one protocol, or of what `configurations` makes of it."""
    return str(protocols_of(table.head(1)).iloc[0]) if len(table) else str(ProtocolName.FARM)


def chosen_of(table: pd.DataFrame) -> list[tuple[float, ...]]:
    """The facts of each row about the kernel that a library chose: `CHOSEN`."""
    own = (table["family"] == FAMILY).to_numpy()
    if "details" not in table or not own.any():
        return [chosen(None)] * len(table)
    codes, details = distinct(table["details"].where(own, None))
    found = [chosen(each) for each in details]
    return [found[code] for code in codes.tolist()]


def with_added_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `ADDED_COLUMNS`, where rows that do not say them are as usual: one product, without scale factors, fused
    operations, groups and sparsity."""
    added = {
        name: (table[name].fillna(usual).astype(int) if isinstance(usual, int) else _filled(table[name], usual))
        if name in table
        else usual
        for name, usual in ADDED_COLUMNS.items()
    }
    return table.assign(**added)


def _filled(column: pd.Series, usual: str) -> pd.Series:
    """A column of texts without gaps."""
    return column.astype("object").fillna(usual)


def with_parameter_columns(table: pd.DataFrame, names: Sequence[str] | None = None) -> pd.DataFrame:
    """The table with one float64 column for each kernel parameter instead of `parameters` (mappings, or JSON text).

    Args:
        names: the parameters; None: every one that models learn from.
    """
    codes, kernels = _kernels(table)
    columns = {name: kernels[name].to_numpy()[codes] for name in (parameter_names() if names is None else names)}
    return table.drop(columns=["parameters"]).assign(**columns)


def _kernels(table: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """The number of each row's kernel parameters [rows], and one float64 column for each parameter [kernels, parameters]."""
    codes, values = distinct(table["parameters"])
    given = [_mapping(value) for value in values]
    columns = {name: np.array([row.get(name) for row in given], "float64") for name in parameter_names()}
    return codes, pd.DataFrame(columns)


def _mapping(value: Any) -> Mapping[str, Any]:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, Mapping) else {}


def parameter_names() -> tuple[str, ...]:
    """Every kernel parameter that models learn from, in the order of the families."""
    learned = (family for name, family in FAMILIES.items() if name not in UNTRUSTED)
    return tuple(dict.fromkeys(parameter.name for family in learned for parameter in family.parameters))


def kernel_columns(configured: pd.DataFrame) -> list[str]:
    """The columns of such a table that say which kernel ran: the family, and its parameters."""
    return ["family", *(name for name in parameter_names() if name in configured)]


def configurations(table: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration, in a fixed order: raw columns, and the medians of time, power and energy.

    Repeats are collapsed first, so that a configuration weighs the same however often it was measured, and never
    stands on both sides of a fold. Those of a card that was throttled are left out before: see `throttled`. `device_uuid` is the
    card that measured it; empty where several did, or where the table does not say. Where the table has `details`, the columns of
    `trainer.choice.CHOSEN` say what a library chose. The table is of one protocol: see `of_one_protocol`.
    """
    table = _rows(table, ~table["family"].isin(UNTRUSTED))
    protocol = protocol_of(table)
    codes, kernels = _kernels(table)
    plain = with_added_columns(table)[[*REQUIRED, *WITH_DEFAULT]]
    of_kernels = ordered_key(ranks(kernels[name]) for name in kernels)
    key = ordered_key([*(ranks(plain[name]) for name in plain), (of_kernels[codes], len(kernels))])
    wide = table[[name for name in _SAME_CONDITIONS if name in table]].assign(
        configuration=key, **{name: table[name].astype("float64") if name in table else np.nan for name in MEASURED}
    )
    burst_ms = wide["runtime_ms" if time_of(protocol) == "burst" else "runtime_burst_ms"]
    # Repeats with a burst time may be others than those with the median runtime: the ratio is of one row.
    wide["runtime_burst_ms"] = burst_ms / wide["runtime_ms"]
    kept = np.flatnonzero(~throttled(wide, ["configuration"]))
    wide = wide.take(kept) if len(kept) < len(wide) else wide
    grouped = wide.groupby("configuration", sort=True)
    reduced = grouped[[*MEASURED]].median()
    reduced["runtime_burst_ms"] *= reduced["runtime_ms"]
    cards = _only_cards(wide["device_uuid"], wide["configuration"]) if "device_uuid" in wide else ""
    reduced = reduced.assign(repeats=grouped.size(), device_uuid=cards, protocol=protocol)
    if "details" in table:
        # Of the first repeat that has it, because libraries choose the same kernel for the same product.
        own = kept[(table["family"].take(kept) == FAMILY).to_numpy()]
        facts = pd.DataFrame(chosen_of(table[["family", "details"]].take(own)), columns=[*CHOSEN], dtype="float64")
        reduced[[*CHOSEN]] = facts.groupby(key[own]).first().reindex(reduced.index)
    first = kept[np.unique(wide["configuration"], return_index=True)[1]]
    raw = {
        name: plain[name].take(first).astype(object).infer_objects() if name in TEXTS else plain[name].take(first)
        for name in plain
    }
    raw |= {name: kernels[name].take(codes[first]) for name in kernels}
    return pd.DataFrame({name: column.array for name, column in raw.items()}).join(reduced.reset_index(drop=True))


def _rows(table: pd.DataFrame, which: pd.Series) -> pd.DataFrame:
    """Some rows of a table. All rows are the table itself: a copy may not fit into memory."""
    return table if which.all() else table[which]


def _only_cards(cards: pd.Series, configuration: pd.Series) -> Any:
    """The card of each configuration that one card alone measured, and otherwise an empty text [configurations]."""
    codes, names = distinct(cards)
    known = pd.Series(np.where(pd.isna(names)[codes], np.nan, codes)).groupby(configuration.to_numpy())
    lowest, highest = known.min(), known.max()
    return ["" if one != other else str(names[int(one)]) for one, other in zip(lowest, highest, strict=True)]


SLOWED = 0.15
"""Share by which a repeat may take longer than the fastest tenth of its configuration's: more is not noise, but a card that was
throttled, or that something else used. Chosen on GPPerf's repeats (`docs/models.md`)."""

_SAME_CONDITIONS = ("device_uuid", "l2", "distribution", "clock_policy")
"""What repeats must have in common for their times to be compared, where the table has it."""


def throttled(wide: pd.DataFrame, configuration: Sequence[str]) -> Bools:
    """Which rows took longer by `SLOWED` than the 10th percentile of the same card's repeats under the same conditions.

    Whole rows are left out, so that the power and the energy of a configuration are of the same repeats as its time.

    Args:
        configuration: the columns that make two rows repeats of one another.
    """
    same = [*configuration, *(name for name in _SAME_CONDITIONS if name in wide)]
    key = ordered_key((codes, len(values)) for codes, values in (distinct(wide[name]) for name in same))
    repeated = (np.bincount(key) > 1)[key]
    slow = np.zeros(len(wide), dtype=bool)
    if repeated.any():
        runtime_ms = wide["runtime_ms"].to_numpy()[repeated]
        fast = pd.Series(runtime_ms).groupby(key[repeated], sort=False).transform("quantile", 0.1)
        slow[repeated] = runtime_ms > (1 + SLOWED) * fast.to_numpy()
    return slow


ELEMENT_BYTES = {str(element): element.bytes for element in ElementType}

BYTES_OF_B = {str(ab): ab.of_b.bits / 8 for ab in INPUT_TYPES if ab.low_bit_weights}

SCALES = {
    str(scale): tuple(
        0.0 if blocks is None else float(extent or MAX_EXTENT)
        for blocks in (scale.of_a, scale.of_b)
        for extent in ((0, 0) if blocks is None else (blocks.lines, blocks.inner))
    )
    for scale in Scale
    if scale is not Scale.NONE
}
FUSIONS = {
    str(fused): (
        *((BIAS,) if fused.bias else ()),
        *((str(fused.activation),) if fused.activation else ()),
        *((GATE,) if fused.gated else ()),
    )
    for fused in Fusion
    if fused is not Fusion.NONE
}
"""As a `Vocabulary` has them."""


def vocabulary_of(configured: pd.DataFrame) -> Vocabulary:
    """What a model trained on these configurations can predict: see `Vocabulary`."""
    families = {str(name): _knowledge(str(name), rows) for name, rows in configured.groupby("family")}
    usual = ((ab, ElementTypes.parse(ab)) for ab in INPUT_TYPES)
    vocabulary = Vocabulary(
        families=families,
        parameters=parameter_names(),
        element_bytes=ELEMENT_BYTES,
        usual_output={str(ab): (str(types.cd), str(types.acc)) for ab, types in usual},
        scales=SCALES,
        bytes_of_b=BYTES_OF_B,
        fusions=FUSIONS,
    )
    problems = problems_of(vocabulary.read(configured))
    kinds = configured["family"] + ":" + types_of(configured)
    return replace(
        vocabulary,
        problems={
            str(kind): representatives(problems[rows]) for kind, rows in kinds.groupby(kinds.to_numpy()).indices.items()
        },
    )


def representatives(problems: Array) -> Array:
    """At most `MAX_PROBLEMS` different ones of problems [rows, 9]: each next one is that which lies furthest from those before it
    (Gonzalez, Theoretical Computer Science 38, 1985), so that none lies far from all of them."""
    found: Array = pd.DataFrame(problems).drop_duplicates().sort_values([*range(problems.shape[1])]).to_numpy()
    if len(found) > _MAX_COMPARED:
        found = found[np.sort(np.random.default_rng(0).choice(len(found), _MAX_COMPARED, replace=False))]
    if len(found) <= MAX_PROBLEMS:
        return found
    points = np.ascontiguousarray(positions(found).T)
    chosen, distance = [0], np.full(len(found), np.inf, "float32")
    while len(chosen) < MAX_PROBLEMS:
        np.minimum(distance, np.square(points - points[:, chosen[-1:]]).sum(axis=0), out=distance)
        chosen.append(int(np.argmax(distance)))
    kept: Array = found[np.sort(chosen)]
    return kept


_MAX_COMPARED = 20_000
"""Different problems from which representatives are chosen; of more, these are drawn at random."""


def _knowledge(family: str, rows: pd.DataFrame) -> FamilyKnowledge:
    defaults = {parameter.name: float(parameter.default) for parameter in FAMILIES[family].parameters}
    types = types_of(rows)
    filled = pd.DataFrame({name: rows[name].fillna(default) for name, default in defaults.items()}, rows.index)
    by_types: dict[str, set[tuple[float, ...]]] = {kind: set() for kind in _sorted(types)}
    for *kernel, kind in filled.assign(types=types).drop_duplicates().itertuples(index=False, name=None):
        by_types[kind].add(tuple(kernel))
    kernels = sorted(set().union(*by_types.values()))
    number = {kernel: place for place, kernel in enumerate(kernels)}
    return FamilyKnowledge(
        parameters=defaults,
        layouts={kind: _sorted(rows["layout"][types == kind]) for kind in by_types},
        kernels=tuple(kernels),
        kernels_by_types={kind: tuple(sorted(number[kernel] for kernel in of)) for kind, of in by_types.items()},
        powered=_sorted(types[rows["power_w"].notna()]),
        batched=_sorted(types[rows["batch"] > 1]),
    )


def types_of(configured: pd.DataFrame) -> pd.Series:
    """The types of each row, as `types_text` writes them."""
    found: pd.Series = configured["ab"] + ":" + configured["cd"] + ":" + configured["acc"]
    for name in ("scale", "fused"):
        there = configured[name] != NONE
        if there.any():
            found += (f" {name}=" + configured[name]).where(there, "")
    there = configured["groups"] != NONE
    if there.any():
        found += pd.Series(f" {GROUPED}", found.index).where(there, "")
    there = configured["sparsity"] != NONE
    if there.any():
        found += (" sparsity=" + configured["sparsity"]).where(there, "")
    return found


def _sorted(values: pd.Series) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values.unique()}))

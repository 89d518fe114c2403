"""The training table: read, checked, named by its content, and reduced to one row per configuration."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, text

from farm.both_times import time_of
from farm.errors import MissingColumns, TooFewMeasurements
from farm.forest.columns import BIAS, GATE, GROUPED, NONE, REQUIRED, WITH_DEFAULT
from farm.forest.numeric import Array, Bools
from farm.forest.reach import MAX_PROBLEMS, positions, problems_of
from farm.forest.vocabulary import FamilyKnowledge, Vocabulary
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS, INPUT_TYPES, MAX_EXTENT, PROBLEM_COLUMNS, ElementType, ElementTypes
from farm.kernels import FAMILIES
from farm.measurement import TEST_ROW, Source
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName
from farm.scale import Scale
from trainer.choice import CHOSEN, FAMILY, chosen

COLUMNS = (
    *("measurement_id", "campaign", "configuration_id", "device_type", "device_uuid", "device_name", "host", "backend"),
    *("source", "measured_at", *PROBLEM_COLUMNS, "family", "parameters"),
    *("flops", "bytes", "runtime_ms", "runtime_rse", "runtime_burst_ms", "power_w", "energy_mj", "tflops", "cost_s"),
    "protocol",
)
"""What the trainer reads of the view `v_measurements`."""

CONDITIONS = {
    "l2": "v.l2",
    "distribution": "v.distribution",
    "clock_policy": "v.clock_policy",
    "power_source": "CASE WHEN v.power_w IS NOT NULL THEN v.power_source END",
    "driver": "v.environment->>'driver'",
    "file": "coalesce(d.facts->>'imported_from', v.environment->>'recording')",
    "provenance": "coalesce(d.facts->>'provenance', v.environment->>'provenance')",
}
"""The columns that say how a row was measured, with their SQL: see `trainer.conditions`. A model does not learn from them."""

DETAILS = f"CASE WHEN v.family = '{FAMILY}' THEN v.details END"
"""The facts about the kernel that a library chose, as the optional column `details`."""

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


_LABELLED = f"v.source <> '{Source.MEASURED}' AND v.details->>'purpose' = '{TEST_ROW['purpose']}'"
"""Rows that the file they come from labels as rows of a test set: see `farm.measurement.TEST_ROW`."""


def _kept_apart(alias: str) -> str:
    """The columns of a problem by which test sets are kept apart, as SQL: another distribution of rows over groups is nearly the
    same problem, so of groups counts whether there are any."""
    return ", ".join(f"{alias}.{name}" if name != "groups" else f"({alias}.groups <> '{NONE}')" for name in PROBLEM)


_TESTED = f"""
SELECT {_kept_apart("c")}
FROM lanes l JOIN pools p ON p.id = l.pool_id JOIN jobs j ON j.lane_id = l.id JOIN configurations c ON c.id = j.configuration_id
WHERE l.purpose = 'test'
  AND (p.device_types @> ARRAY[CAST(:device_type AS text)]
       OR p.device_uuid IN (SELECT uuid FROM devices WHERE type = :device_type))
UNION
SELECT {_kept_apart("v")} FROM v_measurements v WHERE v.device_type = :device_type AND {_LABELLED}
"""
"""The problems of a device type that are in the test set of a campaign, or in one that was imported or recorded."""

_PROBLEM = f"({_kept_apart('v')})"


UNTRUSTED = tuple(family.name for family in FAMILIES.values() if family.untrusted)
"""Families whose rows no model learns from: the parameters of a user's kernel mean what its source makes of them."""


def read_training_table(
    connection: Connection, device_type: str, *, any_source: bool = False, of_campaign: int | None = None
) -> pd.DataFrame:
    """The measurements of a device type that models may learn from, oldest first.

    Only rows with source `measured`, unless `any_source`: recorded and imported numbers do not pass for fresh ones. Those of
    the campaign `of_campaign` count with every source. Problems of a test set are left out, independent of the source of the test
    set and of the rows, and for a problem in groups with all other groups of its shape.
    """
    only = "" if any_source else "AND (v.source = :source OR v.campaign_id = :campaign_id)"
    return _read(connection, f"{only} AND {_PROBLEM} NOT IN ({_TESTED})", device_type, of_campaign)


def read_test_table(
    connection: Connection, device_type: str, *, any_source: bool = False, of_campaign: int | None = None
) -> pd.DataFrame:
    """The rows of the test sets of a device type, of one campaign or of all: no model may learn from them.

    With `any_source` also those of test sets that were imported or recorded.
    """
    labelled = f"OR {_LABELLED}" if any_source else ""
    return _read(
        connection,
        "AND (EXISTS (SELECT FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = v.job_id AND l.purpose = 'test') "
        f"{labelled}) AND (CAST(:campaign_id AS bigint) IS NULL OR v.campaign_id = :campaign_id)",
        device_type,
        of_campaign,
    )


def _read(connection: Connection, condition: str, device_type: str, campaign_id: int | None) -> pd.DataFrame:
    query = text(
        f"SELECT {', '.join(f'v.{name}' for name in COLUMNS)}, "
        f"{', '.join(f'{sql} AS {name}' for name, sql in CONDITIONS.items())}, {DETAILS} AS details "
        "FROM v_measurements v JOIN devices d ON d.uuid = v.device_uuid "
        f"WHERE v.device_type = :device_type AND v.family <> ALL(:untrusted) {condition} ORDER BY v.measurement_id"
    )
    parameters = {
        "device_type": device_type,
        "untrusted": list(UNTRUSTED),
        "source": Source.MEASURED.value,
        "campaign_id": campaign_id,
    }
    rows = connection.execute(query, parameters)
    table = pd.DataFrame.from_records([tuple(row) for row in rows], columns=[*COLUMNS, *CONDITIONS, "details"])
    table["configuration_id"] = table["configuration_id"].astype(str)
    numbers = ("alpha", "beta", "flops", "bytes", "runtime_rse", *MEASURED, "tflops", "cost_s")
    return table.astype(dict.fromkeys(numbers, "float64") | dict.fromkeys(("m", "n", "k", "batch"), "int64"))


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


def table_hash(table: pd.DataFrame) -> str:
    """SHA-256 over what a model learns from the table. The order of rows, ids and times do not matter."""
    rows = zip(
        zip(*(table[name] for name in LEARNED_FROM), strict=True),
        _chosen(table),
        table.get("runtime_burst_ms", [None] * len(table)),
        protocols_of(table),
        _added(table),
        strict=True,
    )
    lines = sorted(
        # Rows without a choice, a burst, another protocol or an added column are what they were before tables had such columns.
        json.dumps(
            [
                _plain(value)
                for value in (
                    *row,
                    *(() if all(map(math.isnan, choice)) else choice),
                    *(() if pd.isna(burst_ms) else ("burst", burst_ms)),
                    *(() if protocol in _BEFORE_PROTOCOLS else ("protocol", protocol)),
                    *added,
                )
            ],
            **_COMPACT,
        )
        for row, choice, burst_ms, protocol, added in rows
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_COMPACT: dict[str, Any] = {"separators": (",", ":"), "sort_keys": True}


def _added(table: pd.DataFrame) -> list[list[Any]]:
    """Of each row the names and values of `ADDED_COLUMNS` that are not as usual."""
    added = with_added_columns(table)[[*ADDED_COLUMNS]].itertuples(index=False, name=None)
    usual = ADDED_COLUMNS.items()
    return [
        [each for (name, before), value in zip(usual, row, strict=True) if value != before for each in (name, value)]
        for row in added
    ]


_BEFORE_PROTOCOLS = (ProtocolName.FARM, UNKNOWN_PROTOCOL)
"""What rows were of before they had a protocol."""


def protocols_of(table: pd.DataFrame) -> pd.Series:
    """The protocol of each row. Rows of tables that do not say it are the farm's, and unknown where they were imported."""
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
    own = protocols == chosen
    return table[own].assign(protocol=chosen), others


def protocol_of(table: pd.DataFrame) -> str:
    """The protocol of a table of one protocol, or of what `configurations` makes of it."""
    return str(protocols_of(table).iloc[0]) if len(table) else str(ProtocolName.FARM)


def _chosen(table: pd.DataFrame) -> list[tuple[float, ...]]:
    """The facts of each row about the kernel that a library chose: `CHOSEN`."""
    details = table["details"] if "details" in table else [None] * len(table)
    return [chosen(each if family == FAMILY else None) for family, each in zip(table["family"], details, strict=True)]


def _plain(value: Any) -> Any:
    """A value in the one form that it has in every source: Postgres, Parquet, CSV."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str):
        return _plain(json.loads(value)) if value.startswith("{") else value
    number = float(value) if value is not None and not pd.isna(value) else math.nan
    return None if math.isnan(number) else number


def with_added_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `ADDED_COLUMNS`, where rows that do not say them are as usual: one product, without scale factors, fused
    operations, groups and sparsity."""
    added = {
        name: table[name].fillna(usual).astype(type(usual) if isinstance(usual, int) else "object")
        if name in table
        else usual
        for name, usual in ADDED_COLUMNS.items()
    }
    return table.assign(**added)


def with_parameter_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table with one float64 column for each kernel parameter instead of `parameters` (mappings, or JSON text)."""
    # A table has few kernels and many rows: each text is read once.
    read = cache(_mapping)
    given = [read(value) if isinstance(value, str) else _mapping(value) for value in table["parameters"]]
    columns = {name: pd.Series([row.get(name) for row in given], table.index, "float64") for name in parameter_names()}
    return table.drop(columns=["parameters"]).assign(**columns)


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
    table = table[~table["family"].isin(UNTRUSTED)]
    targets = list(MEASURED)
    protocol = protocol_of(table)
    if "runtime_burst_ms" not in table:
        table = table.assign(runtime_burst_ms=np.nan)
    if time_of(protocol) == "burst":
        table = table.assign(runtime_burst_ms=table["runtime_ms"])
    # A column of gaps next to one of numbers would turn both into objects, whose medians take seconds.
    wide = with_parameter_columns(with_added_columns(table)).astype(dict.fromkeys(targets, "float64"))
    if "details" in table:
        wide[list(CHOSEN)] = np.array(_chosen(table)).reshape(len(table), len(CHOSEN))
    raw = [*REQUIRED, *WITH_DEFAULT, *parameter_names()]
    # Repeats with a burst time may be others than those with the median runtime: the ratio is of one row.
    wide["runtime_burst_ms"] /= wide["runtime_ms"]
    wide = wide[~throttled(wide, raw)]
    grouped = wide.groupby(raw, dropna=False, sort=True)
    reduced = grouped[targets].median()
    reduced["runtime_burst_ms"] *= reduced["runtime_ms"]
    reduced = reduced.assign(repeats=grouped.size(), device_uuid="", protocol=protocol)
    if "details" in table:
        # Of the first repeat that has it, because libraries choose the same kernel for the same product.
        reduced[list(CHOSEN)] = grouped[list(CHOSEN)].first()
    if "device_uuid" in wide:
        cards = grouped["device_uuid"]
        reduced["device_uuid"] = cards.first().where(cards.nunique() == 1, "").astype(str)
    return reduced.reset_index()


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
    repeated = wide.duplicated(same, keep=False)
    slow = np.zeros(len(wide), dtype=bool)
    if repeated.any():
        repeats = wide[repeated.to_numpy()]
        fast = repeats.groupby(same, dropna=False, sort=False)["runtime_ms"].transform("quantile", 0.1)
        slow[repeated.to_numpy()] = (repeats["runtime_ms"] > (1 + SLOWED) * fast).to_numpy()
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

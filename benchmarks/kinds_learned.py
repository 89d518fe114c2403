"""How accurate predictions of batches, scaled, fused and grouped products are, beside those of plain products of the same rows.

    python -m benchmarks.kinds_learned FILE.parquet [FILE.parquet …] [--test FILE.parquet …]

Each file is a Parquet of `farm results`, of one device type. Only rows of the protocol `farm` are used, or of the most frequent one where
there are none. Every configuration is predicted by a model that has not seen its shape (the folds `unseen_shapes`), so a shape is held out
in all its kinds. Shapes with n and k of a product in groups are held out together, with every m. With `--test`, the rows of these files
are predicted as well, by a model of all the others: a problem of theirs that the others have is refused.

  kind          plain; batch; the values of scale and fused; grouped; these together. `scaled`, `fused` and `in groups` are all rows
                with any of these
  kernels       the family. Kernels that were drawn at random are harder to predict than those that a library chooses, so each family has
                lines of its own
  median, p90   errors of the time, or of the power, in percent
  over plain    the median error over that of the plain rows of the same family; over those of the same element types, too
  in 90%        the share of rows inside the 90% interval that the other folds calibrate
  refused       rows that the model of their fold has not learned: their kind has a single shape

In parentheses are 95% intervals, by bootstrap over what is held out together. The line `plain, learned alone` is of a model of the plain rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import markdown, write
from farm.errors import TestRowsInTraining
from farm.forest.columns import GROUPED, NONE
from farm.gemm import INPUT_TYPES
from trainer.evaluate import evaluate, measured_outputs
from trainer.folds import FOLD_KINDS, HEADLINE
from trainer.forest import ForestSettings, fit
from trainer.table import configurations, held_out_together, of_one_protocol
from trainer.test_set import check_apart, evaluate_on

PLAIN = "plain"
LOW_BIT, LOW_BIT_WEIGHTS = "low-bit", "low-bit weights"
ALONE = "plain, learned alone"
FOLDS = "Unseen shapes, held out of the rows that are learned from"
TEST = "Test rows, of which nothing is learned"
HEADLINE_TARGET = "runtime_ms"
TARGETS = (HEADLINE_TARGET, "power_w")
COARSE = {
    PLAIN: "plain",
    "batch": "batches",
    "scaled": "scale factors",
    "fused": "fused operations",
    "in groups": "groups",
    LOW_BIT_WEIGHTS: LOW_BIT_WEIGHTS,
}
"""The kinds of the summary, and what it calls them."""
RESAMPLES = 1000
SHAPE = ["m", "n", "k"]
LIKE = ["family", "ab", "cd", "acc"]

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Bools = np.ndarray[Any, np.dtype[np.bool_]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.parquet")
    parser.add_argument(
        "--test", type=Path, nargs="+", default=[], metavar="FILE.parquet", help="rows not learned from"
    )
    arguments = parser.parse_args()
    table, test = (_read(files) for files in (arguments.files, arguments.test))
    types = sorted({name for rows in (table, test) if len(rows) for name in rows["device_type"]})
    if len(types) != 1:
        parser.error(f"the files have rows of {len(types)} device types ({', '.join(types)}); give those of one")
    try:
        check_apart(table, test)
    except TestRowsInTraining as error:
        parser.error(str(error))
    table, left_out = of_one_protocol(table)
    configured = configurations(table)
    if set(kinds_of(configured)) <= {PLAIN} or PLAIN not in set(kinds_of(configured)):
        parser.error(
            "the files need rows of plain products and of others: batches, or with `scale`, `fused`, `groups` or `sparsity`"
        )
    parts = {FOLDS: figures(types[0], configured)}
    if len(test):
        parts |= {TEST: figures_of_test(types[0], configured, configurations(of_one_protocol(test)[0]))}
    facts = {"device_type": types[0], "configurations": len(configured), "left_out": left_out}
    text = [
        "\n\n".join(
            [f"{name}:", _summary(found), *(f"Errors of `{target}`:\n\n{_table(found, target)}" for target in TARGETS)]
        )
        for name, found in parts.items()
    ]
    results = {"figures": parts[FOLDS]} | ({"test": parts[TEST]} if TEST in parts else {})
    write("kinds_learned", {**facts, **results}, "\n\n".join(text), repetitions=1)


def _read(files: Iterable[Path]) -> pd.DataFrame:
    tables = [pd.read_parquet(path) for path in files]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def kinds_of(configured: pd.DataFrame) -> pd.Series:
    """The kind of each row: `plain`, or `batch`, `scale=row`, `grouped`, `low-bit` and so on."""
    found: pd.Series = pd.Series(np.where(configured["batch"] > 1, "batch", ""), configured.index, "object")
    found += np.where(_low_bit(configured), f" {LOW_BIT}", "")
    for name in ("scale", "fused"):
        found += np.where(configured[name] == NONE, "", f" {name}=" + configured[name])
    found += np.where(configured["groups"] == NONE, "", f" {GROUPED}")
    found += np.where(configured["sparsity"] == NONE, "", " sparsity=" + configured["sparsity"])
    return found.str.strip().replace("", PLAIN)


def groups_of(configured: pd.DataFrame) -> dict[str, _Bools]:
    """The rows of each kind, plain ones first, and of all kinds with scale factors of A and B, with fused operations, in groups, with a
    sparse B, and with low-bit weights."""
    kinds, low_bit = kinds_of(configured), _low_bit(configured)
    found = {kind: (kinds == kind).to_numpy() for kind in sorted(set(kinds), key=lambda kind: (kind != PLAIN, kind))}
    for group, name in (("scaled", "scale"), ("fused", "fused"), ("in groups", "groups"), ("sparse", "sparsity")):
        rows = (configured[name] != NONE).to_numpy()
        if name == "scale":
            rows = rows & ~low_bit
        found |= {group: rows} if rows.any() else {}
    return found | ({LOW_BIT_WEIGHTS: low_bit} if low_bit.any() else {})


def _low_bit(configured: pd.DataFrame) -> _Bools:
    found: _Bools = configured["ab"].isin([str(ab) for ab in INPUT_TYPES if ab.low_bit_weights]).to_numpy()
    return found


@dataclass(frozen=True)
class Resampled:
    """Errors [rows] in percent, NaN without a prediction or a measurement, and how often each row is drawn: [resamples, rows]."""

    error: _Floats
    drawn: np.ndarray[Any, np.dtype[np.int64]]

    def of(self, rows: _Bools, percentile: float) -> tuple[float, _Floats]:
        """A percentile of the errors of these rows, and that of each resample; NaN where a resample has none of them."""
        own = rows & np.isfinite(self.error)
        error = self.error[own]
        if not len(error):
            return np.nan, np.full(len(self.drawn), np.nan)
        order = np.argsort(error)
        resamples = _percentiles(error[order], self.drawn[:, own][:, order], percentile)
        return float(np.percentile(error, percentile)), resamples


def _percentiles(error: _Floats, drawn: np.ndarray[Any, np.dtype[np.int64]], percentile: float) -> _Floats:
    """What `numpy.percentile` finds in each resample of ascending errors, without a list of each; NaN where one is empty."""
    upto = drawn.cumsum(axis=1)
    at = percentile / 100 * (upto[:, -1] - 1)
    lower, upper = (
        error[(upto <= index[:, None]).sum(axis=1).clip(max=len(error) - 1)] for index in (np.floor(at), np.ceil(at))
    )
    return np.where(upto[:, -1] > 0, lower + (upper - lower) * (at - np.floor(at)), np.nan)


def resampled(configured: pd.DataFrame, error: _Floats) -> Resampled:
    """The errors with resamples over shapes, since all rows of a shape err together; as they are held out together."""
    shape = held_out_together(configured)
    count = int(shape.max()) + 1
    draw = np.random.default_rng(0)
    drawn = np.array([np.bincount(draw.integers(count, size=count), minlength=count) for _ in range(RESAMPLES)])
    return Resampled(error, drawn[:, shape])


def figures(device_type: str, configured: pd.DataFrame, settings: ForestSettings | None = None) -> list[dict[str, Any]]:
    """A line for each kind and target; see the module."""
    settings = settings or ForestSettings()
    groups = groups_of(configured)
    plain = configured[groups[PLAIN]]
    return [
        *_lines(device_type, configured, groups, settings),
        *_lines(device_type, plain, {ALONE: np.full(len(plain), True)}, settings),
    ]


def figures_of_test(
    device_type: str, configured: pd.DataFrame, test: pd.DataFrame, settings: ForestSettings | None = None
) -> list[dict[str, Any]]:
    """A line for each kind and target of the test rows, as predicted by a model of all rows of `configured`."""
    settings = settings or ForestSettings()
    (found,) = evaluate(device_type, configured, settings, kinds={HEADLINE: FOLD_KINDS[HEADLINE]})
    _, predicted = evaluate_on(fit(device_type, configured, settings, found.intervals), test)
    return list(_lines_of(test, predicted, groups_of(test)))


def _lines(
    device_type: str, configured: pd.DataFrame, groups: Mapping[str, _Bools], settings: ForestSettings
) -> Iterator[dict[str, Any]]:
    (found,) = evaluate(device_type, configured, settings, kinds={HEADLINE: FOLD_KINDS[HEADLINE]})
    yield from _lines_of(configured, found.predicted, groups)


def _lines_of(
    configured: pd.DataFrame, predicted: pd.DataFrame, groups: Mapping[str, _Bools]
) -> Iterator[dict[str, Any]]:
    measured, like = measured_outputs(configured), configured[LIKE].agg(":".join, axis="columns").to_numpy()
    family = configured["family"].to_numpy()
    for target in TARGETS:
        y, p = (each[target].to_numpy("float64") for each in (measured, predicted))
        errors = resampled(configured, 100 * np.abs(p / y - 1))
        bounds = [predicted.get(f"{target}_{end}", measured[target] * np.nan) for end in ("low", "high")]
        inside = ((bounds[0] <= measured[target]) & (measured[target] <= bounds[1])).to_numpy()
        for kind, name in [(kind, name) for kind, rows in groups.items() for name in sorted(set(family[rows]))]:
            of_family = family == name
            rows = groups[kind] & of_family
            both = rows & np.isfinite(errors.error)
            line: dict[str, Any] = {"kind": kind, "family": name, "target": target, "rows": int(both.sum())}
            line["refused"] = int((rows & np.isfinite(y) & ~np.isfinite(p)).sum())
            line["shapes"] = len(configured.loc[both, SHAPE].drop_duplicates())
            if both.any():
                median, medians = errors.of(rows, 50)
                line |= _with_interval("median_error_pct", median, medians)
                line |= _with_interval("p90_error_pct", *errors.of(rows, 90))
                line["coverage_pct"] = 100 * float(inside[both].mean()) if bounds[0].notna().any() else None
                if kind not in (PLAIN, ALONE):
                    of_types = groups[PLAIN] & np.isin(like, like[both])
                    for than, against in {"plain": groups[PLAIN] & of_family, "plain_of_types": of_types}.items():
                        other, others = errors.of(against, 50)
                        line |= _with_interval(f"over_{than}", median / other, medians / others)
            yield line


def _with_interval(name: str, value: float, resamples: _Floats) -> dict[str, Any]:
    """The value and its 95% interval; None where it is not known."""
    known = resamples[np.isfinite(resamples)]
    if not np.isfinite(value) or not len(known):
        return {name: None, f"{name}_95": None}
    return {name: round(value, 3), f"{name}_95": np.percentile(known, [2.5, 97.5]).round(3).tolist()}


def _table(found: list[dict[str, Any]], target: str) -> str:
    names = {
        "median_error_pct": "median, %",
        "p90_error_pct": "p90, %",
        "over_plain": "over plain",
        "over_plain_of_types": "over plain of the same types",
    }
    rows = [
        [
            *(one[name] for name in ("kind", "family", "rows", "shapes", "refused")),
            *(_cell(one, name) for name in names),
            "–" if one.get("coverage_pct") is None else f"{one['coverage_pct']:.0f}",
        ]
        for one in found
        if one["target"] == target
    ]
    return markdown(["kind", "kernels", "rows", "shapes", "refused", *names.values(), "in 90%, %"], rows)


def _summary(found: list[dict[str, Any]]) -> str:
    """Errors of time by the coarse kinds, as docs/models.md shows them."""
    of_time = [one for one in found if one["target"] == HEADLINE_TARGET]
    names = {"median_error_pct": ".1f", "p90_error_pct": ".0f", "over_plain": ".2f"}
    rows = [
        [name, one["family"], one["rows"], *(_cell(one, key, digits) for key, digits in names.items())]
        for kind, name in COARSE.items()
        for one in of_time
        if one["kind"] == kind
    ]
    titles = ["kind", "kernels", "rows", "median, %", "p90, %", "median over that of plain rows of such kernels"]
    return markdown(titles, rows)


def _cell(one: Mapping[str, Any], name: str, digits: str = ".2f") -> str:
    if one.get(name) is None:
        return "–"
    low, high = one[f"{name}_95"]
    return f"{one[name]:{digits}} ({low:{digits}} to {high:{digits}})"


if __name__ == "__main__":
    main()

"""The evaluations of a version: in which order people read them, and what they are called (pure)."""

from __future__ import annotations

from farm.registry.details import Metrics
from farm.registry.models import OUTPUTS, TEST_SET

FOLDS_ARE = "interpolation inside the training table"
"""What every other evaluation says: its folds are rows of the table that the version learned from."""

FIRST_FOLDS = "unseen_shapes"
"""The folds to quote where there is no test set."""

COVERAGES = {50: "coverage_50_pct", 80: "coverage_80_pct", 90: "coverage_pct"}
"""The share of rows inside a version's intervals, by the share that these claim to hold, in percent."""


def kind_name(kind: str) -> str:
    """`independent test set`, `unseen shapes`."""
    return "independent test set" if kind == TEST_SET else kind.replace("_", " ")


def in_order(metrics: Metrics) -> Metrics:
    """Evaluations that say something of a predicted column: the test set, the folds to quote, then the others by name."""
    known = [kind for kind, of in metrics.items() if of.keys() & set(OUTPUTS)]
    return {
        kind: metrics[kind] for kind in sorted(known, key=lambda kind: (kind != TEST_SET, kind != FIRST_FOLDS, kind))
    }


def on_test_set(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Of each predicted column in the order of `OUTPUTS`, on the independent test set; empty without one."""
    found = metrics.get(TEST_SET, {})
    return {target: found[target] for target in OUTPUTS if "rows" in found.get(target, {})}


def on_folds(metrics: Metrics) -> Metrics:
    """The evaluations on folds of the training table, in order."""
    return {kind: of for kind, of in in_order(metrics).items() if kind != TEST_SET}

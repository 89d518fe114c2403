"""Names and order of a version's evaluations (pure)."""

from __future__ import annotations

from farm.registry.models import TEST_SET
from farm.registry.outputs import OUTPUTS
from farm.registry.version_details import Metrics

FOLDS_ARE = "interpolation inside the training table"
"""Description of evaluations without a test set: their folds are rows of the training table."""

FIRST_FOLDS = "unseen_shapes"
"""The folds to quote without a test set."""

COVERAGES = {50: "coverage_50_pct", 80: "coverage_80_pct", 90: "coverage_pct"}
"""The metric with the share of rows inside a version's intervals, by the intervals' nominal coverage in percent."""


def kind_name(kind: str) -> str:
    """`independent test set`, `unseen shapes`."""
    return "independent test set" if kind == TEST_SET else kind.replace("_", " ")


def in_order(metrics: Metrics) -> Metrics:
    """Evaluations of predicted columns: the test set, the folds to quote, then the others by name."""
    known = [kind for kind, of in metrics.items() if of.keys() & set(OUTPUTS)]
    return {
        kind: metrics[kind] for kind in sorted(known, key=lambda kind: (kind != TEST_SET, kind != FIRST_FOLDS, kind))
    }


def on_test_set(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Errors of each predicted column on the independent test set, in the order of `OUTPUTS`; empty without one."""
    found = metrics.get(TEST_SET, {})
    return {target: found[target] for target in OUTPUTS if "rows" in found.get(target, {})}


def on_folds(metrics: Metrics) -> Metrics:
    """The evaluations on folds of the training table, in order."""
    return {kind: of for kind, of in in_order(metrics).items() if kind != TEST_SET}

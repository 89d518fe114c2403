"""Presenters of registered model versions: one in detail, or two compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farm import registry
from farm.api.models import AnsweringModel, ModelLine
from farm.cli.output import console
from farm.cli.tables import Column, Table
from farm.registry.evaluations import COVERAGES, FOLDS_ARE, in_order, kind_name, on_folds, on_test_set
from farm.registry.models import TEST_SET


def standing(name: str, version: str, alias: str | None, decision: str | None) -> str:
    """`gemm-forest-nvidia-h200 version 2 is the champion: it scores …`."""
    stands = {
        registry.CHAMPION: "is the champion",
        registry.CHALLENGER: "is a challenger and not the champion",
        None: "is not the champion",
    }[alias]
    return f"{name} version {version} {stands}: it {decision or 'was not judged'}"


_FACTS = Table("model", Column("fact"), Column("value", folds=True), facts=True)

_TEST_NUMBERS = (
    Column("target"),
    Column("configurations", number=True, priority=4),
    Column("mean %", number=True),
    Column("95% interval", number=True),
    *(Column(registry.ERRORS[name], number=True, priority=2) for name in ("median_error_pct", "p90_error_pct")),
    *(Column(f"in {claim}% interval", "%", number=True, priority=3) for claim in COVERAGES),
    Column("fastest kernel chosen", "%", number=True, priority=1),
)
_TEST_ERRORS = Table("errors of a model on the test set", *_TEST_NUMBERS)
_TRAINED_TEST_ERRORS = Table("errors of trained models on the test set", Column("model", folds=True), *_TEST_NUMBERS)

_ERRORS = Table(
    "errors of a model",
    Column("held out", folds=True),
    Column("target"),
    Column("configurations", number=True, priority=3),
    Column("R²", number=True, priority=4),
    *(Column(name, number=True, priority=rank) for rank, name in enumerate(registry.ERRORS.values())),
)

_CHAMPIONS = Table("champions", Column("since", "(UTC)"), Column("version", number=True), Column("why", folds=True))

_SIDE_BY_SIDE = Table(
    "errors of two versions",
    Column("held out", folds=True),
    Column("target"),
    *(
        Column(f"{name} {version}", number=True, priority=rank)
        for rank, name in enumerate(registry.ERRORS.values())
        for version in ("v{first}", "v{second}")
    ),
)


def named(model: AnsweringModel) -> str:
    """`gemm-forest-nvidia-h200 v2`, with a label if it is not the champion."""
    label = "" if model.standing == registry.CHAMPION else f" ({model.standing.upper()}, not the champion)"
    return f"{model.name} v{model.version}{label}"


def print_answered_by(models: Sequence[AnsweringModel]) -> None:
    """Prints the errors, standing and training data of each model."""
    for model in models:
        console.print()
        for line in _about(model):
            console.print(line, markup=False, soft_wrap=True)


def _about(model: AnsweringModel) -> Iterator[str]:
    errors = "; ".join(
        f"{_TARGETS[target]} {found['median_error_pct']:.3g}% median, {found['p90_error_pct']:.3g}% 90th percentile"
        for target, found in model.errors.items()
        if target in _TARGETS and {"median_error_pct", "p90_error_pct"} <= found.keys()
    )
    yield f"{named(model)}"
    yield f"  error on {model.tested_on}: {errors or 'unknown'}"
    if model.why_not_champion is not None:
        yield f"  not the champion: {model.why_not_champion}"
    if model.to_get_a_champion is not None:
        yield f"  to get a champion: {model.to_get_a_champion}"
    for line in ["conditions: unknown"] if model.conditions is None else model.conditions.lines():
        yield f"  {line}"


_TARGETS = {"runtime_ms": "time", "runtime_burst_ms": "burst time", "power_w": "power", "energy_mj": "energy"}


def print_facts(model: ModelLine) -> None:
    """Prints a version in lines of name and value."""
    sound = {True: "yes", False: "no: not promoted without --force", None: "not known"}[model.sound]
    lines = [
        ("model", model.name),
        ("version", model.version),
        ("aliases", ", ".join(model.aliases) or "none"),
        ("device type", model.device_type),
        ("created (UTC)", f"{model.created_at:%Y-%m-%d %H:%M}"),
        ("learned from", f"{_count(model.rows)} rows, {_count(model.configurations)} configurations, "
                         f"{_count(model.shapes)} shapes"),
        ("with a burst time", f"{_count(model.burst_configurations)} configurations"),
        *(
            [("conditions", "unknown")]
            if model.conditions is None
            else [tuple(line.split(": ", 1)) for line in model.conditions.lines()]
        ),
        ("table", model.table_hash),
        ("run", model.run_id),
        ("decision", None if model.decision is None else f"it {model.decision}"),
        ("sound", sound),
    ]  # fmt: skip
    _FACTS.print(lines)
    console.print()


def print_test_errors(metrics: Mapping[str, registry.Metrics]) -> None:
    """Prints one line for each target of each version that was evaluated on a test set."""
    rows = [
        (name, *_on_test_set(target, found))
        for name, of_version in metrics.items()
        for target, found in on_test_set(of_version).items()
    ]
    if rows:
        _TRAINED_TEST_ERRORS.print(rows, title=f"error on the {kind_name(TEST_SET)}")


def print_errors(metrics: registry.Metrics) -> None:
    """Prints one line for each target on the independent test set, then one for each fold kind and target."""
    if tested := on_test_set(metrics):
        _TEST_ERRORS.print([_on_test_set(target, found) for target, found in tested.items()], title=kind_name(TEST_SET))
    _ERRORS.print(
        [
            (kind_name(kind), target, int(found["rows"]), found.get("r2"), *(found.get(n) for n in registry.ERRORS))
            for kind, target, found in _by_fold(on_folds(metrics))
        ],
        title=f"folds: {FOLDS_ARE}",
    )


def _on_test_set(target: str, found: Mapping[str, float]) -> tuple[Any, ...]:
    low, high = found.get("mean_error_low_pct"), found.get("mean_error_high_pct")
    return (
        target,
        int(found["rows"]),
        found.get("mean_error_pct"),
        None if low is None or high is None else f"{low:.3g} to {high:.3g}",
        found.get("median_error_pct"),
        found.get("p90_error_pct"),
        *(found.get(name) for name in COVERAGES.values()),
        found.get("choose_share_pct"),
    )


def print_history(champions: Sequence[registry.PromotionRecord]) -> None:
    """Prints the champions, the present one last."""
    rows = [(each.since and each.since[:16].replace("T", " "), each.version, each.reason) for each in champions]
    _CHAMPIONS.print(rows, title="champions")


def print_side_by_side(versions: Sequence[str], metrics: Sequence[registry.Metrics]) -> None:
    """Prints the errors of two versions, one line for each fold kind and target of either."""
    every = {kind: of for each in metrics for kind, of in each.items()}
    found = {(kind, target) for each in metrics for kind, target, _ in _by_fold(each)}
    keys = [(kind, target) for kind in in_order(every) for target in registry.OUTPUTS if (kind, target) in found]
    rows = [
        (
            kind_name(kind),
            target,
            *(each.get(kind, {}).get(target, {}).get(number) for number in registry.ERRORS for each in metrics),
        )
        for kind, target in keys
    ]
    names = dict(zip(("first", "second"), versions, strict=True))
    _SIDE_BY_SIDE.print(rows, title="errors of each by its own evaluation", names=names)


def _by_fold(metrics: registry.Metrics) -> list[tuple[str, str, dict[str, float]]]:
    """The evaluations in order of importance, with targets in the order of a model's outputs."""
    return [
        (kind, target, metrics[kind][target])
        for kind in in_order(metrics)
        for target in registry.OUTPUTS
        if target in metrics[kind] and "rows" in metrics[kind][target]
    ]


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"

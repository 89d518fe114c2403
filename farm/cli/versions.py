"""Registered versions laid out: one with all that is known of it, and two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farm import registry
from farm.api.models import AnsweringModel, ModelLine
from farm.cli.output import console
from farm.cli.tables import Column, Table


def standing(name: str, version: str, alias: str | None, decision: str | None) -> str:
    """`gemm-forest-nvidia-h200 version 2 is the champion: it scores …`."""
    stands = {
        registry.CHAMPION: "is the champion",
        registry.CHALLENGER: "is a challenger and not the champion",
        None: "is not the champion",
    }[alias]
    return f"{name} version {version} {stands}: it {decision or 'was judged by nobody'}"


_FACTS = Table("model", Column("fact"), Column("value", folds=True), facts=True)

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
    """`gemm-forest-nvidia-h200 v2`, and that it is a challenger where it is not the champion."""
    label = "" if model.standing == registry.CHAMPION else f" ({model.standing.upper()}, not the champion)"
    return f"{model.name} v{model.version}{label}"


def print_answered_by(models: Sequence[AnsweringModel]) -> None:
    """How good each of these is, whether it is the champion and what would make it one, and what it learned from."""
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


_TARGETS = {"runtime_ms": "time", "power_w": "power", "energy_mj": "energy"}


def print_facts(model: ModelLine) -> None:
    """A version in lines of name and value."""
    sound = {True: "yes", False: "no: not promoted without --force", None: "not known"}[model.sound]
    lines = [
        ("model", model.name),
        ("version", model.version),
        ("aliases", ", ".join(model.aliases) or "none"),
        ("device type", model.device_type),
        ("created (UTC)", f"{model.created_at:%Y-%m-%d %H:%M}"),
        ("learned from", f"{_count(model.rows)} rows, {_count(model.configurations)} configurations, "
                         f"{_count(model.shapes)} shapes"),
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


def print_errors(metrics: registry.Metrics) -> None:
    """One line for each fold kind and target."""
    _ERRORS.print(
        [
            (kind, target, int(found["rows"]), found.get("r2"), *(found.get(number) for number in registry.ERRORS))
            for kind, target, found in _by_fold(metrics)
        ],
        title="errors",
    )


def print_history(champions: Sequence[registry.Reign]) -> None:
    """The champions, the present one last."""
    rows = [(each.since and each.since[:16].replace("T", " "), each.version, each.reason) for each in champions]
    _CHAMPIONS.print(rows, title="champions")


def print_side_by_side(versions: Sequence[str], metrics: Sequence[registry.Metrics]) -> None:
    """The errors of two versions, one line for each fold kind and target that either has."""
    keys = dict.fromkeys((kind, target) for each in metrics for kind, target, _ in _by_fold(each))
    rows = [
        (
            kind,
            target,
            *(each.get(kind, {}).get(target, {}).get(number) for number in registry.ERRORS for each in metrics),
        )
        for kind, target in keys
    ]
    names = dict(zip(("first", "second"), versions, strict=True))
    _SIDE_BY_SIDE.print(rows, title="errors of each on its own training table", names=names)


def _by_fold(metrics: registry.Metrics) -> list[tuple[str, str, dict[str, float]]]:
    """The fold kind that counts first, targets in the order in which a model gives them."""
    return [
        (kind, target, metrics[kind][target])
        for kind in sorted(metrics, key=lambda kind: (kind != "unseen_shapes", kind))
        for target in registry.OUTPUTS
        if target in metrics[kind] and "rows" in metrics[kind][target]
    ]


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"

"""`farm recommend`: rank kernels for a problem with a registered model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from farm.api import Farm, farm_of, models
from farm.api.models import AnsweringModel, Recommended
from farm.both_times import burst_apart
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json
from farm.cli.tables import Column, Table
from farm.cli.versions import named, print_answered_by
from farm.errors import BadInput
from farm.formatting import scalars_text
from farm.gemm import ADDED_COLUMNS
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName, Time
from farm.registry import Objective, Prediction
from farm.settings import settings

CONFIRMED = 3
"""Kernels that --confirm measures."""


@takes(models.recommend)
def recommend(
    query: dict[str, Any],
    *,
    every_type: Annotated[
        bool, typer.Option("--every-type", help="Use the model of every device type, and rank the types.")
    ] = False,
    mix_protocols: Annotated[
        bool,
        typer.Option(
            "--mix-protocols",
            help="With --every-type: rank models together whose rows were measured by different protocols.",
        ),
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Measure the first three on a card of the type, and rank them by their times."),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="With --confirm: maximum time to wait for results, in seconds.")
    ] = 300.0,
    as_json: JsonOption = False,
) -> None:
    """Rank the measured kernels that a card can run for a problem, best first, with the model of its type.

    Bounds contain nine of ten measurements. The safe choice is the kernel with the lowest upper bound.

    Examples:
        farm recommend 4096x4096x4096 --dtype f16 --type nvidia-h200
        farm recommend 512x512x512 --objective energy --top 3
        farm recommend 4096x4096x4096 --dtype f16 --time burst
        farm recommend 4096x4096x4096 --dtype f16 --confirm
    """
    if confirm and (every_type or query["objective"] is not Objective.TIME or query.get("time") == "burst"):
        raise BadInput(
            detail="--confirm compares settled times: it takes neither --every-type, another --objective, nor --time burst."
        )
    if every_type:
        if query.keys() & {"device_type", "version"} or query["unmeasured"]:
            raise BadInput(detail="--every-type cannot be combined with --type, --version or --unmeasured.")
        _every_type(
            {name: query[name] for name in query if name != "unmeasured"} | {"mix_protocols": mix_protocols}, as_json
        )
        return
    if mix_protocols:
        raise BadInput(detail="--mix-protocols needs --every-type.")
    with farm_of(settings()) as farm:
        top = query["top"]
        found = farm.ask(models.recommend, **{**query, "top": max(top, CONFIRMED) if confirm else top})
        confirmed = None if not confirm else _confirmed(farm, found, timeout)
    if confirmed is not None:
        _print_confirmed(found, confirmed, top, as_json)
        return
    if as_json:
        emit_json(found)
        return
    both = _both(found.ranking)
    rows = [(f"{number}.", *_cells(one, found.time, both=both)) for number, one in enumerate(found.ranking, 1)]
    title = f"{found.problem} by {named(found.answered_by)}: {_least(found.objective, found.time)} of {found.kernels:,} kernels"
    table = _RANKING_OF_BOTH if both else _RANKING
    table.print(rows, title=title, names={"time": found.time or _OWN[both], "other": _OTHER[found.time]})
    if found.safe is not None and found.safe_costs_pct is not None:
        console.print(_safe(found.safe, found.time, found.safe_costs_pct, found.ranking[0]))
    print_answered_by([found.answered_by])


def _confirmed(farm: Farm, found: Recommended, timeout: float) -> dict[str, float]:
    """Measures the first kernels that have no measurement. Returns the measured times of the ranking, in ms."""
    # Imported here: it imports the database, which a recommendation does not need.
    from farm.api.confirming import Candidates
    from farm.cli.confirming import measure

    _require_comparable(found.answered_by)
    wanted = Candidates(
        device_type=found.answered_by.device_type,
        configurations=[one.configuration for one in found.ranking[:CONFIRMED]],
    )
    return measure(farm, wanted, timeout)


def _require_comparable(model: AnsweringModel) -> None:
    """Raises `BadInput` where measured times are of another protocol than those that the model predicts."""
    known = sorted({one.name for one in model.conditions.protocols}) if model.conditions is not None else []
    if known and not {ProtocolName.FARM, UNKNOWN_PROTOCOL} & {*known}:
        raise BadInput(
            detail=f"--confirm measures by the protocol {ProtocolName.FARM}, and {model.name} v{model.version} learned from rows of "
            f"{', '.join(known)}: their times cannot be compared."
        )


def _print_confirmed(found: Recommended, measured_ms: dict[str, float], top: int, as_json: bool) -> None:
    """Prints measured kernels first, by their measured times, then the others by their predictions."""
    ranking = sorted(found.ranking, key=lambda one: measured_ms.get(one.configuration, math.inf))[:top]
    winner = next((one for one in ranking if one.configuration in measured_ms), None)
    if as_json:
        emit_json(
            {
                **found.model_dump(),
                "ranking": [{**one.to_json(), "measured_ms": measured_ms.get(one.configuration)} for one in ranking],
                "winner": None if winner is None else winner.configuration,
            }
        )
        return
    rows = [
        (f"{number}.", _kernel(one), ms, one.runtime_ms, None if ms is None else 100 * (one.runtime_ms / ms - 1),
         "predicted" if ms is None else "measured", one.outside)
        for number, one in enumerate(ranking, 1) for ms in [measured_ms.get(one.configuration)]
    ]  # fmt: skip
    _CONFIRMED.print(rows, title=f"{found.problem} by {named(found.answered_by)}: of {found.kernels:,} kernels")
    if winner is None:
        console.print("None of these kernels has been measured yet.")
    else:
        ms = measured_ms[winner.configuration]
        console.print(f"Fastest as measured: {_kernel(winner)}, {ms:.4g} ms.", markup=False, soft_wrap=True)
    print_answered_by([found.answered_by])


def _every_type(query: dict[str, Any], as_json: bool) -> None:
    with farm_of(settings()) as farm:
        found = farm.ask(models.costs, **query)
    if as_json:
        emit_json(found)
        return
    if not found:
        console.print("The registry has no models yet. Train one: farm train")
        return
    able = [one for one in found if one.found is not None]
    groups = sorted({one.group for one in able})
    time = query.get("time")
    both = _both([one.found.ranking[0] for one in able if one.found is not None])
    table = _TYPES_OF_BOTH if both else _TYPES
    for group in groups:
        rows = [
            (f"{one.rank}.", one.device_type, *_cells(one.found.ranking[0], time, both=both))
            for one in able
            if one.group == group and one.found is not None
        ]
        which = f", protocol {group} of {len(groups)}" if len(groups) > 1 else ""
        problem = query["shape"] + scalars_text(
            query["alpha"], query["beta"], **{name: query[name] for name in ADDED_COLUMNS}
        )
        title = f"{problem} {query['types']}: {_least(query['objective'], time)}{which}"
        table.print(rows, title=title, names={"time": time or _OWN[both], "other": _OTHER[time]})
    if len(groups) > 1:
        console.print(
            "Device types of different tables are not ranked: their rows were measured by different protocols, or by "
            "unknown ones. --mix-protocols ranks them together all the same.",
            soft_wrap=True,
        )
    for one in found:
        if one.found is None:
            console.print(f"{one.device_type}: {one.why_not}", markup=False, soft_wrap=True)
    print_answered_by([one.answered_by for one in able])


_CONFIRMED = Table(
    "confirmed recommendations",
    Column("", number=True),
    Column("kernel", folds=True),
    Column("measured", "ms", number=True),
    Column("predicted", "ms", number=True),
    Column("prediction error", "%", number=True, priority=1),
    Column("ranked by"),
    Column("outside what was measured", folds=True, priority=2),
)

_TIMED = (
    Column("kernel", folds=True),
    Column("{time}", "ms", number=True),
    Column("90 % bounds", "ms", number=True, priority=1),
)
_REST = (
    Column("TFLOP/s", number=True, priority=2),
    Column("power", "W", number=True, priority=3),
    Column("energy", "mJ", number=True, priority=4),
    Column("outside what was measured", folds=True, priority=1),
)
_ANSWER = (*_TIMED, *_REST)
_ANSWER_OF_BOTH = (*_TIMED, Column("{other}", "ms", number=True, priority=1), *_REST)
_OTHER = {None: "burst", "settled": "burst", "burst": "settled"}
_OWN = {False: "runtime", True: "settled"}
"""The name of the time of a model's own rows, by whether the other one is shown too."""

_NUMBER, _TYPE = Column("", number=True), Column("device type", folds=True)
_RANKING = Table("recommendations", _NUMBER, *_ANSWER)
_RANKING_OF_BOTH = Table("recommendations with both times", _NUMBER, *_ANSWER_OF_BOTH)
_TYPES = Table("recommendations by type", _NUMBER, _TYPE, *_ANSWER)
_TYPES_OF_BOTH = Table("recommendations by type with both times", _NUMBER, _TYPE, *_ANSWER_OF_BOTH)


def _both(predictions: Sequence[Prediction]) -> bool:
    """Whether both times are shown: some differ by more than `APART`."""
    return any(burst_apart(one.runtime_burst_ms, one.runtime_ms) is not None for one in predictions)


def _least(objective: Objective, time: Time | None) -> str:
    return f"least {time} time" if time is not None and objective is Objective.TIME else f"least {objective}"


def _cells(one: Prediction, time: Time | None, *, both: bool) -> tuple[Any, ...]:
    found = one.at(time)
    assert found is not None, "a ranking has kernels with that time"
    bounds = None if found.low is None or found.high is None else f"{found.low:.4g} – {found.high:.4g}"
    other = one.at("settled" if time == "burst" else "burst")
    others = ((None if other is None else other.ms),) if both else ()
    return _kernel(one), found.ms, bounds, *others, found.tflops, one.power_w, one.energy_mj, one.outside


def _kernel(one: Prediction) -> str:
    return one.configuration.split(" ", 1)[0]


def _safe(safe: Prediction, time: Time | None, costs_pct: float, first: Prediction) -> str:
    if safe.configuration == first.configuration:
        return "The first is also the safe choice: no other kernel has a lower upper bound."
    found = safe.at(time)
    assert found is not None
    return (
        f"Safe choice: {_kernel(safe)}, {found.ms:.4g} ms and at most {found.high:.4g}. "
        f"If both predictions are right, it is {costs_pct:.1f} % slower than the first."
    )

"""`farm train`: train a model for each device type."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape

from farm import registry
from farm.api import farm_of, trainings
from farm.api.trainings import TrainingNow, TrainingRequest
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.cli.training import require_trainer, train_here, train_on
from farm.cli.versions import print_test_errors, standing
from farm.errors import TrainingFailed
from farm.registry.evaluations import FOLDS_ARE
from farm.services import Stack
from farm.services.session import session
from farm.settings import settings


@takes(TrainingRequest)
def train(request: TrainingRequest, *, as_json: JsonOption = False) -> None:
    """Train a model for each device type, evaluate it on held-out shapes, and register it. The better version is champion.

    Examples:
        farm train
        farm train nvidia-h200 --any-source
        farm train nvidia-h100 --any-source --protocol aiconfigurator
    """
    with farm_of(settings()) as farm:
        farm.ask(trainings.types, request)  # what cannot be trained needs no broker
        if settings().api_url is not None:
            outcomes = train_on(farm, request)
    if settings().api_url is None:
        require_trainer()
        with (
            session(broker=True) as opened,
            Stack.attach_or_start(opened.settings, opened.urls, ["trainer"]) as stack,
        ):
            outcomes = train_here(opened, request, check=stack.check)
    if as_json:
        emit_json(outcomes)
    else:
        print_outcomes(outcomes)
    for device_type, training in outcomes.items():
        if training.error is not None:
            raise TrainingFailed(device_type=device_type, why=training.error)


_OUTCOMES = Table(
    "outcomes of trainings",
    Column("model", folds=True),
    Column("target"),
    Column("configurations", number=True, priority=3),
    Column("shapes", number=True, priority=2),
    Column("R²", number=True, priority=4),
    *(Column(name, number=True, priority=rank) for rank, name in enumerate(registry.ERRORS.values())),
)


def print_outcomes(outcomes: Mapping[str, TrainingNow]) -> None:
    """Prints the result of each training: errors on the test set and on folds, and whether the model is champion."""
    rows, metrics = [], dict[str, registry.Metrics]()
    trained = [training.outcome for training in outcomes.values() if training.outcome is not None]
    for kind, training in outcomes.items():
        if training.error is not None:
            remarks.print(f"No model for {kind}: {escape(training.error)}")
    for outcome in trained:
        name = f"{outcome['model_name']} v{outcome['version']}"
        metrics[name] = outcome["metrics"]
        rows += [
            (name, target, int(m["rows"]), outcome["shapes"], m.get("r2"), *(m[number] for number in registry.ERRORS))
            for target in registry.OUTPUTS
            if (m := outcome["metrics"]["unseen_shapes"].get(target))
        ]
    print_test_errors(metrics)
    if rows:
        _OUTCOMES.print(rows, title=f"error on shapes held out: {FOLDS_ARE}")
    for outcome in trained:
        text = standing(outcome["model_name"], outcome["version"], outcome["alias"], outcome["decision"])
        again = " Nothing was trained: its rows and the code are the same." if outcome["reused"] else ""
        console.print(f"{text}.{again}", markup=False)
        if left_out := outcome.get("left_out"):
            others = ", ".join(f"{count:,} of {name}" for name, count in left_out.items())
            console.print(
                f"It learned from rows of the protocol {outcome['protocol']}. Rows of other protocols were left out: {others}.",
                markup=False,
            )

"""Request trainings and wait for them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

from farm.api import Farm, trainings
from farm.api.trainings import TrainingNow, TrainingOrder, TrainingRequest
from farm.broker.celery_app import make_app
from farm.cli.campaigns import direct
from farm.cli.output import remarks
from farm.cli.progress import LogLines
from farm.coordinator.task_dispatch import trainings_of
from farm.db.states import TrainingState
from farm.errors import NoWorkers, TrainerMissing
from farm.formatting import seconds_text, share_text
from farm.services.session import Session

START_SECONDS = 60.0
"""Time limit for a trainer to begin."""

REFRESH_SECONDS = 0.2


def can_train() -> bool:
    """Whether this environment has what a trainer needs."""
    return all(importlib.util.find_spec(name) is not None for name in ("mlflow", "sklearn"))


def require_trainer(instead: str = "") -> None:
    """Raises `TrainerMissing`, which ends with `instead`, where a trainer could not start."""
    if not can_train():
        raise TrainerMissing(instead=instead)


def train_here(opened: Session, request: TrainingRequest, *, check: Callable[[], None]) -> dict[str, TrainingNow]:
    """Trains models on this machine's farm. This process dispatches the trainings, as a coordinator does: none need be up.

    Args:
        opened: the farm, with its broker.
        request: which models.
        check: is called while waiting, and may raise.

    Returns:
        Each training at its end, by device type.

    Raises:
        NoWorkers: no trainer begins.
    """
    assert opened.urls.broker_url is not None
    with make_app(opened.urls.broker_url) as app:
        dispatched = trainings_of(opened.engine, app, opened.settings)

        def look() -> None:
            check()
            dispatched.reconcile()

        return train_on(direct(opened), request, look=look)


def train_on(
    farm: Farm, request: TrainingRequest, *, look: Callable[[], None] = lambda: None
) -> dict[str, TrainingNow]:
    """Requests models of a farm and waits for them. `look` is called while waiting. Raises `NoWorkers`."""
    outcomes: dict[str, TrainingNow] = {}
    with remarks.status("training") as status:
        for training in farm.ask(trainings.request, TrainingOrder(**request.model_dump())):
            status.update(f"training a model for {training.device_type}")
            outcomes[training.device_type] = _wait(farm, training, look, show=status.update)
    return outcomes


def progress_text(training: TrainingNow) -> str:
    """`training a model for nvidia-h200: 42%, 7 min 10 s left`; the time left is that at the speed so far."""
    text, share, running_s = f"training a model for {training.device_type}", training.progress, training.running_s
    if training.state is TrainingState.REQUESTED or running_s is None:
        return f"{text}: waiting for a trainer"
    if not share:
        return f"{text}: for {seconds_text(running_s)} so far"
    if share >= 1:
        return f"{text}: every fold is learned, comparing and registering"
    return f"{text}: {share_text(share)}, {seconds_text(running_s * (1 - share) / share)} left"


def _wait(farm: Farm, training: TrainingNow, look: Callable[[], None], *, show: Callable[[str], None]) -> TrainingNow:
    waiting_since, lines = time.monotonic(), LogLines()
    while True:
        look()
        training = farm.ask(trainings.show, training.id)
        if training.state in (TrainingState.DONE, TrainingState.FAILED):
            return training
        text = progress_text(training)
        show(text)
        lines.print(lambda: text)  # noqa: B023 - called at once
        if training.state is TrainingState.RUNNING:
            waiting_since = time.monotonic()  # should its trainer die, another has this long again to begin
        elif time.monotonic() - waiting_since > START_SECONDS:
            raise NoWorkers(detail=f"No trainer took the request within {START_SECONDS:.0f} s.")
        time.sleep(REFRESH_SECONDS)

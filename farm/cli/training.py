"""Asking the trainer for models and waiting for what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from farm.broker import make_app
from farm.cli.output import remarks
from farm.cli.progress import LogLines
from farm.coordinator.task_dispatch import Errands, trainings_of
from farm.db import trainings
from farm.db.states import TrainingState
from farm.errors import NoWorkers
from farm.formatting import seconds_text, share_text
from farm.services.session import Session

ANSWER_SECONDS = 60.0
"""How long a trainer may take to begin."""


def train_types(
    opened: Session, device_types: Sequence[str], *, any_source: bool, check: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """Trains a model for each device type and returns each training as stored: state, outcome, error.

    They are looked after here, as a coordinator would: none need be up. Raises `NoWorkers` where no trainer begins;
    `check` is called while waiting and may raise too.
    """
    assert opened.urls.broker_url is not None
    asked = dict[str, int]()
    with opened.change("train") as change:
        for kind in device_types:
            asked[kind] = trainings.request(change.connection, device_type=kind, any_source=any_source)
            change.record("training", kind, key=str(asked[kind]), after={"any_source": any_source})
    outcomes: dict[str, dict[str, Any]] = {}
    with make_app(opened.urls.broker_url) as app, remarks.status("training") as status:
        looked_after = trainings_of(opened.engine, app, opened.settings)
        for kind, training_id in asked.items():
            status.update(f"training a model for {kind}")
            outcomes[kind] = _wait(opened, training_id, check, looked_after, show=status.update)
    return outcomes


def progress_text(training: dict[str, Any]) -> str:
    """`training a model for nvidia-h200: 42%, 7 min 10 s left`; the time left is that at the speed so far."""
    text, share = f"training a model for {training['device_type']}", training["progress"]
    if training["state"] == TrainingState.REQUESTED:
        return f"{text}: waiting for a trainer"
    if not share:
        return f"{text}: for {seconds_text(training['running_s'])} so far"
    if share >= 1:
        return f"{text}: every fold is learned, comparing and registering"
    left = training["running_s"] * (1 - share) / share
    return f"{text}: {share_text(share)}, {seconds_text(left)} left"


def _wait(
    opened: Session,
    training_id: int,
    check: Callable[[], None],
    looked_after: Errands,
    *,
    show: Callable[[str], None],
) -> dict[str, Any]:
    asked, lines = time.monotonic(), LogLines()
    while True:
        check()
        looked_after.tend()
        with opened.engine.connect() as connection:
            training = trainings.read(connection, training_id)
        if training["state"] in (TrainingState.DONE, TrainingState.FAILED):
            return training
        show(progress_text(training))
        lines.print(lambda: progress_text(training))  # noqa: B023 - called at once
        if training["state"] == TrainingState.RUNNING:
            asked = time.monotonic()  # should its trainer die, another has this long again to begin
        elif time.monotonic() - asked > ANSWER_SECONDS:
            raise NoWorkers(detail=f"No trainer took the request within {ANSWER_SECONDS:.0f} s.")
        time.sleep(0.2)

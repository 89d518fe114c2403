"""The trainer's task: look up a request, train, register the model, and record the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import shared_task
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

import farm
from farm.broker.queues import TRAIN
from farm.db import trainings
from farm.db.engine import make_engine
from farm.db.trainings import TrainingAttempt
from farm.errors import FarmError, TaskLost, TrainingOutOfMemory
from farm.registry import Trust, model_name
from farm.services.task_runner import run_task
from farm.services.task_spans import TaskSpans
from farm.settings import settings
from farm.tracing import ids_of_training, tracing
from farm.tracing.span import Value
from trainer.progress import Progress

if TYPE_CHECKING:
    from trainer.registry import TrainingOutcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided on a learning round; None where another trainer had decided."""

    what: str | None


@cache
def engine() -> Engine:
    """Each statement is a transaction of its own: a trainer that is paused must not hold a lock for as long."""
    url = settings().database_url
    assert url is not None, "farm-trainer sets FARM_DATABASE_URL"
    made = make_engine(url.get_secret_value(), application="farm trainer", pool_size=2)
    return made.execution_options(isolation_level="AUTOCOMMIT")


def _attributes(started: TrainingAttempt) -> dict[str, Value]:
    return {"training.id": started.training_id, "training.attempt": started.number, "device.type": started.device_type}


def _result(result: TrainingOutcome | Decided | str) -> tuple[str | None, dict[str, Value]]:
    """The error of a training and the attributes of its span."""
    if isinstance(result, str):
        return result, {}
    if isinstance(result, Decided):
        return None, {}
    alias = {} if result.alias is None else {"model.alias": result.alias}
    return None, {"rows": result.rows, "model.name": result.model_name, "model.version": result.version, **alias}


_SPANS: TaskSpans[TrainingAttempt, TrainingOutcome | Decided | str] = TaskSpans(
    name="run training",
    waiting="wait for trainer",
    ids_of=ids_of_training,
    engine=engine,
    queued_s=lambda started: started.queued_s,
    attributes=_attributes,
    result=_result,
)


@shared_task(name=TRAIN)
def train(training_id: int) -> None:
    """Carries out the training of that id, unless another trainer has it.

    Where the database goes away, or the process does, the training is taken back and started again.
    """
    progress = Progress()
    run_task(
        training_id,
        "training",
        start=_start,
        beat=lambda started: _beat(started, progress),
        attempt=lambda started: _attempt(started, progress),
        write_down=_write_down,
        spans=_SPANS,
    )


def _start(training_id: int) -> TrainingAttempt | None:
    with engine().connect() as connection:
        started = trainings.start(connection, training_id)
    if started is not None:
        log.info("training for %s", started.device_type, extra={"training_id": training_id})
    return started


def _beat(started: TrainingAttempt, progress: Progress) -> bool:
    with engine().connect() as connection:
        return trainings.beat(connection, started, progress=progress.share)


def _attempt(started: TrainingAttempt, progress: Progress) -> TrainingOutcome | Decided | str:
    """The outcome, `Decided` where a round was decided, or why there is neither. Raises `TaskLost`, and `OperationalError` where the database is away."""
    # With the first training come scikit-learn, pandas and MLflow, 200 MB: a trainer that waits for work does without.
    from trainer.reading import read_test_table, read_training_table
    from trainer.registry import train_and_register

    try:
        if started.lane_id is not None:
            from trainer.rounds import decide

            return Decided(decide(engine(), started))
        with tracing().span("read rows"):
            rows = read_training_table(engine(), started.device_type, any_source=started.any_source)
            test = read_test_table(engine(), started.device_type, any_source=started.any_source)
        return train_and_register(
            rows,
            started.device_type,
            tracking_uri=settings().tracking_uri,
            code_version=farm.__version__,
            protocol=started.protocol,
            deciding=lambda: _deciding(started),
            test=test,
            progress=progress,
            trust=Trust(settings(), engine()),
        )
    except (TaskLost, OperationalError):
        raise
    except MemoryError:
        log.exception("training out of memory", extra={"training_id": started.training_id})
        return str(TrainingOutOfMemory(device_type=started.device_type))
    except Exception as error:
        if isinstance(error, FarmError):
            return str(error)
        log.exception("training failed", extra={"training_id": started.training_id})
        return f"{type(error).__name__}: {error}"


@contextmanager
def _deciding(started: TrainingAttempt) -> Iterator[Callable[[], None]]:
    """Inside, no other trainer of the farm decides on that device type.

    What it yields raises `TaskLost` where this one no longer may, as one that was paused for too long: the training was
    taken back, or the lock was lost with its session.
    """
    with (
        tracing().span("decide promotion"),
        trainings.deciding(engine(), model_name(started.device_type)) as connection,
    ):

        def check() -> None:
            try:
                held = trainings.beat(connection, started)
            except OperationalError:
                held = False
            if not held:
                raise TaskLost(what="training", number=started.training_id)

        yield check


def _write_down(started: TrainingAttempt, result: TrainingOutcome | Decided | str) -> bool:
    if isinstance(result, Decided):
        # Written down in the transaction that decided.
        if result.what is not None:
            log.info("%s", result.what, extra={"training_id": started.training_id})
        return result.what is not None
    done: dict[str, Any] = {"error": result} if isinstance(result, str) else {"outcome": result.to_json()}
    with engine().connect() as connection:
        held = trainings.finish(connection, started, **done)
    if held and not isinstance(result, str):
        ids = {"training_id": started.training_id}
        log.info("registered %s version %s", result.model_name, result.version, extra=ids)
    return held

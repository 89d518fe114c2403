"""The trainer's one task: look up what is asked for, train, register, and write down what became of it."""

from __future__ import annotations

import logging
from functools import cache

from celery import shared_task
from sqlalchemy import Engine

import farm
from farm.broker import TRAIN
from farm.db import trainings
from farm.db.engine import make_engine
from farm.errors import FarmError
from farm.settings import settings
from trainer.registry import train_and_register
from trainer.table import read_training_table

log = logging.getLogger(__name__)


@cache
def engine() -> Engine:
    url = settings().database_url
    assert url is not None, "farm-trainer sets FARM_DATABASE_URL"
    return make_engine(url.get_secret_value(), application="farm trainer", pool_size=2)


@shared_task(name=TRAIN)
def train(training_id: int) -> None:
    """Carries out the training of that id, unless another trainer has it."""
    with engine().begin() as connection:
        asked = trainings.start(connection, int(training_id))
    if asked is None:
        return
    device_type, any_source = asked
    log.info("training for %s", device_type, extra={"training_id": training_id})
    try:
        with engine().connect() as connection:
            rows = read_training_table(connection, device_type, any_source=any_source)
        outcome = train_and_register(
            rows, device_type, tracking_uri=settings().tracking_uri, code_version=farm.__version__
        )
    except Exception as error:
        if not isinstance(error, FarmError):
            log.exception("training failed", extra={"training_id": training_id})
        why = str(error) if isinstance(error, FarmError) else f"{type(error).__name__}: {error}"
        with engine().begin() as connection:
            trainings.finish(connection, training_id, error=why)
        return
    with engine().begin() as connection:
        trainings.finish(connection, training_id, outcome=outcome.to_json())
    log.info("registered %s version %s", outcome.model_name, outcome.version, extra={"training_id": training_id})

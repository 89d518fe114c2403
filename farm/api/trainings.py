"""Trainings: request models of device types, and see what became of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from sqlalchemy import Connection
from sqlalchemy.exc import NoResultFound

from farm.api.access import Access
from farm.api.operation import MAX_ID, Cli, Document, operation
from farm.db import campaigns, trainings
from farm.db.audit import Change
from farm.db.states import Role, TrainingState
from farm.errors import BadInput, NotFound
from farm.protocols import UNKNOWN_PROTOCOL, ProtocolName


class NoSuchTraining(NotFound):
    """There is no training {training}."""


class TrainingRequest(Document):
    """Request for models of device types."""

    device_types: Annotated[list[str], Cli(argument=True)] = Field(
        default=[], max_length=1000, description="Device types; all with measurements if none."
    )
    campaign: Annotated[str | None, Field(description="The types of this campaign."), Cli(("--campaign", "-c"))] = None
    any_source: Annotated[bool, Field(description="Learn from recorded and imported rows too; the model says so.")] = (
        False
    )
    protocol: Annotated[
        str | None,
        Field(
            description="Learn from rows of this protocol; unknown: of imports that do not say it. Without it, those of the "
            "protocol farm, or of the most frequent one where there are none."
        ),
    ] = None


class TrainingOrder(TrainingRequest):
    """The same request as a JSON body, which is validated strictly."""

    model_config = ConfigDict(strict=True)


class TrainingNow(Document):
    """A training of one model. With its outcome when it is done, with an error when it failed."""

    id: int
    device_type: str
    state: TrainingState
    outcome: dict[str, Any] | None
    error: str | None
    progress: float | None = Field(description="share of its work that is done, from 0 to 1")
    running_s: float | None


@operation("GET", "/trainings/types")
def types(access: Access, wanted: TrainingRequest) -> list[str]:
    """The device types that a request would train. Refuses a request for types without measurements."""
    known_protocols = (*ProtocolName, UNKNOWN_PROTOCOL)
    if wanted.protocol is not None and wanted.protocol not in known_protocols:
        raise BadInput(detail=f"{wanted.protocol!r} is no protocol. The protocols: {', '.join(known_protocols)}.")
    with access.connect() as connection:
        campaign_id = None if wanted.campaign is None else campaigns.find(connection, wanted.campaign)["id"]
        known = trainings.trainable_types(
            connection, campaign_id=campaign_id, any_source=wanted.any_source, protocol=wanted.protocol
        )
        missing = sorted(set(wanted.device_types) - set(known))
        if known and not missing:
            return list(dict.fromkeys(wanted.device_types)) or known
        if wanted.protocol is not None:
            raise BadInput(detail=_nothing_of_protocol(connection, wanted, campaign_id, missing))
        rows = trainings.rows_by_source(connection, campaign_id=campaign_id)
    raise BadInput(detail=nothing_to_learn_from(missing, known, rows))


@operation("POST", "/trainings", role=Role.OPERATE)
def request(access: Access, wanted: TrainingOrder) -> list[TrainingNow]:
    """Request a model for each device type. The farm's trainer evaluates and registers it; the better version is champion."""
    device_types = types(access, wanted)
    with access.change(request) as change:
        ids = [_request(change, one, wanted) for one in device_types]
        return [_now(change.connection, training_id) for training_id in ids]


def _request(change: Change, device_type: str, wanted: TrainingRequest) -> int:
    of = {"any_source": wanted.any_source, "protocol": wanted.protocol}
    training_id = trainings.request(
        change.connection, device_type=device_type, any_source=wanted.any_source, protocol=wanted.protocol
    )
    change.record("training", device_type, key=str(training_id), after=of)
    return training_id


def _nothing_of_protocol(
    connection: Connection, wanted: TrainingRequest, campaign_id: int | None, missing: Sequence[str]
) -> str:
    """Why no model can be trained from rows of the wanted protocol."""
    sources = "" if wanted.any_source else "measured "
    of_types = f" of {', '.join(missing)}" if missing else ""
    text = f"There are no {sources}rows of the protocol {wanted.protocol}{of_types}."
    if not wanted.any_source:
        every = trainings.trainable_types(
            connection, campaign_id=campaign_id, any_source=True, protocol=wanted.protocol
        )
        others = sorted(set(missing or every) & set(every))
        if others:
            command = f"`farm train {' '.join(others)} --any-source --protocol {wanted.protocol}`"
            text += f" {command} learns from recorded and imported ones."
    return text


@operation("GET", "/trainings/{training}")
def show(
    access: Access, training: Annotated[int, Field(ge=1, le=MAX_ID, description="The id of a training.")]
) -> TrainingNow:
    """A training: its state, its progress, and the model that it made."""
    with access.connect() as connection:
        return _now(connection, training)


def _now(connection: Connection, training: int) -> TrainingNow:
    try:
        return TrainingNow(**trainings.read(connection, training))
    except NoResultFound:
        raise NoSuchTraining(training=training) from None


def nothing_to_learn_from(missing: Sequence[str], known: Sequence[str], rows: dict[str, dict[str, int]]) -> str:
    """Why no model can be trained.

    Args:
        missing: the types that were named and have no measured rows; none: no type has any.
        known: types that have measured rows.
        rows: rows of each type by their source.
    """
    others = {name: rows[name] for name in (missing or rows) if rows.get(name)}
    if others:
        counts = "; ".join(
            f"{name} has no measured rows, but {' and '.join(f'{n:,} {source}' for source, n in found.items())}"
            for name, found in others.items()
        )
        command = f"`farm train {' '.join(others)} --any-source`"
        without = [name for name in missing if name not in others]
        also = f" {', '.join(without)}: no rows of any source." if without else ""
        return f"{counts}. {command} learns from them.{also}"
    what = f"{', '.join(missing)}: no measurements" if missing else "There are no measurements to learn from"
    return f"{what}. Measured: {', '.join(known) or 'nothing yet'}. Run a campaign first."

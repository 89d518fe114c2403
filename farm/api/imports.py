"""Imports of rows that were measured elsewhere: each file is imported completely or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import MAX_ID, Document, InTable, Upload, operation
from farm.db import imports as stored
from farm.db.imports import PulledRows
from farm.db.states import Role
from farm.errors import BadInput, BadRecording, MissingColumns, RowNotImported
from farm.importers.formats import Format, importer_of
from farm.importers.landing import Import, Outcome, Table, import_table

SECONDS = 280.0
"""What a server gives an import."""


class DeviceOfImport(Document):
    """A device that belongs to one import."""

    uuid: Annotated[str, InTable("device", folds=True)]
    type: Annotated[str, InTable(folds=True, priority=1)]
    host: Annotated[str, InTable(folds=True, priority=2)]
    name: Annotated[str, InTable(folds=True, priority=3)]
    rows: Annotated[int, InTable()]
    facts: dict[str, Any]


class RowsLeftOut(Document):
    """What an import leaves out of a file on purpose."""

    rows: int
    what: str = Field(description="which rows, or a column of rows that came in")
    whole: bool = Field(description="whether the rows are left out, and not only a column")
    why: str


class ImportedFile(Document):
    """What became of a file. Of one that was imported before, only the UUIDs of its devices are known."""

    file: str
    sha256: str
    outcome: Outcome
    rows: int
    configurations: int
    new_configurations: int
    devices: list[DeviceOfImport]
    test_rows: int = Field(description="rows that the file labels as rows of a test set")
    left_out: list[RowsLeftOut]
    device_uuids: list[str]


def look(file_format: Format, upload: Upload, device: str | None) -> Table:
    """Reads the head of a file and hashes it. Raises `BadRecording`, `MissingColumns`."""
    importer = importer_of(file_format)
    return importer.look(upload.path, **({} if device is None or importer.device is None else {"device": device}))


@operation("POST", "/imports/{file_format}", role=Role.OPERATE, seconds=SECONDS)
def import_(
    access: Access,
    file_format: Annotated[Format, Field(description="The format of the file.")],
    upload: Upload,
    *,
    name: Annotated[
        str, Field(min_length=1, max_length=500, description="The name of the file, for messages and the audit.")
    ],
    device: Annotated[
        str | None, Field(max_length=200, description="The card, for a table of GPPerf that does not name it.")
    ] = None,
    dry_run: Annotated[bool, Field(description="Check every row, and store nothing.")] = False,
    pulled_from: Annotated[
        str | None, Field(min_length=1, max_length=200, description="The farm that the rows come from, for farm pull.")
    ] = None,
    pulled_campaign: Annotated[
        str | None, Field(pattern="^[0-9a-f]{64}$", description="The digest of their campaign there.")
    ] = None,
    after_row: Annotated[
        int, Field(ge=0, le=MAX_ID, description="Rows of this type up to this id were pulled before.")
    ] = 0,
    last_row: Annotated[int, Field(ge=0, le=MAX_ID, description="The last id of the rows there.")] = 0,
    whole: Annotated[
        bool, Field(description="Whether this completes the rows of all device types up to there.")
    ] = False,
) -> ImportedFile:
    """Import a file: its rows become rows of devices of their own, all of them or none. The same content again adds nothing."""
    if (pulled_from is None) is not (pulled_campaign is None):
        raise BadInput(detail="pulled_from and pulled_campaign go together")
    rows = None
    if pulled_from is not None and pulled_campaign is not None:
        rows = PulledRows(
            farm=pulled_from, campaign=pulled_campaign, after_row=after_row, last_row=last_row, whole=whole
        )
    try:
        table = replace(look(file_format, upload, device), sent_as=name, pulled=rows)
        done = import_table(
            access.session.engine, table, dry_run=dry_run, progress=upload.progress, actor=access.actor, name=name
        )
    except (BadRecording, MissingColumns, RowNotImported) as error:
        raise type(error)(**{**error.fields, "path": name}) from None
    return _document(done, name)


class PulledUpTo(Document):
    """The rows of another farm that are stored here, of one campaign and device type."""

    campaign: str = Field(description="its digest there")
    device_type: str
    last_row: int = Field(description="the highest id of these rows there")
    whole_row: int | None = Field(description="up to this id, the rows of every device type of the campaign are stored")


@operation("GET", "/pulled-rows")
def pulled(
    access: Access,
    *,
    farm: Annotated[str, Field(min_length=1, max_length=200, description="The name of the other farm.")],
) -> list[PulledUpTo]:
    """What farm pull stored of another farm, by campaign and device type."""
    with access.connect() as connection:
        return [PulledUpTo.model_validate(one) for one in stored.pulled(connection, farm)]


def _document(done: Import, name: str) -> ImportedFile:
    return ImportedFile(
        file=name,
        sha256=done.table.content,
        outcome=done.outcome,
        rows=done.table.rows,
        configurations=done.configurations,
        new_configurations=done.new_configurations,
        devices=[
            DeviceOfImport(
                uuid=one.identity.uuid,
                type=one.identity.type,
                host=one.host,
                name=one.identity.name,
                rows=one.rows,
                facts=dict(one.identity.facts),
            )
            for one in done.devices
        ],
        test_rows=done.test_rows,
        left_out=[RowsLeftOut.model_validate(one) for one in done.left_out],
        device_uuids=list(done.uuids),
    )

"""`farm delete`, `restore`, `deleted`, `vacuum`: remove campaigns, imports and models, and undo that."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from farm.api import deletions, farm_of
from farm.api.deletions import (
    KEPT_SECONDS,
    MAX_SECONDS,
    DeletedLine,
    Deletion,
    DeletionRequest,
    Kind,
    Restored,
    VacuumRequest,
    dependents,
    named,
)
from farm.cli.options import asks, takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.result_table import ResultTable
from farm.errors import BadInput, CampaignHasOpenWork
from farm.settings import settings
from farm.time_parsing import duration

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Required without a terminal.")]

_DELETED = ResultTable("deleted", DeletedLine)


@takes(DeletionRequest)
def delete(request: DeletionRequest, *, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete a campaign, an import or a model, with everything that depends on it. Undo with farm restore until farm vacuum.

    A campaign goes with its jobs, rounds and results; submitting its file again restores it. An import goes with the rows
    and devices that came from the file; the file can be imported again. A model goes with all its versions, or with the
    named one; the previous champion becomes champion.

    Examples:
        farm delete campaign quickstart
        farm delete import h200.parquet
        farm delete model nvidia-h200/3
    """
    if request.cancel and request.kind is not Kind.CAMPAIGN:
        raise BadInput(detail="--cancel is for campaigns.")
    with farm_of(settings()) as farm:
        found = farm.ask(deletions.delete, request.model_copy(update={"dry_run": True}))
        if not as_json:
            for line in dependents(found):
                remarks.print(line, markup=False)
        if not request.dry_run:
            if found.open_jobs and not request.cancel:
                raise CampaignHasOpenWork(name=found.name, jobs=found.open_jobs)
            if not yes:
                _confirm(f"Delete {named(found)}?")
            # What was shown is what is deleted, even if another thing has got the name in the meantime.
            which = found.digest or _versioned(found, request.name)
            found = farm.ask(deletions.delete, request.model_copy(update={"name": which}))
    if as_json:
        emit_json(found)
    elif request.dry_run:
        console.print("Nothing was deleted.")
    else:
        undo = f"farm restore {request.kind} {_versioned(found, request.name) or found.name}"
        console.print(f"{named(found)} is deleted. To undo this until farm vacuum: {undo}", markup=False)


def _versioned(found: Deletion, name: str) -> str:
    if len(found.versions) == 1 and "/" in name:
        return f"{found.name}/{found.versions[0]}"
    return found.name


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(detail=f"{question} Without a terminal, --yes confirms it.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(130)


@asks(deletions.restore)
def restore(done: Restored) -> None:
    """Restore a deleted campaign, import or model.

    To restore a backup: farm backup restore FOLDER.

    Examples:
        farm restore campaign quickstart
        farm restore model nvidia-h200/3
    """
    if done.kind is Kind.MODEL:
        champion = f" Version {done.champion} is the champion." if done.champion else ""
        console.print(f"{done.name} version {', '.join(done.versions)} is restored.{champion}")
    else:
        console.print(f"{done.kind} {done.name} is restored: {done.jobs:,} jobs, {done.rows:,} rows.", markup=False)


@asks(deletions.list_)
def deleted(found: list[DeletedLine]) -> None:
    """List deletions that can be restored, with their time and size.

    Examples:
        farm deleted
    """
    _DELETED.show(found, otherwise="There are no deletions to restore.")


@takes(VacuumRequest, without=("older_than_s",))
def vacuum(
    request: VacuumRequest,
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only what was deleted this long ago: 12h, 30d, 0s.")
    ] = f"{KEPT_SECONDS / 86_400:.0f}d",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove deleted data permanently.

    Examples:
        farm vacuum --older-than 30d
    """
    age = duration(older_than).total_seconds()
    if age > MAX_SECONDS:
        raise BadInput(detail=f"--older-than {older_than} is more than a hundred years.")
    trial = VacuumRequest(older_than_s=age, dry_run=True)
    listed = False
    with farm_of(settings()) as farm:
        found = farm.ask(deletions.vacuum, trial)
        if found.removed and not request.dry_run:
            if not yes:
                if sys.stdin.isatty() and not as_json:
                    _DELETED.show(found.removed)
                    listed = True
                _confirm(f"Remove {len(found.removed)} deletions permanently?")
            found = farm.ask(deletions.vacuum, trial.model_copy(update={"dry_run": False}))
    if as_json:
        emit_json(found)
    elif not found.removed:
        console.print(f"Nothing was deleted {older_than} ago or earlier.", markup=False)
    else:
        if not listed:
            _DELETED.show(found.removed)
        kernels = f", and {found.kernels:,} kernels that nothing else uses" if found.kernels else ""
        console.print(f"{'Would remove' if found.dry_run else 'Removed'} the above permanently{kernels}.")

"""`farm delete`, `restore`, `deleted`, `vacuum`: campaigns, imports and models that are no longer wanted."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from farm.api import deletions, farm_of
from farm.api.deletions import (
    DeletedLine,
    Deletion,
    DeletionRequest,
    Kind,
    RestoreRequest,
    VacuumRequest,
    dependents,
    named,
)
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.errors import BadInput, CampaignHasOpenWork
from farm.settings import settings
from farm.time_parsing import duration

delete = typer.Typer(
    help="Delete a campaign, an import or a model, with everything that depends on it. Undo with farm restore until farm vacuum.",
    no_args_is_help=True,
)
restore = typer.Typer(help="Restore a deleted campaign, import or model.", no_args_is_help=True)

CampaignArgument = Annotated[
    str, typer.Argument(help="A campaign's name, or the first six or more digits of its digest.", show_default=False)
]
ImportArgument = Annotated[
    str,
    typer.Argument(
        help="The name of the imported file, or the first six or more digits of its SHA-256.", show_default=False
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[/VERSION]",
        help="A model or a device type, with a version or an alias; all its versions if none.",
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed off a terminal.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]


@delete.command("campaign")
def delete_campaign(
    name: CampaignArgument,
    cancel: Annotated[bool, typer.Option("--cancel", help="Also a campaign with open jobs; it is cancelled.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a campaign with its jobs, rounds and results. Submitting its file again restores it.

    Examples:
        farm delete campaign quickstart
    """
    _delete(Kind.CAMPAIGN, name, cancel=cancel, yes=yes, dry_run=dry_run, as_json=as_json)


@delete.command("import")
def delete_import(
    name: ImportArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Delete the rows and devices that came from one imported file. The file can be imported again.

    Examples:
        farm delete import h200.parquet
    """
    _delete(Kind.IMPORT, name, cancel=False, yes=yes, dry_run=dry_run, as_json=as_json)


@delete.command("model")
def delete_model(
    name: ModelArgument, yes: YesOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Delete a version of a model, or all versions. The previous champion becomes champion.

    Examples:
        farm delete model nvidia-h200/3
    """
    _delete(Kind.MODEL, name, cancel=False, yes=yes, dry_run=dry_run, as_json=as_json)


def _delete(kind: Kind, name: str, *, cancel: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    request = DeletionRequest(kind=kind, name=name, cancel=cancel, dry_run=True)
    with farm_of(settings()) as farm:
        found = farm.ask(deletions.delete, request)
        if not as_json:
            _print_dependents(found)
        if not dry_run:
            if found.open_jobs and not cancel:
                raise CampaignHasOpenWork(name=found.name, jobs=found.open_jobs)
            if not yes:
                _confirm(f"Delete {named(found)}?")
            # What was shown is what is deleted, whatever has got its name in the meantime.
            which = found.digest or _versioned(found, name)
            found = farm.ask(deletions.delete, request.model_copy(update={"name": which, "dry_run": False}))
    if as_json:
        emit_json(found)
    elif dry_run:
        console.print("Nothing was deleted.")
    else:
        undo = f"farm restore {kind} {_versioned(found, name) or found.name}"
        console.print(f"{named(found)} is deleted. Until farm vacuum removes it: {undo}", markup=False)


def _versioned(found: Deletion, name: str) -> str:
    if len(found.versions) == 1 and "/" in name:
        return f"{found.name}/{found.versions[0]}"
    return found.name


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(detail=f"{question} Off a terminal, --yes confirms it.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(130)


def _print_dependents(found: Deletion) -> None:
    for line in dependents(found):
        remarks.print(line, markup=False)


@restore.command("campaign")
def restore_campaign(name: CampaignArgument, as_json: JsonOption = False) -> None:
    """Restore a deleted campaign.

    Examples:
        farm restore campaign quickstart
    """
    _restore(Kind.CAMPAIGN, name, as_json)


@restore.command("import")
def restore_import(name: ImportArgument, as_json: JsonOption = False) -> None:
    """Restore a deleted import.

    Examples:
        farm restore import h200.parquet
    """
    _restore(Kind.IMPORT, name, as_json)


@restore.command("model")
def restore_model(name: ModelArgument, as_json: JsonOption = False) -> None:
    """Restore a deleted version of a model, or all of them.

    Examples:
        farm restore model nvidia-h200/3
    """
    _restore(Kind.MODEL, name, as_json)


def _restore(kind: Kind, name: str, as_json: bool) -> None:
    with farm_of(settings()) as farm:
        done = farm.ask(deletions.restore, RestoreRequest(kind=kind, name=name))
    if as_json:
        emit_json(done)
    elif kind is Kind.MODEL:
        again = f" Version {done.champion} is the champion." if done.champion else ""
        console.print(f"{done.name} version {', '.join(done.versions)} is restored.{again}")
    else:
        console.print(f"{kind} {done.name} is restored: {done.jobs:,} jobs, {done.rows:,} rows.", markup=False)


def deleted(as_json: JsonOption = False) -> None:
    """List deletions that can be restored, with their time and size.

    Examples:
        farm deleted
    """
    with farm_of(settings()) as farm:
        found = farm.ask(deletions.list_)
    if as_json:
        emit_json(found)
    elif not found:
        console.print("Nothing is deleted.")
    else:
        _print_lines(found)


_DELETED = Table(
    "deleted",
    Column("kind"),
    Column("name", folds=True),
    Column("digest", priority=3),
    Column("deleted", "(UTC)", priority=1),
    Column("by", priority=4),
    Column("jobs", number=True, priority=5),
    Column("rows", number=True, priority=2),
    Column("size", "MB", number=True, priority=6),
)


def _print_lines(lines: list[DeletedLine]) -> None:
    _DELETED.print(
        (
            line.kind,
            line.name,
            None if line.digest is None else line.digest[:12],
            f"{line.deleted_at:%Y-%m-%d %H:%M}",
            line.deleted_by,
            line.jobs or None,
            line.rows or None,
            f"{line.bytes / 1e6:.3g}",
        )
        for line in lines
    )


def vacuum(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only what was deleted this long ago: 12h, 30d, 0s.")
    ] = "7d",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove deleted data permanently.

    Examples:
        farm vacuum --older-than 30d
    """
    age = duration(older_than).total_seconds()
    if age > deletions.LONGEST_SECONDS:
        raise BadInput(detail=f"--older-than {older_than} is more than a hundred years.")
    request = VacuumRequest(older_than_s=age, dry_run=True)
    listed = False
    with farm_of(settings()) as farm:
        found = farm.ask(deletions.vacuum, request)
        if found.removed and not dry_run:
            if not yes:
                if sys.stdin.isatty() and not as_json:
                    _print_lines(found.removed)
                    listed = True
                _confirm(f"Remove {len(found.removed)} deletions for good?")
            found = farm.ask(deletions.vacuum, request.model_copy(update={"dry_run": False}))
    if as_json:
        emit_json(found)
    elif not found.removed:
        console.print(f"Nothing was deleted {older_than} ago or earlier.", markup=False)
    else:
        if not listed:
            _print_lines(found.removed)
        kernels = f", and {found.kernels:,} kernels that nothing else uses" if found.kernels else ""
        console.print(f"{'Would remove' if found.dry_run else 'Removed'} the above for good{kernels}.")

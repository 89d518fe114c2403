"""Deletions: campaigns, imports and models that are deleted, restored, and vacuumed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import Cli, Document, InTable, operation
from farm.builds.stores import store_of
from farm.db import archive
from farm.db import deletions as stored
from farm.db.archive import Deleted
from farm.db.deletions import Dependents
from farm.db.engine import take_time
from farm.db.states import DeletionKind, Role
from farm.errors import ServiceUnavailable
from farm.registry import CHAMPION, ModelInfo, list_models
from farm.registry import deletions as models
from farm.registry.deletions import DeletedVersion, PlannedDeletion

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a vacuum keeps deletions by default."""

MAX_SECONDS = 100 * 365 * 24 * 3600.0


class Kind(StrEnum):
    """What can be deleted."""

    CAMPAIGN = "campaign"
    IMPORT = "import"
    MODEL = "model"


Name = Annotated[
    str,
    Field(
        max_length=4096,
        description="A campaign's name or digest, an import's file or SHA-256, or MODEL or MODEL/VERSION. The first six or more "
        "digits of a digest are enough.",
    ),
    Cli(argument=True),
]
OfKind = Annotated[Kind, Field(description="The kind of what NAME names."), Cli(argument=True)]
DryRun = Annotated[bool, Field(strict=True, description="Only show what would be removed.")]


class DeletionRequest(Document):
    """What to delete."""

    kind: OfKind
    name: Name
    cancel: bool = Field(
        default=False, strict=True, description="Delete a campaign even if it has open jobs, and cancel them."
    )
    dry_run: DryRun = False


class RestoreRequest(Document):
    """What to restore."""

    kind: OfKind
    name: Name


class VacuumRequest(Document):
    """What to remove permanently."""

    older_than_s: float = Field(
        default=KEPT_SECONDS, strict=True, ge=0, le=MAX_SECONDS, description="Only what was deleted this long ago."
    )
    dry_run: DryRun = False


class Deletion(Document):
    """Something that is deleted, or would be, and what depends on it."""

    kind: Kind
    name: str
    dry_run: bool
    digest: str | None = Field(default=None, description="of a campaign or import")
    owner: str | None = None
    state: str | None = Field(default=None, description="of a campaign, before it is deleted")
    jobs: int = 0
    open_jobs: int = Field(
        default=0, description="that are pending or running; a campaign with any is deleted only with `cancel`"
    )
    running: int = Field(default=0, description="jobs that workers hold: what they measure of them is lost")
    rounds: int = 0
    rows: int = 0
    sentinels: int = Field(default=0, description="rows that stay: they describe devices")
    kernels: int = Field(default=0, description="kernels that nothing else uses; a vacuum removes them")
    same_name: int = Field(default=0, description="other campaigns of this name, which stay")
    versions: list[str] = Field(default=[], description="versions of a model that go")
    next_champion: str | None = Field(default=None, description="the version that becomes champion")
    was_champion: bool = False
    trained: list[str] | None = Field(
        default=[],
        description="models that may have learned from these rows, which stay; null: the registry does not answer",
    )


class DeletedLine(Document):
    """Something that can be restored."""

    kind: Annotated[Kind, InTable()]
    name: Annotated[str, InTable(folds=True)]
    digest: Annotated[str | None, InTable(priority=3, text=lambda digest: digest and digest[:12])] = None
    deleted_at: Annotated[datetime, InTable("deleted", priority=1)]
    deleted_by: Annotated[str, InTable("by", priority=4)]
    jobs: Annotated[int, InTable(priority=5, text=lambda jobs: jobs or None)] = 0
    rows: Annotated[int, InTable(priority=2, text=lambda rows: rows or None)] = 0
    bytes: Annotated[int, InTable("size", "MB", priority=6, text=lambda size: f"{size / 1e6:.3g}")] = Field(
        description="size in the database, or of files in the registry"
    )


class Restored(Document):
    """What was restored."""

    kind: Kind
    name: str
    jobs: int = 0
    rows: int = 0
    versions: list[str] = Field(default=[], description="restored versions of a model")
    champion: str | None = Field(default=None, description="the one of them that is the champion again")


class Vacuumed(Document):
    """What was removed permanently, or would be."""

    dry_run: bool
    removed: list[DeletedLine]
    kernels: int = Field(description="built kernels that nothing else uses")


@operation("POST", "/deletions", role=Role.OPERATE)
def delete(access: Access, deletion: DeletionRequest) -> Deletion:
    """Delete a campaign, an import or a model. It can be restored until a vacuum removes it."""
    if deletion.kind is Kind.MODEL:
        uri = access.settings.tracking_uri
        if deletion.dry_run:
            return _of_model(models.plan_deletion(uri, deletion.name), dry_run=True)
        with access.change(delete) as change:
            gone = models.delete(uri, deletion.name, by=access.who)
            for model in gone.versions:
                change.record("model", f"{model.name}/{model.version}", before={"aliases": list(model.aliases)})
        return _of_model(gone, dry_run=False)
    of_campaign = deletion.kind is Kind.CAMPAIGN
    look = stored.dependents_of_campaign if of_campaign else stored.dependents_of_import
    if deletion.dry_run:
        with access.connect() as connection:
            take_time(connection)
            return _of_rows(access, look(connection, deletion.name), dry_run=True)
    with access.change(delete) as change:
        connection = change.connection
        take_time(connection)
        found = look(connection, deletion.name)
        if of_campaign:
            stored.delete_campaign(connection, found.key, by=access.who, cancel=deletion.cancel)
        else:
            stored.delete_import(connection, found.key, by=access.who)
        change.record(
            found.kind, found.name, key=found.key,
            before={"owner": found.owner, "state": found.state, "jobs": found.jobs, "rows": found.rows},
        )  # fmt: skip
    return _of_rows(access, found, dry_run=False)


def _of_rows(access: Access, found: Dependents, *, dry_run: bool) -> Deletion:
    return Deletion(
        kind=Kind(found.kind),
        name=found.name,
        dry_run=dry_run,
        digest=found.key,
        owner=found.owner,
        state=found.state,
        jobs=found.jobs,
        open_jobs=found.open_jobs,
        running=found.running,
        rounds=found.rounds,
        rows=found.rows,
        sentinels=found.sentinels,
        kernels=found.kernels_alone,
        same_name=found.same_name,
        trained=_trained(access, found),
    )


def _trained(access: Access, found: Dependents) -> list[str] | None:
    """Versions that were trained on rows of such a type and source since these rows are there."""
    if found.since is None:
        return []
    try:
        known = list_models(access.settings.tracking_uri)
    except ServiceUnavailable:
        return None
    sources = set(found.sources)
    return [
        " = ".join([f"{model.name}/{model.version}", *model.aliases])
        for model in known
        if model.device_type in found.device_types
        and model.created_at >= found.since
        and (model.sources is None or sources & set(model.sources.split(",")))
    ]


def _of_model(found: PlannedDeletion, *, dry_run: bool) -> Deletion:
    return Deletion(
        kind=Kind.MODEL,
        name=found.versions[0].name,
        dry_run=dry_run,
        versions=[model.version for model in found.versions],
        next_champion=found.next_champion,
        was_champion=_champion(found.versions) is not None,
    )


def named(found: Deletion) -> str:
    """`campaign quickstart`, `gemm-forest-nvidia-h200 version 3`."""
    if found.kind is Kind.MODEL:
        versions = ", ".join(found.versions)
        return f"{found.name} version{'s' if len(found.versions) > 1 else ''} {versions}"
    return f"{found.kind} {found.name}"


def dependents(found: Deletion) -> list[str]:
    """What goes with it, and what stays, one sentence each."""
    if found.kind is Kind.MODEL:
        said = [f"{named(found)}, with its training run and files."]
        if found.was_champion:
            said.append(
                f"Version {found.next_champion} becomes the champion."
                if found.next_champion
                else "No earlier champion is left, so the model will have no champion."
            )
        return said
    parts = [f"{found.rows:,} rows"]
    if found.kind is Kind.CAMPAIGN:
        parts = [f"{found.jobs:,} jobs", *([f"{found.rounds} rounds"] if found.rounds > 1 else []), *parts]
    digest = f" ({found.digest[:12]})" if found.digest else ""
    said = [f"{named(found)}{digest}: {', '.join(parts)}."]
    if found.kernels:
        said.append(f"Kernels that nothing else uses: {found.kernels:,}. farm vacuum removes them.")
    if found.sentinels:
        said.append(f"Sentinel rows that stay because they describe devices: {found.sentinels:,}.")
    if found.running:
        said.append(f"Jobs that are running now: {found.running:,}. Their measurements are lost.")
    if found.same_name:
        said.append(f"Other campaigns with this name, which stay: {found.same_name:,}.")
    if found.trained is None:
        said.append("The model registry does not respond. Models may have been trained on these rows.")
    elif found.trained:
        said.append(f"Models that may have been trained on these rows, which stay: {', '.join(found.trained)}.")
    return said


def _champion(versions: Sequence[ModelInfo]) -> str | None:
    return next((model.version for model in versions if CHAMPION in model.aliases), None)


@operation("GET", "/deletions")
def list_(access: Access) -> list[DeletedLine]:
    """What is deleted and can be restored, since when, and how large it is; the latest first."""
    with access.connect() as connection:
        of_rows = archive.listed(connection)
    lines = [*map(_line, of_rows), *map(_line_of_model, models.deleted_versions(access.settings.tracking_uri))]
    return sorted(lines, key=lambda line: line.deleted_at, reverse=True)


def _line(one: Deleted) -> DeletedLine:
    return DeletedLine(
        kind=Kind(one.kind),
        name=one.name,
        digest=one.key,
        deleted_at=one.deleted_at,
        deleted_by=one.deleted_by,
        jobs=one.jobs,
        rows=one.rows,
        bytes=one.bytes,
    )


def _line_of_model(one: DeletedVersion) -> DeletedLine:
    return DeletedLine(
        kind=Kind.MODEL,
        name=f"{one.name}/{one.version}",
        deleted_at=one.deleted_at,
        deleted_by=one.deleted_by,
        bytes=one.bytes,
    )


@operation("POST", "/deletions/restore", role=Role.OPERATE)
def restore(access: Access, restoring: RestoreRequest) -> Restored:
    """Restore something that was deleted."""
    if restoring.kind is Kind.MODEL:
        with access.change(restore) as change:
            versions = models.restore(access.settings.tracking_uri, restoring.name)
            for model in versions:
                change.record("model", f"{model.name}/{model.version}", after={"aliases": list(model.aliases)})
        return Restored(
            kind=Kind.MODEL,
            name=versions[0].name,
            versions=[model.version for model in versions],
            champion=_champion(versions),
        )
    with access.change(restore) as change:
        take_time(change.connection)
        found = archive.restore(change.connection, DeletionKind(restoring.kind), restoring.name)
        change.record(found.kind, found.name, key=found.key, after={"jobs": found.jobs, "rows": found.rows})
    return Restored(kind=restoring.kind, name=found.name, jobs=found.jobs, rows=found.rows)


@operation("POST", "/deletions/vacuum", role=Role.OPERATE)
def vacuum(access: Access, limits: VacuumRequest) -> Vacuumed:
    """Permanently remove what was deleted before a given age."""
    older_than = timedelta(seconds=limits.older_than_s)
    uri = access.settings.tracking_uri
    if limits.dry_run:
        with access.connect() as connection:
            take_time(connection)
            done = stored.vacuum(connection, older_than=older_than, dry_run=True)
        return _vacuumed(done, models.vacuum(uri, older_than=older_than, dry_run=True), dry_run=True)
    with access.change(vacuum) as change:
        take_time(change.connection)
        done = stored.vacuum(change.connection, older_than=older_than)
        for one in done.deletions:
            change.record(one.kind, one.name, key=one.key, before={"jobs": one.jobs, "rows": one.rows})
        change.record(
            "deletions",
            f"older than {older_than}",
            after={"removed": len(done.deletions), "kernels": len(done.kernels)},
        )
    store = store_of(access.settings, access.session.engine)
    for hash_ in done.kernels:
        store.remove(hash_)
    with access.change(vacuum) as change:
        versions = models.vacuum(uri, older_than=older_than)
        for version in versions:
            change.record("model", f"{version.name}/{version.version}", before={"run": version.run_id})
        if not versions:
            change.nothing()
    return _vacuumed(done, versions, dry_run=False)


def _vacuumed(done: stored.Vacuumed, versions: Sequence[DeletedVersion], *, dry_run: bool) -> Vacuumed:
    removed = [*map(_line, done.deletions), *map(_line_of_model, versions)]
    return Vacuumed(dry_run=dry_run, removed=removed, kernels=len(done.kernels))

"""Deletes model versions. They can be restored until they are vacuumed.

A deleted version keeps its run and files, and a tag hides it from the farm. Its aliases are removed, so other programs do not
pull it either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from farm.errors import NoSuchDeletion
from farm.registry.files import repository
from farm.registry.mlflow_client import has_been_used, registry_client
from farm.registry.model_names import model_name
from farm.registry.models import (
    CHAMPION,
    DELETED_TAG,
    ModelInfo,
    every_version,
    list_models,
    model_info,
)
from farm.registry.promotions import make_champion, previous_champions


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedVersion:
    """A deleted model version."""

    name: str
    version: str
    run_id: str | None
    deleted_at: datetime
    deleted_by: str
    # Its former aliases, and the version that is champion in its place.
    aliases: tuple[str, ...]
    instead: str | None
    # Size of its files.
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeletion:
    """Versions of one model to delete, and the next champion: None if the champion stays, or if no earlier one is left."""

    versions: tuple[ModelInfo, ...]
    next_champion: str | None


def plan_deletion(uri: str, which: str) -> PlannedDeletion:
    """Resolves `which`: NAME/VERSION (or alias), or NAME for all versions of a model. Raises `NoSuchModel`."""
    name, version = _split(which)
    of_name = [model for model in list_models(uri) if model.name == name]
    chosen = of_name if version is None and of_name else [model_info(uri, name, version or CHAMPION)]
    left = {model.version for model in of_name} - {model.version for model in chosen}
    following = None
    if any(CHAMPION in model.aliases for model in chosen):
        with registry_client(uri) as client:
            following = next((one for one in reversed(previous_champions(client, name)) if one in left), None)
    return PlannedDeletion(versions=tuple(chosen), next_champion=following)


def _split(which: str) -> tuple[str, str | None]:
    name, _, version = which.partition("/")
    return model_name(name), version or None


def delete(uri: str, which: str, *, by: str) -> PlannedDeletion:
    """Deletes versions. An earlier champion, if there is one, replaces a deleted champion. Raises `NoSuchModel`."""
    found = plan_deletion(uri, which)
    with registry_client(uri) as client:
        for model in found.versions:
            record = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "by": by,
                "aliases": list(model.aliases),
                "instead": found.next_champion if CHAMPION in model.aliases else None,
                "bytes": _size(client, uri, model),
            }
            # Aliases first: an interruption then leaves a version without aliases, not a hidden champion.
            for alias in model.aliases:
                if alias == CHAMPION and found.next_champion is not None:
                    make_champion(
                        client, model.name, found.next_champion, f"version {model.version} was deleted", back=True
                    )
                else:
                    client.delete_registered_model_alias(model.name, alias)
            client.set_model_version_tag(model.name, model.version, DELETED_TAG, json.dumps(record))
    return found


def deleted_versions(uri: str) -> list[DeletedVersion]:
    """Every deleted version, latest deletion first."""
    if not has_been_used(uri):
        return []
    with registry_client(uri) as client:
        found = [_deleted(version) for version in every_version(client) if DELETED_TAG in version.tags]
    return sorted(found, key=lambda one: one.deleted_at, reverse=True)


def _deleted(version: Any) -> DeletedVersion:
    record = json.loads(version.tags[DELETED_TAG])
    return DeletedVersion(
        name=version.name,
        version=str(version.version),
        run_id=version.run_id or None,
        deleted_at=datetime.fromisoformat(record["at"]),
        deleted_by=record["by"],
        aliases=tuple(record["aliases"]),
        instead=record["instead"],
        bytes=record["bytes"],
    )


def restore(uri: str, which: str) -> list[ModelInfo]:
    """Restores deleted versions with their aliases, except for aliases that another version has now.

    Raises `NoSuchDeletion`.
    """
    name, version = _split(which)
    every = deleted_versions(uri)
    chosen = [one for one in every if one.name == name and version in (None, one.version)]
    if not chosen:
        known = ", ".join(f"{one.name}/{one.version}" for one in every) or "none"
        raise NoSuchDeletion(kind="model", name=which, known=known)
    with registry_client(uri) as client:
        for one in chosen:
            client.delete_model_version_tag(one.name, one.version, DELETED_TAG)
            present = client.get_registered_model(one.name).aliases
            for alias in one.aliases:
                holder = present.get(alias)
                if alias == CHAMPION and (holder is None or str(holder) == one.instead):
                    make_champion(client, one.name, one.version, "restored")
                elif holder is None:
                    client.set_registered_model_alias(one.name, alias, one.version)
    return [model_info(uri, one.name, one.version) for one in chosen]


def vacuum(uri: str, *, older_than: timedelta, dry_run: bool = False) -> list[DeletedVersion]:
    """Permanently removes versions that were deleted that long ago, with their runs and files."""
    limit = datetime.now(UTC) - older_than
    old = [one for one in deleted_versions(uri) if one.deleted_at <= limit]
    if old and not dry_run:
        with registry_client(uri) as client:
            for one in old:
                _remove(client, uri, one)
    return old


def _remove(client: Any, uri: str, one: DeletedVersion) -> None:
    source = client.get_model_version_download_uri(one.name, one.version)
    client.delete_model_version(one.name, one.version)
    _delete_files(uri, source)
    if one.run_id is None or any(other.run_id == one.run_id for other in every_version(client)):
        return
    run = client.get_run(one.run_id)
    for logged in client.search_logged_models([run.info.experiment_id], f"source_run_id = '{one.run_id}'"):
        client.delete_logged_model(logged.model_id)
    children = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{one.run_id}'")
    for each in [*children, run]:
        _delete_files(uri, each.info.artifact_uri)
        client.delete_run(each.info.run_id)


def _delete_files(uri: str, location: str) -> None:
    place = repository(uri, location)
    if place.list_artifacts():
        place.delete_artifacts()


def _size(client: Any, uri: str, model: ModelInfo) -> int:
    """Bytes of the files of a version and of its run."""
    places = [client.get_model_version_download_uri(model.name, model.version)]
    if model.run_id is not None:
        places.append(client.get_run(model.run_id).info.artifact_uri)
    return sum(size for place in places for size in _sizes(repository(uri, place), None))


def _sizes(repository: Any, folder: str | None) -> Iterator[int]:
    for file in repository.list_artifacts(folder):
        if file.is_dir:
            yield from _sizes(repository, file.path)
        else:
            yield file.file_size or 0

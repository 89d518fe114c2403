"""Deleting campaigns, imports and models after a confirmation, and the list of what can be restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import Response

from farm.api import deletions
from farm.api.deletions import Deletion, DeletionRequest, Kind, RestoreRequest, dependents, named
from farm.db.imports import key_of
from farm.web.pages.rendering import Visit, Visiting, linked, segment

router = APIRouter()


@dataclass(frozen=True)
class Origin:
    """The pages that lead to a confirmation: the list for its breadcrumb, and the page that Cancel returns to."""

    list_name: str
    list_path: str
    path: str


_DEVICES = Origin("Devices", "/devices", "/devices")


@router.get("/campaigns/{campaign}/delete", name="delete-campaign")
def confirm_campaign(visit: Visiting, campaign: str) -> Response:
    found = _look(visit, Kind.CAMPAIGN, campaign)
    return _confirmation(
        visit, found, Origin("Campaigns", "/", f"/campaigns/{segment((found.digest or campaign)[:12])}")
    )


@router.post("/campaigns/{campaign}/delete")
def delete_campaign(visit: Visiting, campaign: str, cancel: Annotated[bool, Form()] = False) -> Response:
    return _delete(visit, DeletionRequest(kind=Kind.CAMPAIGN, name=campaign, cancel=cancel))


@router.get("/imports/{import_}/delete", name="delete-import")
def confirm_import(visit: Visiting, import_: str) -> Response:
    return _confirmation(visit, _look(visit, Kind.IMPORT, import_), _DEVICES)


@router.post("/imports/{import_}/delete")
def delete_import(visit: Visiting, import_: str) -> Response:
    return _delete(visit, DeletionRequest(kind=Kind.IMPORT, name=import_))


@router.get("/models/{model}/delete", name="delete-model")
def confirm_model(visit: Visiting, model: str, version: Annotated[str, Query()] = "") -> Response:
    found = _look(visit, Kind.MODEL, _model_versions(model, version))
    page = linked(f"/models/{segment(found.name)}", {"version": version})
    return _confirmation(visit, found, Origin("Models", "/models", page), version=version)


@router.post("/models/{model}/delete")
def delete_model(visit: Visiting, model: str, version: Annotated[str, Form()] = "") -> Response:
    return _delete(visit, DeletionRequest(kind=Kind.MODEL, name=_model_versions(model, version)))


def _model_versions(model: str, version: str) -> str:
    """A model with all its versions, unless one is named."""
    return f"{model}/{version}" if version else model


def _look(visit: Visit, kind: Kind, name: str) -> Deletion:
    return visit.ask(deletions.delete, DeletionRequest(kind=kind, name=name, dry_run=True))


def _confirmation(visit: Visit, found: Deletion, origin: Origin, *, version: str = "") -> Response:
    title = found.name if found.kind is Kind.CAMPAIGN else named(found)
    return visit.show(
        "delete.html",
        deletion=found,
        what=title,
        dependents=dependents(found),
        origin=origin,
        action=_action(found),
        model_version=version,
    )


def _action(found: Deletion) -> str:
    """Where the confirmation is sent. By digest, as the name of a campaign or file may come again."""
    by = found.name if found.kind is Kind.MODEL else (found.digest or found.name)[:16]
    return f"/{found.kind}s/{segment(by)}/delete"


def _delete(visit: Visit, request: DeletionRequest) -> Response:
    visit.ask(deletions.delete, request)
    return visit.go("/deleted", "deleted")


def import_page(device_uuid: str) -> str:
    """The confirmation that deletes the import that a device belongs to."""
    return f"/imports/{segment(key_of(device_uuid))}/delete"


@router.get("/deleted", name="deleted")
def list_(visit: Visiting) -> Response:
    return visit.show("deleted.html", deleted=visit.ask(deletions.list_))


@router.post("/deleted/restore")
def restore(visit: Visiting, kind: Annotated[Kind, Form()], name: Annotated[str, Form()]) -> Response:
    visit.ask(deletions.restore, RestoreRequest(kind=kind, name=name))
    return visit.go("/deleted", "restored")

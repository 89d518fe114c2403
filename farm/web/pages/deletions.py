"""Deleting a campaign after a question, and what is deleted and can be restored."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import Response

from farm.api import deletions
from farm.api.deletions import DeletionRequest, Kind, RestoreRequest, dependents
from farm.web.pages.rendering import Visiting

router = APIRouter()


@router.get("/campaigns/{campaign}/delete", name="delete")
def ask(visit: Visiting, campaign: str) -> Response:
    found = visit.ask(deletions.delete, DeletionRequest(kind=Kind.CAMPAIGN, name=campaign, dry_run=True))
    return visit.show("delete.html", deletion=found, said_of_it=dependents(found))


@router.post("/campaigns/{campaign}/delete")
def delete(visit: Visiting, campaign: str, cancel: Annotated[bool, Form()] = False) -> Response:
    visit.ask(deletions.delete, DeletionRequest(kind=Kind.CAMPAIGN, name=campaign, cancel=cancel))
    return visit.go("/deleted", "deleted")


@router.get("/deleted", name="deleted")
def list_(visit: Visiting) -> Response:
    return visit.show("deleted.html", deleted=visit.ask(deletions.list_))


@router.post("/deleted/restore")
def restore(visit: Visiting, kind: Annotated[Kind, Form()], name: Annotated[str, Form()]) -> Response:
    visit.ask(deletions.restore, RestoreRequest(kind=kind, name=name))
    return visit.go("/deleted", "restored")

"""Submitting a campaign: the file as text or as a file, checked as on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import fastapi
from fastapi import APIRouter, UploadFile
from fastapi.responses import Response
from starlette.datastructures import FormData

from farm.api import campaigns
from farm.api.campaigns import SubmitOptions
from farm.errors import BadInput
from farm.web.pages.campaigns import path_of
from farm.web.pages.forms import Form, Posted
from farm.web.pages.rendering import Visiting
from farm.web.routes import ExpensivePage, runs

router = APIRouter(route_class=ExpensivePage)

FIRST = """\
name: my-first-campaign
description: What this campaign measures

# Measure each configuration once, on any device that can run it.
targets: any

problems:
  - shapes: [256x256x256, 512x512x512, 1024x1024x1024]
    types: f32

kernels:
  - family: blas
    threads: [1, 2]
  - family: tiled
    tile: [8, 16, 32]
"""
"""What the form holds at first: small, and it measures on any machine."""

NAME = "campaign.yaml"


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with the file, and the line of the text that it is about."""

    message: str
    line: int | None = None
    text: str | None = None


@router.get("/submit", name="submit")
def form(visit: Visiting) -> Response:
    return visit.show(
        "submit.html", text=FIRST, name=NAME, form=Form(SubmitOptions, FormData()), mistakes=[], planned=None
    )


@router.post("/submit")
@runs(campaigns.submit)
def submit(
    visit: Visiting,
    posted: Posted,
    text: Annotated[str, fastapi.Form()] = "",
    to: Annotated[str, fastapi.Form()] = "check",
    file: Annotated[UploadFile | None, fastapi.File()] = None,
) -> Response:
    options = Form(SubmitOptions, posted, fields=("allow_missing",))
    name, text = NAME, text.replace("\r\n", "\n")
    planned, mistakes = None, list[Mistake]()
    try:
        if file is not None and file.filename:
            name, text = _shortened(file.filename), _read(file)
        query = options.arguments(campaigns.submit, text=text, name=name)
        if to == "submit":
            done = visit.ask(campaigns.submit, **query)
            message = "submitted" if done.new else "more" if done.new_jobs else "known"
            return visit.go(path_of(done.digest), message, sum(done.counts.values()) if done.new else done.new_jobs)
        planned = visit.ask(campaigns.check, **query)
    except BadInput as error:
        mistakes = [_mistake(line, name, text) for line in str(error).splitlines()]
    return visit.show(
        "submit.html",
        text=text,
        name=name,
        form=options,
        mistakes=mistakes,
        planned=planned,
        status=400 if mistakes else 200,
    )


def _shortened(name: str) -> str:
    kept = "".join(letter for letter in name if letter.isprintable()).rpartition("/")[2].rpartition("\\")[2]
    return kept[-200:] or NAME


def _read(file: UploadFile) -> str:
    content = file.file.read()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadInput(
            detail=f"{file.filename}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8 text"
        ) from None


def _mistake(message: str, name: str, text: str) -> Mistake:
    found = re.match(rf"{re.escape(name)}:(\d{{1,9}})\b", message)
    lines = text.splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        return Mistake(message)
    return Mistake(message, int(found[1]), lines[int(found[1]) - 1][:200])

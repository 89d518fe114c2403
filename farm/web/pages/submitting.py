"""Submitting a campaign: the file as text or as a file, checked as on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile
from fastapi.responses import Response

from farm.api import campaigns
from farm.api.campaigns import Submission
from farm.errors import BadInput
from farm.web.pages.campaigns import path_of
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
    return visit.show("submit.html", text=FIRST, name=NAME, allow_missing=False, mistakes=[], planned=None)


@router.post("/submit")
@runs(campaigns.submit)
def submit(
    visit: Visiting,
    text: Annotated[str, Form()] = "",
    to: Annotated[str, Form()] = "check",
    allow_missing: Annotated[bool, Form()] = False,
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    name, text = NAME, text.replace("\r\n", "\n")
    planned, mistakes = None, list[Mistake]()
    try:
        if file is not None and file.filename:
            name, text = _shortened(file.filename), _read(file)
        submission = Submission(text=text, name=name, owner=None, allow_missing=allow_missing)
        if to == "submit":
            done = visit.ask(campaigns.submit, submission)
            message = "submitted" if done.new else "more" if done.new_jobs else "known"
            return visit.go(path_of(done.digest), message, sum(done.counts.values()) if done.new else done.new_jobs)
        planned = visit.ask(campaigns.check, submission)
    except BadInput as error:
        mistakes = [_mistake(line, name, text) for line in str(error).splitlines()]
    return visit.show(
        "submit.html",
        text=text,
        name=name,
        allow_missing=allow_missing,
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

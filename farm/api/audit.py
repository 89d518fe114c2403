"""The audit: who changed what, when and from where."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from farm.api.access import Access
from farm.api.operation import MAX_ID, Cli, Document, Download, InTable, made_file, operation
from farm.db import audit
from farm.db.states import Role, Way
from farm.time_parsing import moment

Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Who = Annotated[str | None, Field(description="Only changes by this token or account.")]
What = Annotated[str | None, Field(description="Only operations with this in their name: cancel, devices.")]
On = Annotated[
    str | None, Field(description="Only changes of what has this in its name, or a digest or UUID that begins so.")
]
Since = Annotated[
    str | None, Field(description="Only from this time on: 7d, or 2026-11-22 (UTC)."), Cli(metavar="TIME")
]

PAGE = 1000
"""Rows that an export reads at a time."""


class AuditLine(Document):
    """A change: who made it, how and from where, and the values before and after."""

    id: int
    at: Annotated[datetime, InTable(text=lambda at: f"{at:%Y-%m-%d %H:%M:%S}")]
    who: Annotated[str, InTable(folds=True)] = Field(description="the token's name, or the account of the machine")
    role: Annotated[Role, InTable(priority=4)]
    way: Annotated[Way, InTable(priority=3)] = Field(description="cli is a command on the database itself")
    origin: Annotated[str, InTable("from", folds=True, priority=5)] = Field(
        description="the address of the client, or account@host"
    )
    operation: Annotated[str, InTable(folds=True)]
    kind: Annotated[str, InTable("of", priority=2)] = Field(
        description="what was changed: campaign, device, model, token, ..."
    )
    name: Annotated[str, InTable(folds=True)]
    key: Annotated[str | None, InTable(priority=6, text=lambda key: key and key[:12])] = Field(
        description="a digest or UUID, which distinguishes it from others of the same name"
    )
    before: Annotated[dict[str, Any] | None, InTable(folds=True, priority=2)]
    after: Annotated[dict[str, Any] | None, InTable(folds=True, priority=1)]


@operation("GET", "/audit", role=Role.OPERATE)
def list_(
    access: Access,
    *,
    who: Who = None,
    what: What = None,
    on: On = None,
    since: Since = None,
    before: Annotated[Id | None, Field(description="Only with a lower id: the next page.")] = None,
    after: Annotated[Id | None, Field(description="Only with a higher id, the oldest first.")] = None,
    limit: Annotated[int, Field(ge=1, le=PAGE, description="At most this many."), Cli(("--limit", "-n"))] = 50,
) -> list[AuditLine]:
    """Changes that people made, the newest first."""
    from_ = None if since is None else moment(since)
    with access.connect() as connection:
        found = audit.records(
            connection, who=who, what=what, on=on, since=from_, before=before, after=after, limit=limit
        )
    return [AuditLine.model_validate(one) for one in found]


@operation("GET", "/audit/export", role=Role.OPERATE, sends="application/x-ndjson")
def export(access: Access, *, who: Who = None, what: What = None, on: On = None, since: Since = None) -> Download:
    """Changes as JSON lines, the oldest first."""
    from_ = None if since is None else moment(since)
    rows = 0
    with made_file("audit.jsonl") as path, path.open("w", encoding="utf-8") as file:
        for one in _all(access, who=who, what=what, on=on, since=from_):
            file.write(AuditLine.model_validate(one).model_dump_json() + "\n")
            rows += 1
    return Download(path=path, media_type="application/x-ndjson", name="audit.jsonl", rows=rows)


class Trim(Document):
    """Request to remove old rows of the audit."""

    before: Annotated[str, Field(description="Remove what is older: 365d, or 2026-01-01 (UTC)."), Cli(metavar="TIME")]


class Trimmed(Document):
    """What was removed from the audit."""

    before: datetime
    removed: int = Field(description="rows")


@operation("POST", "/audit/trim", role=Role.ADMIN, privileged=True)
def trim(access: Access, trimming: Trim) -> Trimmed:
    """Remove old rows permanently. The audit records this."""
    before = moment(trimming.before)
    with access.change(trim) as change:
        return Trimmed(before=before, removed=audit.trim(change, before))


def _all(access: Access, **asked: Any) -> Iterator[audit.ChangeRecord]:
    last = 0
    with access.connect() as connection:
        while found := audit.records(connection, **asked, after=last, limit=PAGE):
            yield from found
            last = found[-1].id

"""The JSON Schema of campaign files, for editors. It has no data of the farm, so it needs no sign-in."""

from __future__ import annotations

import hashlib
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from farm.campaign.schema import PATH, campaign_schema_text

router = APIRouter()


@cache
def _published() -> tuple[bytes, str]:
    """The schema and its tag."""
    content = campaign_schema_text().encode()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@router.get(PATH)
def campaign(request: Request) -> Response:
    content, tag = _published()
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/schema+json", headers=headers)

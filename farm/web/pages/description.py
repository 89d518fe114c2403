"""The API for people: its operations, and how each is asked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from farm.api import PREFIX
from farm.web.pages.rendering import Visiting
from farm.web.security import Policy

router = APIRouter()


@dataclass(frozen=True)
class Described:
    """One operation."""

    name: str
    method: str
    path: str
    tag: str
    text: str
    parameters: list[dict[str, Any]]
    curl: str


_EXAMPLES = {
    "campaign": "quickstart",
    "name": "nvidia-h200",
    "shape": "4096x4096x1024",
    "side": "nvidia-h200",
}
_BODIES: dict[str, Any] = {
    "campaigns_submit": {"text": "name: …"},
    "campaigns_check": {"text": "name: …"},
    "deletions_delete": {"kind": "campaign", "name": "quickstart", "dry_run": True},
    "deletions_restore": {"kind": "campaign", "name": "quickstart"},
    "deletions_vacuum": {"older_than_s": 2_592_000, "dry_run": True},
    "jobs_retry": {"states": ["dead"]},
    "devices_drain": {"which": ["host:gpu01"]},
    "devices_quarantine": {"which": ["GPU-f168"], "reason": "hot"},
    "devices_resume": {"which": ["host:gpu01"]},
    "models_predict": {"configurations": ["tiled(tile=16) 4096x4096x4096 f32"], "device_type": "nvidia-h200"},
}


@router.get("/api", name="api")
def describe(visit: Visiting) -> Response:
    policy: Policy = visit.request.app.state.policy
    url = visit.request.base_url
    # Programs know no names below localhost, and that name is nobody else's business.
    base = str(url.replace(hostname="localhost") if url.hostname == policy.own_name else url).rstrip("/")
    found = list(_described(visit.request.app.openapi(), base, policy))
    tags = list(dict.fromkeys(one.tag for one in found))
    return visit.show(
        "api.html",
        operations={tag: [one for one in found if one.tag == tag] for tag in tags},
        tokens=policy.tokens,
        description=f"{PREFIX}/openapi.json",
    )


def _described(document: dict[str, Any], base: str, policy: Policy) -> Iterator[Described]:
    for path, methods in document["paths"].items():
        for method, known in methods.items():
            yield Described(
                name=known["operationId"],
                method=method.upper(),
                path=path,
                tag=known["tags"][0],
                text=known["description"],
                parameters=known.get("parameters", []),
                curl=_curl(known, method, base + path, tokens=policy.tokens),
            )


def _curl(known: dict[str, Any], method: str, url: str, *, tokens: bool) -> str:
    query = []
    for parameter in known.get("parameters", []):
        example = _EXAMPLES.get(parameter["name"], parameter["name"].upper())
        if parameter["in"] == "path":
            url = url.replace(f"{{{parameter['name']}}}", example)
        elif parameter.get("required"):
            query.append(f"{parameter['name']}={example}")
    words = [shlex.quote(url + (f"?{'&'.join(query)}" if query else ""))]
    if tokens:
        words.insert(0, '-H "Authorization: Bearer $FARM_API_TOKEN"')
    if "requestBody" in known:
        body = json.dumps(_BODIES.get(known["operationId"], {}), ensure_ascii=False)
        words += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    elif method == "post":
        words.insert(0, "-X POST")
    return f"curl {' '.join(words)}"

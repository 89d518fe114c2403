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
from farm.api.operation import FILE
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


_EXAMPLES: dict[str, Any] = {
    "campaign": "quickstart",
    "dry_run": True,
    "file_format": "dataset",
    "kind": "campaign",
    "shape": "4096x4096x1024",
    "side": "nvidia-h200",
}
"""Values of parameters and fields in examples, by name. Others are their names in capitals."""


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
                curl=_curl(document, known, method, base + path, tokens=policy.tokens),
            )


def _curl(document: dict[str, Any], known: dict[str, Any], method: str, url: str, *, tokens: bool) -> str:
    query = []
    for parameter in known.get("parameters", []):
        example = str(_EXAMPLES.get(parameter["name"], parameter["name"].upper()))
        if parameter["in"] == "path":
            url = url.replace(f"{{{parameter['name']}}}", example)
        elif parameter.get("required"):
            query.append(f"{parameter['name']}={example}")
    words = [shlex.quote(url + (f"?{'&'.join(query)}" if query else ""))]
    if tokens:
        words.insert(0, '-H "Authorization: Bearer $FARM_API_TOKEN"')
    if "requestBody" in known:
        ((media_type, content),) = known["requestBody"]["content"].items()
        words += [f"-H 'Content-Type: {media_type}'", f"-d {shlex.quote(_body(document, content['schema']))}"]
        if media_type == FILE:
            words[-1] = "--data-binary @FILE"
    elif method == "post":
        words.insert(0, "-X POST")
    return f"curl {' '.join(words)}"


def _body(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """An example of a JSON body: its required fields, those with declared examples, and `dry_run`."""
    described = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {})
    required, body = described.get("required", ()), {}
    for name, field in described.get("properties", {}).items():
        if "examples" in field:
            body[name] = field["examples"][0]
        elif name in required or name == "dry_run":
            value = _EXAMPLES.get(name, name.upper())
            body[name] = [value] if field.get("type") == "array" else value
    return json.dumps(body, ensure_ascii=False)

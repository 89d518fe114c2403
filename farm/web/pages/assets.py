"""Style sheets and scripts of pages, each at an address that changes with its content."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

router = APIRouter()

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file that never changes at its address."""

    path: Path
    content: bytes

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:12]

    @cached_property
    def packed(self) -> bytes:
        """The content compressed by gzip. Cached, because Plotly has 4.8 MB."""
        return gzip.compress(self.content, 6, mtime=0)

    @property
    def type(self) -> str:
        return _TYPES[self.path.suffix]


@cache
def assets() -> dict[str, Asset]:
    """All assets, by name."""
    files = [path for path in (Path(__file__).parents[1] / "static").iterdir() if path.suffix in _TYPES]
    found = importlib.util.find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    files.append(Path(found.origin).parent / "package_data" / "plotly.min.js")
    return {path.name: Asset(path, path.read_bytes()) for path in files}


def address_of(name: str) -> str:
    """`/static/pages.css?v=0a1b2c3d4e5f`."""
    return f"/static/{name}?v={assets()[name].digest}"


@router.get("/static/{name}")
def static(request: Request, name: str, v: str | None = None) -> Response:
    found = assets().get(name)
    if found is None:
        raise HTTPException(404)
    tag = f'"{found.digest}"'
    headers = {"ETag": tag, "Vary": "Accept-Encoding", "Cache-Control": _FOREVER if v == found.digest else "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    content = found.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers = found.packed, {**headers, "Content-Encoding": "gzip"}
    return Response(content, media_type=found.type, headers=headers)


@router.get("/favicon.ico")
def favicon(request: Request) -> Response:
    return static(request, "mark.svg")

"""The registered models: their versions, errors, champions and cards."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from fastapi import APIRouter, Query
from fastapi.responses import Response
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from farm.api import models
from farm.errors import NoSuchModel
from farm.registry.evaluations import COVERAGES, FOLDS_ARE, kind_name, on_folds, on_test_set
from farm.web.pages.rendering import Visiting, segment

router = APIRouter()

TARGETS = {
    "runtime_ms": "Runtime",
    "runtime_burst_ms": "Burst time",
    "power_w": "Power",
    "energy_mj": "Energy",
    "tflops": "TFLOP/s",
}


@router.get("/models", name="models")
def list_(visit: Visiting) -> Response:
    found = visit.ask(models.list_)
    by_name = {name: list(versions) for name, versions in groupby(found, key=lambda model: model.name)}
    return visit.show("models.html", models=by_name, mlflow=_of_mlflow(visit.access.settings.tracking_uri))


@router.get("/models/{name}", name="model")
def show(visit: Visiting, name: str, version: Annotated[str | None, Query()] = None) -> Response:
    try:
        found = visit.ask(models.show, name, version=version or None, card=True)
    except NoSuchModel:
        found = visit.ask(models.show, name, version=version or None)
    versions = [one for one in visit.ask(models.list_) if one.name == found.name]
    mlflow = _of_mlflow(visit.access.settings.tracking_uri)
    evaluated = {target for of_kind in found.metrics.values() for target in of_kind}
    return visit.show(
        "model.html",
        model=found,
        versions=versions,
        targets={target: text for target, text in TARGETS.items() if target in evaluated},
        tested=on_test_set(found.metrics),
        coverages=COVERAGES,
        folds=on_folds(found.metrics),
        folds_are=FOLDS_ARE,
        kind_name=kind_name,
        card=None if found.card is None else written(found.card),
        mlflow=None if mlflow is None else f"{mlflow}/#/models/{segment(found.name)}/versions/{found.version}",
    )


def _of_mlflow(uri: str) -> str | None:
    """The address of the registry's pages, without a password; None if the registry is no server."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return None
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


_markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def _focusable(renderer: RendererHTML, tokens: list[Token], which: int, options: OptionsDict, env: EnvType) -> str:
    """Blocks that may be wider than the page can be scrolled with the keyboard."""
    return renderer.fence(tokens, which, options, env).replace("<pre>", '<pre tabindex="0">', 1)


_markdown.add_render_rule("fence", _focusable)
_BEFORE_TABLE = '<div class="scroll" role="region" aria-label="Table" tabindex="0">'


def written(text: str) -> Markup:
    """Markdown as HTML. HTML in the Markdown stays text, and headings are below those of the page."""
    tokens = _markdown.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    made: str = _markdown.renderer.render(tokens, _markdown.options, {})
    return Markup(made.replace("<table>", f"{_BEFORE_TABLE}<table>").replace("</table>", "</table></div>"))

"""What commands that ask a registered model share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from farm import registry
from farm.errors import BadInput, NoSuchModel
from farm.settings import settings

TypeOption = Annotated[
    str | None, typer.Option("--type", "-t", help="Device type; may be left out where there is one model.")
]
VersionOption = Annotated[str, typer.Option("--version", help="A version number or an alias.")]


def pulled(device_type: str | None, version: str) -> tuple[registry.ModelInfo, Any]:
    """The model of a device type, or the only one. Raises `NoSuchModel`, `BadInput`."""
    uri = settings().tracking_uri
    info = registry.model_info(uri, device_type or _only_model(uri), version)
    return info, registry.pull(uri, info.name, version)


def _only_model(uri: str) -> str:
    found = sorted({model.name for model in registry.list_models(uri)})
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoSuchModel(name="model yet", known="none")
    raise BadInput(detail=f"Which one? --type takes a device type. The registry has: {', '.join(found)}")

"""Models of a registry that tests share, recorded in the database of one test."""

from __future__ import annotations

from sqlalchemy import Engine

from farm import registry
from farm.settings import settings


def record_models(uri: str, engine: Engine) -> None:
    """As if each version had been trained with this database."""
    for model in registry.list_models(uri):
        assert model.signature is not None
        registry.Trust(settings(), engine).record(model.name, model.version, model.signature)

"""Champions: the alias of a registered model, and its history in the tag `champions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from farm.errors import NoChampionBefore, NotPromotable
from farm.registry.mlflow_client import registry_client
from farm.registry.models import CHALLENGER, CHAMPION, ModelInfo, list_models, model_info

HISTORY_TAG = "champions"

MAX_TAG_CHARACTERS = 5000
"""Length limit of a tag in MLflow's SQL stores. The oldest records are dropped to stay below it."""

MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRecord:
    """The promotion of a version to champion."""

    version: str
    since: str | None  # ISO 8601 in UTC; None where another program set the alias
    reason: str
    # Whether this is a rollback: the version was champion before, and its successors were withdrawn.
    back: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def champions(uri: str, name: str) -> list[PromotionRecord]:
    """The promotions of a registered model, oldest first."""
    with registry_client(uri) as client:
        return _history(client, name)


def make_champion(client: Any, name: str, version: str, reason: str, *, back: bool = False) -> PromotionRecord:
    """Makes the version the champion and records the time and the reason."""
    history = _history(client, name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = PromotionRecord(version=version, since=now, reason=reason[:MAX_REASON_CHARACTERS], back=back)
    client.set_registered_model_tag(name, HISTORY_TAG, _as_tag([*history, record]))
    client.set_registered_model_alias(name, CHAMPION, version)
    if str(client.get_registered_model(name).aliases.get(CHALLENGER)) == version:
        client.delete_registered_model_alias(name, CHALLENGER)
    return record


def promote(uri: str, name: str, version: str, *, reason: str, force: bool = False) -> tuple[ModelInfo, bool]:
    """Promotes a version on request. Returns it, and False where it already was the champion.

    Raises `NoSuchModel`, and `NotPromotable` for an unsound version, unless `force`.
    """
    model = model_info(uri, name, version)
    if CHAMPION in model.aliases:
        return model, False
    if model.sound is False and not force:
        raise NotPromotable(name=model.name, version=model.version, why=model.decision)
    with registry_client(uri) as client:
        make_champion(client, model.name, model.version, reason)
    return model_info(uri, model.name, model.version), True


def rollback(uri: str, name: str, *, reason: str | None = None) -> tuple[ModelInfo, ModelInfo]:
    """Makes the previous champion the champion again. Returns it and the withdrawn champion.

    A second rollback goes one champion further back, not to the withdrawn one. Raises `NoSuchModel`, `NoChampionBefore`.
    """
    present = model_info(uri, name)
    registered = {model.version for model in list_models(uri) if model.name == present.name}
    with registry_client(uri) as client:
        before = [version for version in previous_champions(client, present.name) if version in registered]
        if not before:
            raise NoChampionBefore(name=present.name, version=present.version)
        make_champion(
            client, present.name, before[-1], reason or f"rolled back from version {present.version}", back=True
        )
    return model_info(uri, present.name, before[-1]), present


def previous_champions(client: Any, name: str) -> list[str]:
    """Earlier champions that were not withdrawn, oldest first."""
    return _line(_history(client, name))[:-1]


def _line(history: Sequence[PromotionRecord]) -> list[str]:
    """The champions without the withdrawn ones, oldest first; the last is the current one."""
    line: list[str] = []
    for record in history:
        if record.back and record.version in line:
            del line[line.index(record.version) :]
        line.append(record.version)
    return line


def _history(client: Any, name: str) -> list[PromotionRecord]:
    """The history in the tag, and the current champion where the tag lacks it."""
    model = client.get_registered_model(name)
    history = [PromotionRecord(**each) for each in json.loads(model.tags.get(HISTORY_TAG, "[]"))]
    present = model.aliases.get(CHAMPION)
    if present is not None and (not history or history[-1].version != str(present)):
        history.append(
            PromotionRecord(version=str(present), since=None, reason="the alias was set outside of the farm")
        )
    return history


def _as_tag(history: Sequence[PromotionRecord]) -> str:
    text = json.dumps([record.to_json() for record in history], ensure_ascii=False)
    return text if len(text) <= MAX_TAG_CHARACTERS else _as_tag(history[1:])

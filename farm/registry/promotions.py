"""Which version is the champion: the alias, and the history of it that a registered model keeps in its tag `champions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from farm.errors import NoChampionBefore, NotPromotable
from farm.registry.client import registry_client
from farm.registry.models import CHALLENGER, CHAMPION, ModelInfo, list_models, model_info

HISTORY_TAG = "champions"

MOST_CHARACTERS = 5000
"""What MLflow's SQL stores keep of a tag of a registered model: the oldest champions are forgotten first."""

MOST_OF_A_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """A version becoming the champion."""

    version: str
    since: str | None  # ISO 8601 in UTC; None where the alias was set by somebody else
    reason: str
    # Whether it was the champion before, and those after it were taken back.
    back: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def champions(uri: str, name: str) -> list[Reign]:
    """The champions of a registered model, the first one first."""
    with registry_client(uri) as client:
        return _history(client, name)


def crown(client: Any, name: str, version: str, reason: str, *, back: bool = False) -> Reign:
    """Makes the version the champion, and writes down since when and why."""
    history = _history(client, name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    reign = Reign(version=version, since=now, reason=reason[:MOST_OF_A_REASON], back=back)
    client.set_registered_model_tag(name, HISTORY_TAG, _as_tag([*history, reign]))
    client.set_registered_model_alias(name, CHAMPION, version)
    if str(client.get_registered_model(name).aliases.get(CHALLENGER)) == version:
        client.delete_registered_model_alias(name, CHALLENGER)
    return reign


def promote(uri: str, name: str, version: str, *, reason: str, force: bool = False) -> tuple[ModelInfo, bool]:
    """Makes a version the champion by hand. Returns it, and False where it was the champion already.

    Raises `NoSuchModel`, and `NotPromotable` where the version is known to be worth nothing, unless `force`.
    """
    model = model_info(uri, name, version)
    if CHAMPION in model.aliases:
        return model, False
    if model.sound is False and not force:
        raise NotPromotable(name=model.name, version=model.version, why=model.decision)
    with registry_client(uri) as client:
        crown(client, model.name, model.version, reason)
    return model_info(uri, model.name, model.version), True


def rollback(uri: str, name: str, *, reason: str | None = None) -> tuple[ModelInfo, ModelInfo]:
    """Makes the champion before the present one the champion again. Returns it, and the one that was taken back.

    Rolled back again, it goes to the one before that, and not to what was taken back. Raises `NoSuchModel`,
    `NoChampionBefore`.
    """
    present = model_info(uri, name)
    registered = {model.version for model in list_models(uri) if model.name == present.name}
    with registry_client(uri) as client:
        before = [version for version in crowned_before(client, present.name) if version in registered]
        if not before:
            raise NoChampionBefore(name=present.name, version=present.version)
        crown(client, present.name, before[-1], reason or f"rolled back from version {present.version}", back=True)
    return model_info(uri, present.name, before[-1]), present


def crowned_before(client: Any, name: str) -> list[str]:
    """The versions that were champion before the present one and were not taken back, the first one first."""
    return _line(_history(client, name))[:-1]


def _line(history: Sequence[Reign]) -> list[str]:
    """The champions one after another without those that were taken back; the last one is the present one."""
    line: list[str] = []
    for reign in history:
        if reign.back and reign.version in line:
            del line[line.index(reign.version) :]
        line.append(reign.version)
    return line


def _history(client: Any, name: str) -> list[Reign]:
    """As the tag says, and the present champion where the tag does not know it."""
    model = client.get_registered_model(name)
    history = [Reign(**each) for each in json.loads(model.tags.get(HISTORY_TAG, "[]"))]
    present = model.aliases.get(CHAMPION)
    if present is not None and (not history or history[-1].version != str(present)):
        history.append(Reign(version=str(present), since=None, reason="the alias was set outside of the farm"))
    return history


def _as_tag(history: Sequence[Reign]) -> str:
    text = json.dumps([reign.to_json() for reign in history], ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else _as_tag(history[1:])

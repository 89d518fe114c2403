"""Submissions of the Python API: a campaign as a mapping, as a file, or made of a language model."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.campaign import texts_named
from farm.campaign.language_model_blocks import LayerChoice
from farm.campaign.reading import text_of
from farm.campaign.workloads import DEFAULT_FAMILIES, CampaignText, ModelStep, campaign_file, model_campaign
from farm.client.requests import whole_numbers
from farm.errors import BadInput

NAME = "campaign"
"""The name of a mapping in messages."""


def campaign_text(campaign: object) -> CampaignText:
    """The text of a campaign, with the texts of the files that it names. Raises `BadInput`, `CampaignFileError`."""
    if isinstance(campaign, Mapping):
        text = _text_of_mapping(campaign)
        return CampaignText(text, NAME, texts_named(text, Path(NAME)))
    if not isinstance(campaign, str | Path):
        raise BadInput(
            detail=f"{NAME}: give a mapping, or the path of a campaign file, not a {type(campaign).__name__}."
        )
    try:
        path = campaign_file(Path(campaign))
        text = text_of(path)
    except ValueError as error:  # a NUL in the path
        raise BadInput(detail=f"{NAME}: {str(campaign)[:80]!r} is not a path: {error}.") from None
    return CampaignText(text, str(path), texts_named(text, path))


def text_of_model(
    model: str | Path,
    *,
    tokens: int | Sequence[int] | None,
    tp: int,
    ep: int,
    sequences: int | None,
    training: bool,
    lora_rank: int,
    layers: str,
    families: str | Sequence[str] | None,
) -> CampaignText:
    """The campaign that measures the GEMMs of a language model. Raises `BadInput`, and `FarmError` for an unknown model."""
    step = ModelStep(
        checked_model(model),
        tp=whole("tp", tp),
        ep=whole("ep", ep),
        sequences=0 if sequences is None else whole("sequences", sequences),
        training=flag("training", training),
        lora_rank=whole("lora_rank", lora_rank, least=0),
        layers=layer_choice(layers),
    )
    if tokens is not None:
        step = ModelStep(**{**_fields(step), "tokens": ",".join(map(str, whole_numbers("tokens", tokens)))})
    named = [families] if isinstance(families, str) else families
    if named is not None and (not named or not all(isinstance(one, str) for one in named)):
        raise BadInput(detail="families: write the names of kernel families, as in ['cublaslt', 'triton'].")
    return model_campaign(step, DEFAULT_FAMILIES if named is None else list(named))


def checked_model(model: object) -> str:
    """The name of a language model, or the path of its configuration file. Raises `BadInput`."""
    if not isinstance(model, str | Path) or not str(model).strip() or not str(model).isprintable():
        raise BadInput(
            detail=f"model: name a built-in language model, as in llama-3.1-8b, or its config.json, not {str(model)[:80]!r}."
        )
    return str(model)


def readable_file(what: str, path: object) -> Path:
    """A file to send. Raises `BadInput`."""
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise BadInput(detail=f"{what}: name a file, not {str(path)[:80]!r}.")
    file = Path(path)
    try:
        if file.is_file():
            with file.open("rb"):
                return file
        why = "it is a folder" if file.is_dir() else "there is no such file"
    except OSError as error:
        why = str(error.strerror or error)
    raise BadInput(detail=f"{what}: {file} cannot be imported: {why}.")


def layer_choice(layers: object) -> LayerChoice:
    """Which layers are meant. Raises `BadInput`."""
    try:
        return LayerChoice.parse(layers)
    except ValueError as error:
        raise BadInput(detail=f"layers: {error}") from None


def whole(what: str, written: object, *, least: int = 1) -> int:
    """A whole number from `least`. Raises `BadInput`."""
    try:
        number = None if isinstance(written, bool) else operator.index(written)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise BadInput(detail=f"{what}: write a whole number from {least}, not {str(written)[:80]!r}.")
    return number


def flag(what: str, written: object) -> bool:
    """True or False. Raises `BadInput`."""
    if not isinstance(written, bool):
        raise BadInput(detail=f"{what}: write True or False, not {str(written)[:80]!r}.")
    return written


def _fields(step: ModelStep) -> dict[str, Any]:
    return {name: getattr(step, name) for name in ModelStep.__dataclass_fields__}


def _text_of_mapping(campaign: Mapping[Any, Any]) -> str:
    """JSON, which is YAML too. Raises `BadInput` where the mapping has something else than JSON data."""
    try:
        return json.dumps(dict(campaign), default=_plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            detail=f"{NAME}: the mapping has a value that no campaign file can have: {error}. Use texts, numbers, lists and mappings."
        ) from None


def _plain(value: object) -> Any:
    """A value that JSON does not know: of numpy, a range, another mapping, or a path."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r:.80} is a {type(value).__name__}")

"""The language models that come with the farm: the fields of their configurations that decide their GEMMs, with their source."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from farm.errors import UnknownLanguageModel
from farm.language_models.architecture import Architecture
from farm.language_models.configuration import read_configuration

_DATA = files("farm.language_models") / "data"


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of all, in order."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _DATA.iterdir() if file.name.endswith(".json")))


def built_in(name: str) -> Architecture:
    """The language model of that name, `llama-3.1-8b`, or of that repository, `meta-llama/Llama-3.1-8B`. Raises `UnknownLanguageModel`."""
    short = short_name(name)
    if short not in built_in_names():
        raise UnknownLanguageModel(value=name, hint=_hint(short))
    return _read(short)


@cache
def _read(short: str) -> Architecture:
    """By the name of its file. Names of repositories are not kept, because there is no limit to their number."""
    written = json.loads((_DATA / f"{short}.json").read_text("utf-8"))
    return read_configuration(written["config"], short, source=written["source"])


def short_name(name: str) -> str:
    """The name of a model of a repository: without its owner, and in small letters."""
    last = name.strip().rsplit("/", 1)[-1].lower()
    return re.sub(r"^meta-|^nvidia-|-v0\.1$", "", last)


def _hint(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, built_in_names(), n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}? farm shapes --list has all"
    return "name a file config.json, or one of those that farm shapes --list has"

"""Patterns that name modules of a checkpoint, as quantisation configurations have them.

They come from files of others, and a server matches them. So a pattern takes time in proportion to its length: a quantifier takes the
first place where the rest up to the next quantifier fits, and is not tried again.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

REGULAR = "re:"
"""Begins a pattern that is a regular expression."""

_MAX_LENGTH = 500
_MAX_GROUPS = 3
_MAX_ALTERNATIVES = 8

_ONE = r"(?:[\w/:-]|\\[.dw-]|\.|\[\^?[\w.-]+\])"
_PART = re.compile(rf"(?P<many>{_ONE}[*+])|(?P<one>{_ONE}|[\^$])|(?P<group>\((?:\?:)?(?:{_ONE}|\|)*\))", re.ASCII)


@lru_cache(maxsize=1024)
def regular(text: str) -> re.Pattern[str]:
    """A regular expression whose quantifiers are not tried again.

    Raises `ValueError` for a part other than characters, classes of them with `*` or `+`, and a few groups of alternatives.
    """
    written, place, groups, opened = "", 0, 0, False
    while place < len(text):
        part = _PART.match(text, place)
        groups += part is not None and part["group"] is not None
        if part is None or len(text) > _MAX_LENGTH or groups > _MAX_GROUPS or text.count("|") > _MAX_ALTERNATIVES:
            raise ValueError(f"the pattern {REGULAR}{text[:80]} is not understood; write it with .* and names")
        if part["many"]:
            written += f"{')' * opened}(?>{part[0]}?"
            opened = True
        else:
            written += part[0]
        place = part.end()
    try:
        return re.compile(written + ")" * opened)
    except re.error as error:
        raise ValueError(f"the pattern {REGULAR}{text[:80]} is wrong: {error}") from None


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern names a module, as `layers.0.mlp.down_proj`, or what it is in. Raises `ValueError`."""
    if pattern.startswith(REGULAR):
        return regular(pattern.removeprefix(REGULAR)).match(f"model.{path}") is not None
    if pattern.startswith("*"):
        return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
    if "layers." not in pattern:
        return pattern in path.split(".")
    return within(from_layers(pattern), path)


def within(name: str, path: str) -> bool:
    """Whether a path is what a name with wildcards names, or in it."""
    if "*" not in name:
        return f"{path}.".startswith(f"{name}.")
    return fnmatchcase(path, name) or fnmatchcase(path, f"{name}.*")


def from_layers(name: str) -> str:
    """A name without what stands before `layers.`: models of pictures and text have a prefix more."""
    at = name.find("layers.")
    return name if at < 0 else name[at:]

"""Suggestions for misspelt words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(written: str, known: Iterable[str], *, what: str = "use one of") -> str:
    """`did you mean shapes?` if a known word is similar, else all known words."""
    words = list(known)
    close = difflib.get_close_matches(written.lower(), words, 1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"{what} {', '.join(words) or 'none'}"

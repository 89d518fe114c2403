"""Removes characters that control a terminal from names, errors and remote responses.

Control characters (C0 without tab and newline, DEL, C1), the bidirectional controls of Unicode and its line separators become U+FFFD.
"""

from __future__ import annotations

import logging
import re

from farm.masking import masked

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def neutralised(text: str) -> str:
    """The text with each such character replaced by one other; its length stays."""
    return _OBEYED.sub(REPLACEMENT, text)


class LineFormatter(logging.Formatter):
    """Formats a record, and its traceback, without passwords, and so that nothing in it looks like another record: lines after the
    first are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return neutralised(masked(super().format(record))).replace("\n", "\n  ")

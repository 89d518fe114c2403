"""Parses times and durations (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from farm.errors import BadDuration, BadMoment

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(min|s|h|d|w)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(written: str) -> datetime:
    """`2026-11-22` (when it begins), `2026-11-22 08:30`, or how long ago: `90min`, `2h`, `7d`, `1w`.

    In UTC, as exports have their times, unless it names another zone. Raises `BadMoment`.
    """
    text = written.strip()
    try:
        if age := _AGE.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: float(age[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise BadMoment(value=written) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def duration(written: str) -> timedelta:
    """How long: `90min`, `12h`, `30d`, `4w`. Raises `BadDuration`."""
    try:
        if found := _AGE.fullmatch(written.strip()):
            return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        pass
    raise BadDuration(value=written)

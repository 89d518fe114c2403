"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def counts_text(counts: Mapping[str, int]) -> str:
    """`1,200 pending, 7 done`, or `none`."""
    return ", ".join(f"{n:,} {name}" for name, n in counts.items() if n) or "none"


def percent_text(part: int, whole: int) -> str:
    """`41.6%`; rounded down, so that 100% means all."""
    return f"{1000 * part // max(whole, 1) / 10:g}%"


def rate_text(per_minute: float) -> str:
    """`1,240`, or `3.4` where there are few; a minute's worth."""
    return f"{per_minute:,.0f}" if per_minute >= 10 else f"{per_minute:.2g}"


def share_text(share: float) -> str:
    """`87%`, `0.42%`."""
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.2g}%"


def some_of(names: Sequence[str], *, most: int = 12, separator: str = ", ") -> str:
    """The names one after another, or the first of them and how many more there are."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + rest


def seconds_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

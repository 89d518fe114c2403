"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.gemm import ADDED_COLUMNS, number_text
from farm.groups import groups_text


def counts_text(counts: Mapping[str, int]) -> str:
    """`1,200 pending, 7 done`, or `none`."""
    return ", ".join(f"{n:,} {name}" for name, n in counts.items() if n) or "none"


def counted(count: int, thing: str) -> str:
    """`1 row`, `2,400 rows`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def percent_text(part: int, whole: int) -> str:
    """`41.6%`; rounded down, so that 100% means all."""
    return f"{1000 * part // max(whole, 1) / 10:g}%"


def rate_text(per_minute: float) -> str:
    """`1,240`, or `3.4` where there are few; a minute's worth."""
    return f"{per_minute:,.0f}" if per_minute >= 10 else f"{per_minute:.2g}"


def share_text(share: float) -> str:
    """`87%`, `0.42%`."""
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.2g}%"


def some_of(names: Sequence[str], *, limit: int = 12, separator: str = ", ") -> str:
    """The names one after another, or the first of them and how many more there are."""
    rest = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return separator.join(names[:limit]) + rest


def seconds_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def kernel_text(row: Mapping[str, Any]) -> str:
    """`tiled(tile=16)` from the columns family and parameters."""
    from farm.kernels import Kernel  # and every family: most commands print no kernel

    return str(Kernel(row["family"], tuple(sorted(row["parameters"].items()))))


def types_text(row: Mapping[str, Any]) -> str:
    """`f32`, or `f16:f16:f32` where input, output and accumulator differ."""
    return types_of_text(f"{row['ab']}:{row['cd']}:{row['acc']}")


def types_of_text(types: str) -> str:
    """`f32` for `f32:f32:f32`; others unchanged."""
    kinds = types.split(":")
    return kinds[0] if len(set(kinds)) == 1 else types


def scalars_text(alpha: float, beta: float, **added: int | str | None) -> str:
    """` alpha=2 beta=1 batch=8 scale=row`, which follows a problem: what is not as usual. Many groups are described by numbers.

    Args:
        added: values of `ADDED_COLUMNS`. Older rows lack some, or have None.
    """
    factors = "" if (alpha, beta) == (1, 0) else f" alpha={number_text(alpha)} beta={number_text(beta)}"
    unusual = (
        f" {name}={added_text(name, added[name])}"
        for name, usual in ADDED_COLUMNS.items()
        if added.get(name) not in (None, usual)
    )
    return factors + "".join(unusual)


def added_text(name: str, value: object) -> str:
    """A value of one of `ADDED_COLUMNS` for people."""
    return groups_text(str(value)) if name == "groups" else str(value)


def problem_text(row: Mapping[str, Any]) -> str:
    """`512x512x512 f32 nn` from the columns of a problem, followed by `scalars_text`."""
    scalars = scalars_text(row["alpha"], row["beta"], **{name: row.get(name) for name in ADDED_COLUMNS})
    return f"{row['m']}x{row['n']}x{row['k']} {types_text(row)} {row['layout']}{scalars}"


def configuration_text(row: Mapping[str, Any]) -> str:
    """`tiled(tile=16) 512x512x512 f32 nn` from the columns of a configuration, followed by `scalars_text`."""
    return f"{kernel_text(row)} {problem_text(row)}"


def shortened(text: str, limit: int = 60) -> str:
    """The first `limit` characters of a text, with `…` where there are more."""
    return text if len(text) <= limit else f"{text[:limit]}…"


MAX_LISTED = 20
"""Lines of a list of problems in a message."""


def lines_text(lines: Sequence[str], *, what: str = "problems") -> str:
    """The first lines of a list of problems, each on its own line, and how many more there are."""
    rest = [f"and {len(lines) - MAX_LISTED:,} more {what}"] if len(lines) > MAX_LISTED else []
    return "\n".join([*lines[:MAX_LISTED], *rest])

"""Extends the refusal of a comparison: everything that stands in the way, and a command that works."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Engine

from farm.compare.aggregation import CompareQuery, kinds_by_group
from farm.compare.groups import UNKNOWN, RowKind
from farm.errors import FarmError, NotComparable, NothingShared, SideWithoutRows

REFUSALS = (SideWithoutRows, NotComparable, NothingShared)
"""Errors that another query may avoid."""

Refusal = SideWithoutRows | NotComparable | NothingShared

_NARROWED = ("clocks", "distribution", "protocol")
"""Keys of groups that `farm.compare.compatibility` refuses to mix."""


def with_remedy(
    engine: Engine, query: CompareQuery, error: Refusal, compare: Callable[[CompareQuery], object]
) -> FarmError:
    """The error with further obstacles, and with a command that was tried and works, if there is one."""
    if isinstance(error, NothingShared):
        return error
    reasons = list[str]()
    for candidate in _candidates(engine, query):
        try:
            compare(candidate)
        except REFUSALS as other:
            if other.summary is not None and other.summary not in (error.summary, *reasons):
                reasons.append(other.summary)
            continue
        except FarmError:
            break
        return _with(error, reasons, f" This works: `{command_of(candidate)}`.")
    return _with(error, reasons, "")


def _with(error: FarmError, reasons: Sequence[str], command: str) -> FarmError:
    also = str(error.fields.get("also", "")) + "".join(f" With those, {reason}." for reason in reasons) + command
    return type(error)(**{**error.fields, "also": also})


def _candidates(engine: Engine, query: CompareQuery) -> Iterator[CompareQuery]:
    """The same query with fewer and fewer restrictions."""
    every = replace(query, any_source=True)
    if not query.any_source:
        yield every
    if query.groups:
        narrowed = _narrowed(every, kinds_by_group(engine, every))
        if narrowed is not None:
            yield narrowed
    yield replace(every, mixed=True)


def _narrowed(query: CompareQuery, kinds: Mapping[str, Sequence[RowKind]]) -> CompareQuery | None:
    """Each group with clocks, operands and a protocol that all groups have, as far as they differ; None where there are none."""
    counts = list[Counter[tuple[str, str, str]]]()
    for of_group in kinds.values():
        own = Counter[tuple[str, str, str]]()
        for kind in of_group:
            own[kind.clocks or UNKNOWN, kind.distribution, kind.protocol] += kind.rows
        counts.append(own)
    common = set.intersection(*(set(own) for own in counts)) if counts else set()
    if not common:
        return None
    best = max(sorted(common), key=lambda key: min(own[key] for own in counts))
    values_by_key = [set(values) for values in zip(*set().union(*counts), strict=True)]
    conditions = {
        key: value for key, value, values in zip(_NARROWED, best, values_by_key, strict=True) if len(values) > 1
    }
    groups = tuple(
        ",".join([group, *(f"{key}={value}" for key, value in conditions.items() if f"{key}=" not in group)])
        for group in query.groups
    )
    return replace(query, groups=groups)


def command_of(query: CompareQuery) -> str:
    """The command line of a query."""
    words = ["farm", "compare", *query.groups]
    options = {
        "--by": query.by,
        "--campaign": query.campaign,
        "--type": query.device_type,
        "--family": query.family,
        "--dtype": query.dtype,
        "--time": query.time,
    }
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    flags = {
        "--any-source": query.any_source,
        "--mixed": query.mixed,
        "--predict": query.predict_from,
        "--mix-protocols": query.mix_protocols,
    }
    words += [name for name, on in flags.items() if on]
    return shlex.join(words)

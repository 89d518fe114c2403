"""What is missing to compare sides that cannot be compared as asked, all of it, and one command that works."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Engine

from farm.compare.aggregation import Question, kinds_of_sides
from farm.compare.sides import UNKNOWN, Kind
from farm.errors import FarmError, NotComparable, NothingShared, SideWithoutRows

REFUSALS = (SideWithoutRows, NotComparable, NothingShared)
"""Errors that another way of asking may avoid."""

Refusal = SideWithoutRows | NotComparable | NothingShared

_NARROWED = ("clocks", "distribution")
"""The keys of sides that `farm.compare.comparable` refuses to mix."""


def explained(engine: Engine, question: Question, error: Refusal, compare: Callable[[Question], object]) -> FarmError:
    """The same error with what else stands in the way, and a command that was tried and works, where there is one."""
    if isinstance(error, NothingShared):
        return error
    reasons = list[str]()
    for candidate in _candidates(engine, question):
        try:
            compare(candidate)
        except REFUSALS as other:
            told = other.summary
            if told is not None and told not in (error.summary, *reasons):
                reasons.append(told)
            continue
        except FarmError:
            break
        return _with(error, reasons, f" This works: `{command_of(candidate)}`.")
    return _with(error, reasons, "")


def _with(error: FarmError, reasons: Sequence[str], command: str) -> FarmError:
    also = str(error.fields.get("also", "")) + "".join(f" With those, {reason}." for reason in reasons) + command
    return type(error)(**{**error.fields, "also": also})


def _candidates(engine: Engine, question: Question) -> Iterator[Question]:
    """The same question with ever more allowed."""
    every = replace(question, any_source=True)
    if not question.any_source:
        yield every
    if question.sides:
        narrowed = _narrowed(every, kinds_of_sides(engine, every))
        if narrowed is not None:
            yield narrowed
    yield replace(every, mixed=True)


def _narrowed(question: Question, kinds: Mapping[str, Sequence[Kind]]) -> Question | None:
    """Each side with the clocks and operands that all of them have; None where they have none in common."""
    counts = list[dict[tuple[str, str], int]]()
    for of_side in kinds.values():
        own = dict[tuple[str, str], int]()
        for kind in of_side:
            key = (kind.clocks or UNKNOWN, kind.distribution)
            own[key] = own.get(key, 0) + kind.rows
        counts.append(own)
    common = set.intersection(*(set(own) for own in counts)) if counts else set()
    if not common:
        return None
    best = max(sorted(common), key=lambda key: min(own[key] for own in counts))
    conditions = dict(zip(_NARROWED, best, strict=True))
    sides = tuple(
        ",".join([side, *(f"{key}={value}" for key, value in conditions.items() if f"{key}=" not in side)])
        for side in question.sides
    )
    return replace(question, sides=sides)


def command_of(question: Question) -> str:
    """The command line that asks it."""
    words = ["farm", "compare", *question.sides]
    options = {
        "--by": question.by,
        "--campaign": question.campaign,
        "--type": question.device_type,
        "--family": question.family,
        "--dtype": question.dtype,
    }
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    flags = {
        "--any-source": question.any_source,
        "--mixed": question.mixed,
        "--predict": question.predict_from,
        "--mix-protocols": question.mix_protocols,
    }
    words += [name for name, on in flags.items() if on]
    return shlex.join(words)

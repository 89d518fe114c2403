"""The values of one axis: how they are written, how many they are, and their one normal form.

An axis is written as a number, a range or a list of both:

- `512..2048 +512`  512, 1024, 1536, 2048
- `512..8192 x2`    512, 1024, 2048, 4096, 8192
- `512..515`        512, 513, 514, 515

The last value is part of a range where the steps reach it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from farm.kernels.family import limits

_RANGE = re.compile(r"(-?\d+)\s*\.\.\s*(-?\d+)(?:\s*(?P<step>[+x×*])\s*(-?\d+))?", re.ASCII)
_NUMBER = re.compile(r"-?\d+", re.ASCII)
_MOST_DIGITS = 40
_SHORTEST_RUN = 4
"""Fewer equally spaced values than this are written out one by one."""

HOW_TO_WRITE = "write a whole number, or a range as in 512..2048 +512 or 512..8192 x2"


@dataclass(frozen=True, slots=True)
class AxisPart:
    """One entry of an axis as written: its values in rising order, not yet expanded where they are a plain range."""

    values: Sequence[int]

    @property
    def count(self) -> int:
        return _count(self.values)


def _count(values: Sequence[int]) -> int:
    # len() of a range ends at sys.maxsize; this does not.
    if isinstance(values, range):
        return max(0, (values.stop - values.start + values.step - 1) // values.step)
    return len(values)


def parse_part(written: object, *, name: str, allowed: Sequence[int]) -> AxisPart:
    """Reads one entry of an axis.

    Args:
        allowed: the values that the axis may have, in rising order.

    Raises:
        ValueError: with a text that says what is wrong and what would be right.
    """
    if isinstance(written, int):
        part = AxisPart((written,))
        _check_allowed(part, str(written), name, allowed)
        return part
    if written is None:
        raise ValueError(f"it has no value; {HOW_TO_WRITE}")
    if not isinstance(written, str) or len(written) > _MOST_DIGITS * 3:
        raise ValueError(f"{shown(written)} is not a value of {name}; {HOW_TO_WRITE}")
    text = written.strip()
    if _NUMBER.fullmatch(text):
        return parse_part(int(text), name=name, allowed=allowed)
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(written)} is not a value of {name}; {HOW_TO_WRITE}")
    first, last = int(found[1]), int(found[2])
    for end in (first, last):
        _check_limits(end, written, name, allowed)
    if first > last:
        raise ValueError(f"the range {text} counts down; write {last}..{first}")
    step = int(found[4]) if found["step"] else 1
    if found["step"] in (None, "+"):
        if step < 1:
            raise ValueError(f"the range {text} has the step {step}; a step is 1 or more")
        part = AxisPart(range(first, last + 1, step))
    else:
        if step < 2:
            raise ValueError(f"the range {text} has the factor {step}; a factor is 2 or more")
        values = [first]
        while values[-1] * step <= last:
            values.append(values[-1] * step)
        part = AxisPart(tuple(values))
    _check_allowed(part, written, name, allowed)
    return part


def _check_allowed(part: AxisPart, written: str, name: str, allowed: Sequence[int]) -> None:
    for value in (part.values[0], part.values[-1]):
        _check_limits(value, written, name, allowed)
    if isinstance(allowed, range):
        return
    wrong = next((value for value in part.values if value not in allowed), None)
    if wrong is not None:
        raise ValueError(f"{_subject(wrong, written)} is not a value of {name}; {limits(name, allowed)}")


def _check_limits(value: int, written: str, name: str, allowed: Sequence[int]) -> None:
    smallest, largest = allowed[0], allowed[-1]
    if smallest <= value <= largest:
        return
    subject, right = _subject(value, written), limits(name, allowed)
    if value == 0:
        raise ValueError(f"{subject} is zero; {right}")
    if value < 0 <= smallest:
        raise ValueError(f"{subject} is negative; {right}")
    raise ValueError(f"{subject} is too {'small' if value < smallest else 'large'}; {right}")


def _subject(value: int, written: str) -> str:
    return written if written == str(value) else f"the range {written} reaches {value}, which"


def shown(value: object) -> str:
    """A value as an error message shows it: never more than a few words of it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "an empty value"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True, slots=True)
class Axis:
    """The distinct values of an axis, in rising order: the same values are the same axis, however written."""

    values: Sequence[int]

    @classmethod
    def of(cls, parts: Sequence[AxisPart]) -> Axis:
        """Joins entries; equally spaced values become a range, which takes no memory for them."""
        if len(parts) == 1 and isinstance(parts[0].values, range) and parts[0].count >= _SHORTEST_RUN:
            return cls(parts[0].values)
        values = sorted({value for part in parts for value in part.values})
        if len(values) >= _SHORTEST_RUN and len(next(_runs(values))) == len(values):
            return cls(range(values[0], values[-1] + 1, values[1] - values[0]))
        return cls(tuple(values))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)

    def to_document(self) -> list[int | str]:
        """The values as a campaign file would list them, equally spaced ones as a range."""
        entries: list[int | str] = []
        for run in [self.values] if isinstance(self.values, range) else _runs(self.values):
            if len(run) < _SHORTEST_RUN:
                entries.extend(run)
            else:
                entries.append(f"{run[0]}..{run[-1]} +{run[1] - run[0]}")
        return entries


def _runs(values: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cuts rising values, from the left, into equally spaced runs (of `_SHORTEST_RUN` or more) and single values."""
    gaps = [b - a for a, b in pairwise(values)]
    start = 0
    while start < len(values):
        end = start + 1
        while end < len(values) and gaps[end - 1] == gaps[start]:
            end += 1
        if end - start < _SHORTEST_RUN:
            end = start + 1
        yield values[start:end]
        start = end

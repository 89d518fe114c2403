"""Axes: how their values are written, their number, and their normal form.

An axis is written as a number, a range or a list of both:

- `512..2048 +512`  512, 1024, 1536, 2048
- `512..8192 x2`    512, 1024, 2048, 4096, 8192
- `512..515`        512, 513, 514, 515

The last value is part of a range if the steps reach it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from farm.campaign.values import Values
from farm.kernels.family import limits

_RANGE = re.compile(r"(-?\d+)\s*\.\.\s*(-?\d+)(?:\s*(?P<step>[+x×*])\s*(-?\d+))?", re.ASCII)
_NUMBER = re.compile(r"-?\d+", re.ASCII)
_MAX_DIGITS = 40
_SHORTEST_RUN = 4
"""Fewer equally spaced values than this are written out one by one."""

HOW_TO_WRITE = "write a whole number, or a range as in 512..2048 +512 or 512..8192 x2"


def parse_part(written: object, *, name: str, allowed: Sequence[int]) -> Sequence[int]:
    """Reads one entry of an axis: its values in rising order. A plain range is not expanded.

    Args:
        name: What messages call the axis.
        allowed: The values that the axis may have, in rising order.

    Raises:
        ValueError: It says what is wrong and what to write instead.
    """
    if isinstance(written, int):
        return _checked((written,), str(written), name, allowed)
    if written is None:
        raise ValueError(f"it has no value; {HOW_TO_WRITE}")
    if not isinstance(written, str) or len(written) > _MAX_DIGITS * 3:
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
        return _checked(range(first, last + 1, step), written, name, allowed)
    if step < 2:
        raise ValueError(f"the range {text} has the factor {step}; a factor is 2 or more")
    values = [first]
    while values[-1] * step <= last:
        values.append(values[-1] * step)
    return _checked(values, written, name, allowed)


def _checked(values: Sequence[int], written: str, name: str, allowed: Sequence[int]) -> Sequence[int]:
    for value in (values[0], values[-1]):
        _check_limits(value, written, name, allowed)
    if not isinstance(allowed, range):
        wrong = next((value for value in values if value not in allowed), None)
        if wrong is not None:
            raise ValueError(f"{_subject(wrong, written)} is not a value of {name}; {limits(name, allowed)}")
    return values


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
    """A value as error messages show it, shortened."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "an empty value"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


class Axis:
    """The distinct values of an axis in rising order. The same values are the same axis, however they are written.

    Nothing is expanded before the values are needed, so that the size of a campaign can be checked first.
    """

    def __init__(self, parts: Sequence[Sequence[int]]) -> None:
        self._parts = parts

    @property
    def max_length(self) -> int:
        """How many values the axis has, where values that two entries share count twice."""
        return sum(map(len, self._parts))

    @property
    def largest(self) -> int:
        """The largest value."""
        return max(part[-1] for part in self._parts)

    @property
    def max_sum(self) -> int:
        """At least the sum of the values."""
        return sum(len(part) * (part[0] + part[-1]) for part in self._parts) // 2

    @cached_property
    def values(self) -> Sequence[int]:
        """The values. Where they are equally spaced, a range, which takes no memory for them."""
        if len(self._parts) == 1 and isinstance(self._parts[0], range) and len(self._parts[0]) >= _SHORTEST_RUN:
            return self._parts[0]
        values = sorted({value for part in self._parts for value in part})
        if len(values) >= _SHORTEST_RUN and len(next(_runs(values))) == len(values):
            return range(values[0], values[-1] + 1, values[1] - values[0])
        return tuple(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

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


class AxisKey(Values):
    """Declares a key whose value is an axis."""

    def __init__(self, name: str, allowed: Sequence[int]) -> None:
        schema = {"anyOf": [{"type": "integer", "minimum": allowed[0], "maximum": allowed[-1]}, {"type": "string"}]}
        super().__init__(lambda written: parse_part(written, name=name, allowed=allowed), gather=Axis, schema=schema)

    def write_all(self, values: Any) -> Any:
        return values.to_document()

"""How tokens choose their experts, and how many rows each expert then has (pure)."""

from __future__ import annotations

import random
import re
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate

from farm.errors import FarmError
from farm.gemm import number_text
from farm.groups import Groups

MAX_EXPONENT = 10
MAX_DRAWS = 2**24
"""Choices of experts in one request: about 20 s."""
_RULES = "write balanced, uniform, or zipf with its exponent as in zipf 1.2"
_ZIPF = re.compile(r"zipf\s+(\d{1,3}(?:\.\d{1,9})?)", re.ASCII)
_DECIMAL = Context(prec=40)
"""Its power is the same on every machine, and that of C's library is not."""


@dataclass(frozen=True, slots=True, order=True)
class Routing:
    """A rule by which tokens choose experts.

    Attributes:
        text: As a campaign file has it.
        exponent: The probability of expert r, from 1, is proportional to r to the power of -exponent. None: nothing is drawn, and the
            rows are as even as possible.
    """

    text: str
    exponent: str | None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Routing:
        """Raises `ValueError`, which says what to write."""
        found = _ZIPF.fullmatch(text.strip())
        if found is not None and 0 < float(found[1]) <= MAX_EXPONENT:
            exponent = number_text(float(found[1]))
            return cls(f"zipf {exponent}", exponent)
        if found is not None:
            raise ValueError(f"the exponent {found[1]} is not above 0 and up to {MAX_EXPONENT}; uniform is without one")
        if text not in ("balanced", "uniform"):
            raise ValueError(f"{text!r} is no routing; {_RULES}")
        return cls(text, None if text == "balanced" else "0")

    def groups(self, *, experts: int, top_k: int, tokens: int, seed: int) -> Groups:
        """The rows of each expert: the same for the same arguments, on every machine.

        A token chooses `top_k` different experts. Each further one is drawn from those that it has not chosen yet.
        """
        if self.exponent is None:
            each, more = divmod(tokens * top_k, experts)
            return Groups.of(each + (expert < more) for expert in range(experts))
        power = (_DECIMAL.power(Decimal(rank), -Decimal(self.exponent)) for rank in range(1, experts + 1))
        weights = [max(1, int(2**64 * each)) for each in power]  # whole numbers, whose sums are exact
        numbers = random.Random(f"gemm-farm {self.text} {experts} {top_k} {tokens} {seed}")
        ends, sizes = list(accumulate(weights)), [0] * experts
        for _ in range(tokens):
            for expert in _choice(numbers, weights, ends, top_k):
                sizes[expert] += 1
        return Groups.of(sizes)


def _choice(numbers: random.Random, weights: Sequence[int], ends: Sequence[int], count: int) -> list[int]:
    """Different experts in rising order, drawn one after another by their weights.

    Args:
        ends: Sums of the weights up to that of each expert.
        count: How many to draw.
    """
    chosen: list[int] = []
    left = ends[-1]
    for _ in range(count):
        place = int(numbers.random() * 2**53) * left >> 53  # among the weights of the others
        for expert in chosen:
            if place < ends[expert] - weights[expert]:
                break
            place += weights[expert]
        drawn = bisect_right(ends, place)
        insort(chosen, drawn)
        left -= weights[drawn]
    return chosen


def parse_recorded(text: str) -> Groups:
    """Reads a recorded routing: the rows of each expert, as `16*8,3,0`. Raises `BadGroups`, `ValueError`."""
    groups = Groups.parse(text)
    if groups is None or groups.rows == 0:
        raise ValueError("no expert has rows; write the rows of each expert, as in 16*8,3,0")
    return groups


def parse_routings(text: str, name: str) -> tuple[Groups, ...]:
    """Reads a file of recorded routings, one in a line. Blank lines are skipped.

    Args:
        text: The file.
        name: The name of the file in errors.

    Raises:
        ValueError: The first line that is wrong, with its number.
    """
    found: list[Groups] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            groups = parse_recorded(line)
        except (ValueError, FarmError) as error:
            raise ValueError(f"{name}:{number}: {error}") from None
        if found and len(groups.sizes) != len(found[0].sizes):
            raise ValueError(
                f"{name}:{number}: it has {len(groups.sizes):,} experts, and the first line has {len(found[0].sizes):,}"
            )
        found.append(groups)
    if not found:
        raise ValueError(f"{name} has no routings; write lines with the rows of each expert, as in 16,3,0,5")
    return tuple(found)

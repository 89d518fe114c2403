"""How much faster a GEMM is in the first milliseconds after a rest than under continued load: its burst over its settled time.

A power limiter answers after some milliseconds. It lowers the clocks until the card draws its limit, so a GEMM that would draw more
settles at a longer time, and any other keeps its burst time. A forest learns the ratio from the features of a model and from what
the fitted energies say a GEMM would draw without a limiter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .card import Card
from .energy import Energies
from .features import Seen
from .numeric import Array, Floats
from .text_columns import Text
from .trees import Grove, Trees

BURST_ROWS = 50
"""Configurations with both times below which a model does not know the burst time."""

_MIN_W = 1.0
"""No card draws less."""


def overload(seen: Seen, energies: Energies | None, card: Card) -> Floats:
    """log2 of what GEMMs would draw if they took their reference times, over the card's limit [rows]; 0 where it is not known.

    The reference times are used because predicted ones would pass their errors on: a GEMM that is predicted to be too fast would
    seem to draw too much, and the ratio would be too low as well.
    """
    if energies is None or not card.power_w > 0:
        return np.zeros(len(seen.reference_ms))
    power_w = energies.unlimited_w(seen.efforts, seen.reference_ms)
    found: Floats = np.log2(np.maximum(power_w, _MIN_W) / card.power_w)
    return found


def inputs(x: Array, seen: Seen, energies: Energies | None, card: Card) -> Array:
    """What the forest looks at, [rows, features + 1]: the features of a model [rows, features], and the overload."""
    return np.column_stack([x, overload(seen, energies, card).astype("float32")])


@dataclass(frozen=True)
class Bursts:
    """A forest for ln(burst / settled), and the kinds of rows that it was learned from."""

    trees: Trees
    # "family:ab:cd:acc" of the rows with both times. The ratio of other kernels does not apply.
    kinds: Sequence[str]

    def log_ratio(self, x: Array, kinds: Text) -> tuple[Floats, Floats]:
        """ln(burst / settled) of rows with these `inputs`, and its spread over the trees; NaN for kinds that were not learned.

        It is at most 0: a burst is not slower than the settled state, apart from noise.
        """
        (mean,), (spread,) = self._grove.predict(x)
        known = kinds.is_in(self.kinds)
        return np.where(known, np.minimum(mean, 0.0), np.nan), np.where(known, spread, np.nan)

    @cached_property
    def _grove(self) -> Grove:
        return Grove.of([self.trees])

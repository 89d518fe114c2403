"""Fitting the coefficients of `farm.forest.energy`: least squares on relative errors, with coefficients of at least 0."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from farm.forest.card import Card
from farm.forest.energy import W_PER_PJ_PER_MS, Efforts, Energies
from farm.forest.numeric import Floats

MIN_ROWS = 100
"""Rows with power below which a forest learns the power itself: a sum of a dozen terms would fit any of them."""

_AT_LIMIT = 0.98
"""Share of the card's limit. A row with more power is limited, so it is left out if the sum is above it."""

_ROUNDS = 4


def fit_energies(efforts: Efforts, runtime_ms: Floats, power_w: Floats, card: Card) -> Energies | None:
    """The coefficients of rows with power (NaN: without); None where they are too few."""
    usable = np.isfinite(power_w)
    if usable.sum() < MIN_ROWS:
        return None
    names, columns = zip(*_columns(efforts, runtime_ms).items(), strict=True)
    a, y = np.column_stack(columns)[usable], power_w[usable]
    counts = np.full(len(y), True)
    for _ in range(_ROUNDS):
        found, _ = nnls(a[counts] / y[counts, None], np.ones(counts.sum()))
        counts = ~((y > _AT_LIMIT * card.power_w) & (a @ found > y))
    of = dict(zip(names, found.tolist(), strict=True))
    return Energies(
        card_w=of["card"],
        busy_w=of["busy"],
        memory_pj=of["memory"],
        l2_pj={family: of["l2", family] for family in efforts.family.values},
        operation_pj={kind: of["operation", kind] for kind in efforts.kind.values},
    )


def _columns(efforts: Efforts, runtime_ms: Floats) -> dict[object, Floats]:
    """What each coefficient is multiplied by, [rows]."""
    per_pj = W_PER_PJ_PER_MS / runtime_ms
    found: dict[object, Floats] = {
        "card": np.ones(len(per_pj)),
        "busy": efforts.busy,
        "memory": efforts.bytes * per_pj,
    }
    for family in efforts.family.values:
        found["l2", family] = efforts.family.is_in((family,)) * efforts.l2_bytes * per_pj
    for kind in efforts.kind.values:
        found["operation", kind] = efforts.kind.is_in((kind,)) * efforts.flops * per_pj
    return found

"""Activations that are fused into a product: their values, and how far errors before them reach.

An activation is Lipschitz: an error before it is at most so many times as large after it. Its own evaluation has an error too.
Libraries compute gelu and silu in float32 with the card's approximate tanh, exp and division. Those two are x/2·(1 + t) with
t = tanh of something, so an error of t becomes half of it times x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.fusion import Activation
from farm.gemm import ElementType
from workers.measure.elements import UNIT_ROUNDOFF

TANH_ERROR = 2.0**-13
"""Relative error of tanh in float32 that is allowed. PTX documents 2^-11 for `tanh.approx.f32`. Measured over all numbers it is
1.113e-5, about 2^-16.5 (N. Juffa, "Hardware-accelerated tanh() on Turing", NVIDIA developer forums, 2021). The allowance lies
between: 2^-11 would let the gelu of erf pass for that of tanh, which differ by up to 4.7e-4."""

GELU_CONSTANTS = 2.0**-31
"""Relative error of sqrt(2/π) and of the function with it that is allowed. cuBLASLt's gelu in float64 is off by up to 1.4e-10 on an
H100, as with constants of some ten digits."""

EXACT_ULPS = 8
"""Units of round-off that the functions of float64, or of a narrow accumulator, are allowed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An activation, and its errors."""

    function: Callable[[Any, Any], Any]
    """Of numbers and the module that their array comes from: NumPy or CuPy."""

    lipschitz: float
    """The largest slope."""

    approximated: bool = True
    """Whether it has an error of its own."""

    constants: float = 0.0
    """Relative error of its constants, which counts in float64."""

    def error(self, accumulator: ElementType) -> float:
        """The largest error of its evaluation, as a share of |x|."""
        if not self.approximated:
            return 0.0
        unit = EXACT_ULPS * UNIT_ROUNDOFF[accumulator]
        return max(self.constants, unit) if accumulator is ElementType.F64 else max(TANH_ERROR / 2, unit)


def _relu(x: Any, xp: Any) -> Any:
    return xp.maximum(x, 0)


def _gelu(x: Any, xp: Any) -> Any:
    inner = x * x
    inner *= 0.044715
    inner += 1
    inner *= x
    inner *= math.sqrt(2 / math.pi)
    return x * (1 + xp.tanh(inner)) / 2


def _silu(x: Any, xp: Any) -> Any:
    return x / (1 + xp.exp(-x))


EVALUATIONS: Mapping[Activation, Evaluation] = {
    Activation.RELU: Evaluation(_relu, 1.0, approximated=False),
    Activation.GELU: Evaluation(_gelu, 1.13, constants=GELU_CONSTANTS),
    Activation.SILU: Evaluation(_silu, 1.1),
}


def apply(activation: Activation | None, x: Any, xp: Any = np) -> Any:
    """The activation of each number; without one, the numbers."""
    return x if activation is None else EVALUATIONS[activation].function(x, xp)


def errors_of(activation: Activation | None, accumulator: ElementType) -> tuple[float, float]:
    """How many times as large an error before the activation may be after it, and its own error as a share of |x|."""
    if activation is None:
        return 1.0, 0.0
    found = EVALUATIONS[activation]
    return found.lipschitz, found.error(accumulator)

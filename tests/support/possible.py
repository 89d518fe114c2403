"""Problems for hypothesis, without those that do not exist."""

from __future__ import annotations

from typing import Any

from hypothesis import reject

from farm.errors import OddExtent, ScaleOfOtherTypes
from farm.gemm import Problem


def possible(*values: Any, **named: Any) -> Problem:
    """A problem; the example is rejected where its extent is odd or its scale factors are those of other types."""
    try:
        return Problem(*values, **named)
    except (OddExtent, ScaleOfOtherTypes):
        reject()

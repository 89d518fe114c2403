"""Kernel families: their parameters, and the rules that say which configurations a device cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.kernels.configuration import (
        BASELINES,
        MEMORY_SHARE,
        Configuration,
        Kernel,
        parse_problem,
        problem_columns,
        problem_line,
        problem_of,
    )
    from farm.kernels.families import FAMILIES, family_named
    from farm.kernels.family import KernelFamily, Parameter, Reason, Rule

__getattr__ = names_of(__name__)

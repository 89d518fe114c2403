"""Attributes by which a span names the configuration that is measured in it (pure)."""

from __future__ import annotations

from farm.kernels.configuration import Configuration
from farm.tracing.span import PREFIX, Value


def attributes_of(configuration: Configuration) -> dict[str, Value]:
    """The kernel family and the problem. Parameters of kernels are left out."""
    problem, kernel = configuration.problem, configuration.kernel
    return {
        f"{PREFIX}kernel.family": kernel.family,
        f"{PREFIX}gemm.m": problem.shape.m,
        f"{PREFIX}gemm.n": problem.shape.n,
        f"{PREFIX}gemm.k": problem.shape.k,
        f"{PREFIX}gemm.types": str(problem.types),
        f"{PREFIX}gemm.layout": str(problem.layout),
    }

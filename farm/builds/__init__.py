"""Kernels that were built: what is known of one, the cache of a host, and the store that a farm shares."""

from __future__ import annotations

from farm.kernels.binary import Versions
from farm.settings import Settings


def versions_of(settings: Settings) -> Versions:
    """What this farm's kernels are built with."""
    return Versions(cutlass=settings.cutlass_version, cuda=settings.cuda_version)

"""Kernels that were built: what is known of one, the cache of a host, and the store that a farm shares."""

from __future__ import annotations

import importlib.util

import psutil

from farm.kernels.binary import Versions
from farm.settings import Settings

COMPILATION_BYTES = 4 * 2**30
"""Memory that one compilation may take: CUTLASS 3.x kernels take 3 GB."""


HEADERS = "cutlass_library"
"""The package of the extra `build` that brings the headers which kernels are compiled with."""


def can_build() -> bool:
    """Whether the extra `build` is installed."""
    return importlib.util.find_spec(HEADERS) is not None


def versions_of(settings: Settings) -> Versions:
    """What this farm's kernels are built with."""
    return Versions(cutlass=settings.cutlass_version, cuda=settings.cuda_version)


def slots_of(settings: Settings) -> int:
    """How many kernels this host builds at a time: FARM_BUILD_SLOTS, or as many as it has cores and memory for."""
    fitting = min(psutil.cpu_count() or 1, psutil.virtual_memory().total // COMPILATION_BYTES)
    return settings.build_slots or max(1, fitting)

"""Kernels that were built: what is known of one, the cache of a host, and the store that a farm shares."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import psutil

from farm.kernels.toolchains import TOOLCHAINS, Toolchain, Versions
from farm.settings import Settings

COMPILATION_BYTES = 4 * 2**30
"""Memory that one compilation may take: CUTLASS 3.x kernels take 3 GB."""


def versions_of(settings: Settings) -> Versions:
    """What this farm's kernels are built with: of each part of a toolchain, the setting that ends in `_version`."""
    return {part: getattr(settings, f"{part}_version") for toolchain in TOOLCHAINS for part in toolchain.parts}


def installed_toolchains(settings: Settings) -> tuple[Toolchain, ...]:
    """Toolchains whose packages this host has. Whether they work is known when a builder starts."""
    versions = versions_of(settings)
    return tuple(toolchain for toolchain in TOOLCHAINS if _is_installed(toolchain, versions))


def _is_installed(toolchain: Toolchain, versions: Versions) -> bool:
    if not toolchain.exact:
        return importlib.util.find_spec(toolchain.module) is not None
    try:
        return importlib.metadata.version(toolchain.module) == versions[toolchain.parts[0]]
    except importlib.metadata.PackageNotFoundError:
        return False


def slots_of(settings: Settings) -> int:
    """How many kernels this host builds at a time: FARM_BUILD_SLOTS, or as many as it has cores and memory for."""
    fitting = min(psutil.cpu_count() or 1, psutil.virtual_memory().total // COMPILATION_BYTES)
    return settings.build_slots or max(1, fitting)

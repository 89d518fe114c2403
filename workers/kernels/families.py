"""The worker's parts of the kernel families, imported when a device is opened."""

from __future__ import annotations

from typing import Any

from farm.devices import DeviceKind
from farm.errors import BadFamilyPackage
from farm.kernels import FAMILIES
from farm.kernels.families import PACKAGES
from farm.lazy import load


def worker_parts(kind: DeviceKind) -> dict[str, Any]:
    """For each family of a kind of device, what `KernelFamily.worker` names. Raises `BadFamilyPackage`."""
    return {family.name: _imported(family.name, family.worker) for family in FAMILIES.values() if family.kind is kind}


def _imported(family: str, named: str) -> Any:
    try:
        return load(named)
    except Exception as error:
        if family not in PACKAGES:
            raise
        why = f"{named}, which measures its family {family!r}: {type(error).__name__}: {error}"
        raise BadFamilyPackage(package=PACKAGES[family], why=why) from error

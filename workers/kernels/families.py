"""The worker's parts of the kernel families, imported when a device is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from farm.devices import DeviceKind
from farm.errors import BadFamilyPackage
from farm.kernels import FAMILIES, Configuration
from farm.kernels.families import PACKAGES
from farm.lazy import load

log = logging.getLogger(__name__)


def worker_parts(kind: DeviceKind) -> dict[str, Callable[..., Any]]:
    """For each family of a kind of device, what makes its worker's part: the class that `KernelFamily.worker` names.

    If a package's class cannot be imported, that is logged, and every job of its family fails with the reason.
    """
    return {
        family.name: _imported(family.name, family.worker)
        for family in FAMILIES.values()
        if family.kind is kind and family.worker is not None
    }


def _imported(family: str, named: str) -> Callable[..., Any]:
    try:
        made: Callable[..., Any] = load(named)
    except Exception as error:
        if family not in PACKAGES:
            raise
        why = f"{named}, which measures its family {family!r}: {type(error).__name__}: {error}"
        unusable = _Unusable(PACKAGES[family], why)
        log.warning("%s", unusable.error)
        return lambda *_: unusable
    return made


class _Unusable:
    """Stands for the worker's part of a family that cannot be imported."""

    def __init__(self, package: str, why: str) -> None:
        self._package, self._why = package, why

    @property
    def error(self) -> BadFamilyPackage:
        return BadFamilyPackage(package=self._package, why=self._why)

    def prepare(self, configuration: Configuration) -> None:
        """Nothing can be prepared."""

    def bind(self, *_: object) -> NoReturn:
        raise self.error

    def close(self) -> None:
        """Nothing was taken."""

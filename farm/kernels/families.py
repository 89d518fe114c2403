"""Every kernel family, by name: those of the farm, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping

from farm.errors import BadFamilyPackage, UnknownFamily
from farm.kernels.blas import BLAS
from farm.kernels.cublaslt import CUBLASLT
from farm.kernels.cutlass import CUTLASS
from farm.kernels.cutlass3x import CUTLASS3X
from farm.kernels.family import KernelFamily
from farm.kernels.installed import installed_families
from farm.kernels.tiled import TILED

PACKAGES: dict[str, str] = {}
"""The packages that families come from, by the family's name; those of the farm are left out."""


def _all() -> Mapping[str, KernelFamily]:
    found = {family.name: family for family in (BLAS, TILED, CUBLASLT, CUTLASS, CUTLASS3X)}
    for package, family in installed_families():
        if family.name in found:
            owner = PACKAGES.get(family.name, "the farm itself")
            raise BadFamilyPackage(package=package, why=f"its family {family.name!r} has the name of one of {owner}")
        found[family.name] = family
        PACKAGES[family.name] = package
    return found


FAMILIES = _all()


def family_named(name: object) -> KernelFamily:
    """The family of that name. Raises `UnknownFamily`."""
    family = FAMILIES.get(str(name))
    if family is None:
        raise UnknownFamily(value=name, known=", ".join(FAMILIES))
    return family

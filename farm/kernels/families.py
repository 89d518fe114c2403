"""Every kernel family, by name."""

from __future__ import annotations

from collections.abc import Mapping

from farm.errors import UnknownFamily
from farm.kernels.blas import BLAS
from farm.kernels.cublaslt import CUBLASLT
from farm.kernels.cutlass import CUTLASS
from farm.kernels.cutlass3x import CUTLASS3X
from farm.kernels.family import KernelFamily
from farm.kernels.tiled import TILED

FAMILIES: Mapping[str, KernelFamily] = {family.name: family for family in (BLAS, TILED, CUBLASLT, CUTLASS, CUTLASS3X)}


def family_named(name: object) -> KernelFamily:
    """The family of that name. Raises `UnknownFamily`."""
    family = FAMILIES.get(str(name))
    if family is None:
        raise UnknownFamily(value=name, known=", ".join(FAMILIES))
    return family

"""Every kernel family, by name: those of the farm, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.errors import UnknownFamily
from farm.kernels.binary import Binary, checked_binary
from farm.kernels.blas import BLAS
from farm.kernels.cublaslt import CUBLASLT
from farm.kernels.cusparselt import CUSPARSELT
from farm.kernels.cutlass import CUTLASS
from farm.kernels.cutlass3x import CUTLASS3X
from farm.kernels.family import KernelFamily
from farm.kernels.installed import add_installed
from farm.kernels.layer import LAYER
from farm.kernels.source import SOURCE
from farm.kernels.tiled import TILED
from farm.kernels.triton import TRITON

FAMILIES: dict[str, KernelFamily] = {
    family.name: family for family in (BLAS, TILED, CUBLASLT, CUSPARSELT, CUTLASS, CUTLASS3X, TRITON, LAYER, SOURCE)
}

PACKAGES = add_installed(FAMILIES)
"""The packages that families come from, by the family's name; those of the farm are left out."""


TILE_STUDY = next(family for family in FAMILIES.values() if family.tile_shared_bytes is not None)
"""The family that the study of tiles is about."""


def family_named(name: object) -> KernelFamily:
    """The family of that name. Raises `UnknownFamily`."""
    family = FAMILIES.get(str(name))
    if family is None:
        raise UnknownFamily(value=name, known=", ".join(FAMILIES))
    return family


def binary_from_json(found: Mapping[str, Any]) -> Binary:
    """The binary that `Binary.to_json` described, from a template of any family. Raises `BadBinary`."""
    templates = {template.name: template for family in FAMILIES.values() for template in family.templates}
    return checked_binary(found, templates)

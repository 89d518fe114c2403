"""Blocks of kernels: a family with an axis for each of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from farm.campaign.axes import Axis, AxisKey, shown
from farm.campaign.suggestions import did_you_mean
from farm.campaign.values import FileModel, Mappings
from farm.kernels import FAMILIES, Kernel, KernelFamily
from farm.lazy import load


class KernelBlock(FileModel):
    """A family with an axis for each of its parameters. See `kernel_model`."""

    family: str = Field(description="the kernel family", examples=["tiled"])

    @property
    def axes(self) -> list[tuple[str, Axis]]:
        """The axes, in the order of their names."""
        return [(name, getattr(self, name)) for name in sorted(type(self).model_fields) if name != "family"]

    def lengths(self) -> dict[str, int]:
        """The length of each axis, without expanding one: values that two entries of an axis share count twice."""
        return {name: axis.max_length for name, axis in self.axes}

    @property
    def size(self) -> int:
        """How many kernels the block has."""
        return math.prod(len(axis) for _, axis in self.axes)

    def kernels(self) -> Iterator[Kernel]:
        """The kernels, one after another."""
        names = [name for name, _ in self.axes]
        for values in _combinations([axis for _, axis in self.axes]):
            yield Kernel(self.family, tuple(zip(names, values, strict=True)))


def _combinations(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """`itertools.product` that does not copy its axes into memory."""
    if not axes:
        yield ()
        return
    for first in axes[0]:
        for rest in _combinations(axes[1:]):
            yield (first, *rest)


@cache
def _models() -> dict[str, type[KernelBlock]]:
    return {family.name: _model_of(family) for family in FAMILIES.values()}


def _model_of(family: KernelFamily) -> type[KernelBlock]:
    if family.block is not None:
        own: type[KernelBlock] = load(family.block)
        return own
    keys: dict[str, Any] = {
        parameter.name: (
            Annotated[Axis, AxisKey(parameter.name, parameter.values)],
            Field(default=Axis([(parameter.default,)]), description=parameter.meaning),
        )
        for parameter in family.parameters
    }
    keys["family"] = (Literal[family.name], KernelBlock.model_fields["family"])
    return create_model(f"{family.name.capitalize()}Block", __base__=KernelBlock, **keys)


def kernel_model(written: object) -> type[KernelBlock]:
    """The model of a block of kernels, by its family. Without a known family, one that has the family alone."""
    family = written.get("family") if isinstance(written, dict) else None
    return _models().get(family, KernelBlock) if isinstance(family, str) else KernelBlock


class _Kernels(Mappings):
    """Declares a key of blocks of kernels."""

    def read_in(self, written: Any, info: Any) -> KernelBlock:
        if isinstance(written, dict):
            if "family" not in written:
                return KernelBlock.model_validate({})  # without it, nobody can say which other keys are right
            family = written["family"]
            if not isinstance(family, str) or family not in FAMILIES:
                raise ValueError(f"there is no kernel family {shown(family)}; {did_you_mean(str(family), FAMILIES)}")
        block: KernelBlock = super().read_in(written, info)
        return block


KERNELS = _Kernels(kernel_model, models=lambda: list(_models().values()))
"""Declares a key of blocks of kernels."""

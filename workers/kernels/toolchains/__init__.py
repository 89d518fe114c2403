"""The worker's part of toolchains: a compiler finds itself, proves that it works, and compiles binaries.

A module for each: the class that `farm.kernels.toolchains.Toolchain.worker` names. They share `compilation`.
"""

from __future__ import annotations

from typing import Protocol, Self

from farm.builds.record import Built
from farm.errors import WrongCompiler
from farm.kernels.binary import Binary
from farm.kernels.toolchains import Toolchain, Versions
from farm.lazy import load


class Compiler(Protocol):
    """The compiler of a toolchain on this host."""

    @property
    def versions(self) -> Versions:
        """The versions of the toolchain's parts."""

    @classmethod
    def find(cls) -> Self:
        """Raises `CompilerMissing`."""

    def prove(self) -> None:
        """Compiles next to nothing. Raises `CompilerMissing` where that fails: then no kernel is to blame."""

    def compile(self, binary: Binary) -> Built:
        """Raises `DoesNotCompile` where trying again is no use, and `BuildFailed` where it may be."""


def compiler_of(toolchain: Toolchain, wanted: Versions) -> Compiler:
    """This host's compiler. Raises `CompilerMissing`, and `WrongCompiler` where the farm builds with other versions."""
    found: Compiler = load(toolchain.worker).find()
    if found.versions != toolchain.of(wanted):
        raise WrongCompiler(toolchain=toolchain, found=toolchain.text(found.versions), wanted=toolchain.text(wanted))
    return found

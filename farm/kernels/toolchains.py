"""Toolchains: what compiles kernels ahead of time, and the versions that name a compilation. Everything here is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Versions = Mapping[str, str]
"""Versions of the parts of toolchains: 4.2.0 of `cutlass`, 13.0.88 of `cuda` (nvcc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler with what it needs. A host builds the kernels of the toolchains that it has."""

    name: str
    # What its version consists of. The setting FARM_<PART>_VERSION says which version the farm's kernels are built with.
    parts: tuple[str, ...]
    # The module whose presence shows that it is installed, and the extra that installs it.
    module: str
    extra: str
    # What the extra installs, for messages.
    brings: str
    # Its compiler, as "module:class". See `workers.kernels.toolchains`.
    worker: str
    # Whether the module's own version is the toolchain's: another version then counts as not installed.
    exact: bool = False

    def of(self, versions: Versions) -> dict[str, str]:
        """The versions of its parts alone."""
        return {part: versions[part] for part in self.parts}

    def text(self, versions: Versions) -> str:
        """Its version as tables have it: `cutlass 4.2.0, cuda 13.0.88`."""
        return ", ".join(f"{part} {version}" for part, version in self.of(versions).items())


NVCC = Toolchain(
    name="nvcc",
    parts=("cutlass", "cuda"),
    module="cutlass_library",
    extra="build",
    brings="the compiler and the headers; a C++ compiler (g++) must be there already",
    worker="workers.kernels.toolchains.nvcc:Nvcc",
)
"""nvcc with the headers of CUTLASS."""

TRITON = Toolchain(
    name="triton",
    parts=("triton",),
    module="triton",
    exact=True,
    extra="triton",
    brings="it, with all that it compiles with",
    worker="workers.kernels.toolchains.triton:Triton",
)
"""Triton, which brings its own ptxas."""

TOOLCHAINS = (NVCC, TRITON)

BUILT_WITH: Versions = {"cutlass": "4.2.0", "cuda": "13.0.88", "triton": "3.9.0"}
"""The default versions of a farm: those of the extras."""


def extras_of(texts: Iterable[str]) -> list[str]:
    """The extras that install toolchains, by their versions as tables have them."""
    first_parts = {text.partition(" ")[0] for text in texts}
    return [toolchain.extra for toolchain in TOOLCHAINS if toolchain.parts[0] in first_parts]

"""Triton: compiling a kernel without a GPU, in a process of its own, and reading what it says of it.

An own kernel is code of a user. `farm.kernels.triton_files` decides what of it gets here. The process that reads it has no
variables of the builder, no network where the system allows that, and limits of time, memory and files.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from farm.builds.record import Built
from farm.errors import BuildFailed, CompilerMissing, DoesNotCompile
from farm.gemm import ElementTypes, Problem, Shape
from farm.kernels import Kernel, own_triton
from farm.kernels.binary import Binary, capability_of, text_of
from farm.kernels.definition import known
from farm.kernels.toolchains import TRITON, Versions
from farm.kernels.triton.binaries import binary_of, scratch_bytes
from workers.kernels.toolchains import triton_program
from workers.kernels.toolchains.compilation import ENTRY, KILLED, TEMPORARY, TIME_LIMIT_SECONDS, built, cut, run

_SOURCE, _PROGRAM = "gemm_triton.py", Path(triton_program.__file__)

_PTXAS_KILLED = re.compile(r"error code -\d+|SIGSEGV")

_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""Variables that a compilation keeps. Those of Triton would change a kernel without changing its name, and others have secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Triton:
    """The Triton of this environment."""

    versions: Versions

    @classmethod
    def find(cls) -> Self:
        """Raises `CompilerMissing`."""
        try:
            return cls(versions={"triton": importlib.metadata.version("triton")})
        except importlib.metadata.PackageNotFoundError:
            raise CompilerMissing(toolchain=TRITON, why="there is no Triton (triton)") from None

    def prove(self) -> None:
        """Compiles a small kernel. Raises `CompilerMissing` where that fails: then no kernel is to blame."""
        try:
            self.compile(_small())
        except BuildFailed as error:
            raise CompilerMissing(toolchain=TRITON, why=f"Triton cannot compile here: {error.fields['why']}") from None

    def compile(self, binary: Binary, *, time_limit: float = TIME_LIMIT_SECONDS) -> Built:
        """Raises `DoesNotCompile` where trying again is no use, and `BuildFailed` where it may be."""
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as name:
            folder = Path(name)
            text, entry, given = _to_compile(binary)
            (folder / _SOURCE).write_text(text, encoding="utf-8")
            began = time.monotonic()
            printed = self._run(binary, folder, given, time_limit)
            seconds = time.monotonic() - began
            try:
                code = (folder / "gemm.cubin").read_bytes()
                facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            except (OSError, ValueError) as error:
                raise BuildFailed(binary=binary, why=f"what Triton wrote cannot be read: {error}") from None
        allowed = scratch_bytes(binary)
        if (need := facts.pop("scratch_bytes")) > allowed:
            why = f"it needs {need} bytes of scratch memory for a block, and a launch has {allowed}"
            raise DoesNotCompile(binary=binary, why=why)
        return built(binary, self.versions, code, seconds=seconds, ptxas=printed, entry=entry, **facts)

    def _run(self, binary: Binary, folder: Path, given: dict[str, Any], time_limit: float) -> str:
        """Compiles inside the folder, and returns what ptxas printed."""
        major, minor = capability_of(binary.arch)
        command = [sys.executable, "-P", str(_PROGRAM), _SOURCE, str(10 * major + minor)]
        status, printed = run(
            binary,
            command,
            folder,
            time_limit=time_limit,
            given=json.dumps(given),
            # Without lines of the source, whose folder is another one each time.
            variables={
                **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
                "HOME": str(folder),
                "TRITON_HOME": str(folder),
                "TRITON_CACHE_DIR": str(folder / "cache"),
                "TRITON_DUMP_PTXAS_LOG": "1",
                "TRITON_DISABLE_LINE_INFO": "1",
            },
        )
        if status == 0:
            return printed
        line = cut((printed.strip().splitlines() or ["it printed nothing"])[-1].strip())
        if status != triton_program.DOES_NOT_COMPILE or KILLED.search(printed) or _PTXAS_KILLED.search(printed):
            raise BuildFailed(binary=binary, why=f"Triton ended with {status}: {line}")
        raise DoesNotCompile(binary=binary, why=line)


def _to_compile(binary: Binary) -> tuple[str, str, dict[str, Any]]:
    """The source, the name of the kernel in it, and what the process is given. Raises `BadBinary`."""
    number = own_triton.definition_in(binary)
    if number is None:
        return text_of(binary.template), ENTRY, {"template": dict(binary.definitions)}
    text, given = own_triton.compilation(binary, known(number))
    return text, given["entry"], {"own": given}


def _small() -> Binary:
    kernel = Kernel.of("triton", tile_m=16, tile_n=16, tile_k=16, warps=1, stages=1)
    problem = Problem(Shape(16, 16, 16), ElementTypes.parse("f16"))
    return binary_of(problem, dict(kernel.parameters), "sm_80")

"""nvcc with the headers of CUTLASS: finding both, compiling, and reading the output."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from farm.builds.record import Built
from farm.errors import BuildFailed, CompilerMissing, DoesNotCompile
from farm.kernels.binary import Binary, text_of
from farm.kernels.toolchains import NVCC, Versions
from workers.kernels.binary_facts import read_facts
from workers.kernels.toolchains.compilation import (
    KILLED,
    TEMPORARY,
    TIME_LIMIT_SECONDS,
    built,
    cut,
    environment_in,
    run,
)

PROOF = '#include "cutlass/cutlass.h"\nextern "C" __global__ void nothing() {}\n'
"""A source that every host that builds can compile in a second or two."""

_SOURCE, _CUBIN, _LIBRARY = "gemm.cu", "gemm.cubin", "gemm.so"

_NOT_IMPLEMENTED = b" not implemented"
"""CUTLASS 2.x compiles an instruction that the architecture lacks into a printf of this and a trap. In a library the
kernel is compressed; the template there refuses an architecture that lacks instructions."""

_ERROR_LINE = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_OF_THE_KERNEL = re.compile(r"\): error:|\bptxas\b.*\berror\b")
"""Errors in C++ or assembly. A missing header, host compiler or architecture is `fatal`, and a fault of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """An nvcc and the headers of CUTLASS."""

    nvcc: Path
    headers: Path
    versions: Versions

    @classmethod
    def find(cls) -> Self:
        """Of the wheels in this environment first, then an nvcc on the PATH. Raises `CompilerMissing`."""
        headers = _cutlass_headers()
        if headers is None:
            raise CompilerMissing(toolchain=NVCC, why="there are no headers of CUTLASS (nvidia-cutlass)")
        nvcc = next(_compilers(), None)
        if nvcc is None:
            raise CompilerMissing(toolchain=NVCC, why="there is no nvcc (nvidia-cuda-nvcc)")
        versions = {"cutlass": _cutlass_version(headers), "cuda": _cuda_version(nvcc)}
        return cls(nvcc=nvcc, headers=headers, versions=versions)

    def prove(self) -> None:
        """Compiles next to nothing. Raises `CompilerMissing` where that fails: then no kernel is to blame.

        A host without g++, or with a full disk, would otherwise fail every kernel of the farm.
        """
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as name:
            (Path(name) / _SOURCE).write_text(PROOF)
            command = [
                str(self.nvcc),
                "-cubin",
                "-std=c++17",
                "-arch=sm_80",
                f"-I{self.headers}",
                "-o",
                _CUBIN,
                _SOURCE,
            ]
            environment = environment_in(Path(name))
            try:
                done = subprocess.run(
                    command, cwd=name, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS,
                    check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompilerMissing(toolchain=NVCC, why=f"{self.nvcc} does not work ({error})") from None
            if done.returncode:
                line = error_line(done.stdout + done.stderr, self.headers) or f"it ended with {done.returncode}"
                raise CompilerMissing(toolchain=NVCC, why=f"{self.nvcc} cannot compile here: {line}")

    def compile(self, binary: Binary, *, time_limit: float = TIME_LIMIT_SECONDS) -> Built:
        """Raises `DoesNotCompile` where trying again is no use, and `BuildFailed` where it may be."""
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as name:
            folder = Path(name)
            (folder / _SOURCE).write_text(text_of(binary.template))
            began = time.monotonic()
            output = self._run(binary, folder, time_limit)
            seconds = time.monotonic() - began
            code = (folder / _output(binary)).read_bytes()
        if not binary.template.library and _NOT_IMPLEMENTED in code:
            raise DoesNotCompile(binary=binary, why=f"CUTLASS has no instruction for it on {binary.arch}")
        try:
            params_bytes, shared_bytes, threads = read_facts(code)
        except ValueError as error:
            raise BuildFailed(binary=binary, why=f"what the compiler wrote cannot be read: {error}") from None
        return built(
            binary,
            self.versions,
            code,
            seconds=seconds,
            params_bytes=params_bytes,
            shared_bytes=shared_bytes,
            threads=threads,
            ptxas=output,
        )

    def _run(self, binary: Binary, folder: Path, time_limit: float) -> str:
        """Compiles inside the folder, and returns what the compiler printed."""
        output = _output(binary)
        where = (f"-I{self.headers}", *(f"-L{place}" for place in self._libraries(binary)))
        command = [str(self.nvcc), *binary.options, "-Xptxas=-v", *where, "-o", output, _SOURCE]
        status, printed = run(binary, command, folder, time_limit=time_limit)
        if status == 0 and (folder / output).is_file():
            return printed
        line = error_line(printed, self.headers)
        if line is None or not _OF_THE_KERNEL.search(line) or KILLED.search(printed):
            how = f"the compiler ended with {status}"
            raise BuildFailed(binary=binary, why=f"{how}: {line}" if line else how)
        raise DoesNotCompile(binary=binary, why=line)

    def _libraries(self, binary: Binary) -> tuple[Path, ...]:
        """The folder of CUDA's libraries in the wheels, which nvcc does not search. An nvcc that is not from wheels needs none."""
        place = self.nvcc.parent.parent / "lib"
        return (place,) if binary.template.library and place.is_dir() else ()


def _output(binary: Binary) -> str:
    return _LIBRARY if binary.template.library else _CUBIN


def error_line(output: str, headers: Path) -> str | None:
    """The first line that reports an error, with headers named as in their includes."""
    for line in output.splitlines():
        if _ERROR_LINE.search(line):
            return cut(line.strip().replace(f"{headers}{os.sep}", ""))
    return None


def cuda_headers() -> Path | None:
    """The folder of the headers that come with an nvcc of this host, `crt/` among them; None without."""
    folders = (nvcc.resolve().parent.parent / "include" for nvcc in _compilers())
    return next((folder for folder in folders if (folder / "crt").is_dir()), None)


def _compilers() -> Iterator[Path]:
    wheels = importlib.util.find_spec("nvidia")
    for place in (wheels.submodule_search_locations if wheels else None) or ():
        yield from sorted(Path(place).glob("cu*/bin/nvcc"), reverse=True)
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield Path(on_path)


def _cutlass_headers() -> Path | None:
    wheel = importlib.util.find_spec(NVCC.module)
    for place in (wheel.submodule_search_locations if wheel else None) or ():
        headers = Path(place) / "source" / "include"
        if (headers / "cutlass" / "version.h").is_file():
            return headers
    return None


def _cutlass_version(headers: Path) -> str:
    text = (headers / "cutlass" / "version.h").read_text()
    numbers = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)", text))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


def _cuda_version(nvcc: Path) -> str:
    try:
        printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(toolchain=NVCC, why=f"{nvcc} does not work ({error})") from None
    found = re.search(r"\bV(\d+(?:\.\d+)+)", printed)
    if found is None:
        raise CompilerMissing(toolchain=NVCC, why=f"{nvcc} does not report its version")
    return found[1]

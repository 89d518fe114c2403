"""Compiling a binary with nvcc: finding the compiler and the headers, reading its output, and the time limit."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from farm.builds import HEADERS
from farm.builds.record import Built, Record
from farm.errors import BuildFailed, CompilerMissing, DoesNotCompile
from farm.kernels.binary import Binary, Versions, text_of
from workers.kernels.binary_facts import read_facts

TIME_LIMIT_SECONDS = 300.0
"""The slowest of 365 kernels of CUTLASS 2.x took 25 s on a busy host, of 3.x 100 s."""

MAX_LINE = 400
"""Maximum characters of the compiler's output in an error. Names of template types can take thousands."""

ENTRY = "gemm"
"""The kernel whose resources are recorded."""

PROOF = '#include "cutlass/cutlass.h"\nextern "C" __global__ void nothing() {}\n'
"""A source that every host that builds can compile in a second or two."""

_SOURCE, _CUBIN, _LIBRARY = "gemm.cu", "gemm.cubin", "gemm.so"

_NOT_IMPLEMENTED = b" not implemented"
"""CUTLASS 2.x compiles an instruction that the architecture lacks into a printf of this and a trap. In a library the
kernel is compressed; the template there refuses an architecture that lacks instructions."""

_ERROR_LINE = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_OF_THE_KERNEL = re.compile(r"\): error:|\bptxas\b.*\berror\b")
"""Errors in C++ or assembly. A missing header, host compiler or architecture is `fatal`, and a fault of the host."""
_KILLED = re.compile(r"died due to signal|Killed|No space left on device|out of memory", re.IGNORECASE)
_RESOURCES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "static_shared_bytes": re.compile(r"(\d+) bytes smem"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """An nvcc and the headers of CUTLASS."""

    nvcc: Path
    headers: Path
    versions: Versions

    @classmethod
    def find(cls) -> Self:
        """Of the wheels in this environment first, then an nvcc on the PATH. Raises `CompilerMissing`."""
        headers = _cutlass_headers()
        if headers is None:
            raise CompilerMissing(why="there are no headers of CUTLASS (nvidia-cutlass)")
        nvcc = next(_compilers(), None)
        if nvcc is None:
            raise CompilerMissing(why="there is no nvcc (nvidia-cuda-nvcc)")
        return cls(nvcc=nvcc, headers=headers, versions=Versions(_cutlass_version(headers), _cuda_version(nvcc)))

    def prove(self) -> None:
        """Compiles next to nothing. Raises `CompilerMissing` where that fails: then no kernel is to blame.

        A host without g++, or with a full disk, would otherwise fail every kernel of the farm.
        """
        with tempfile.TemporaryDirectory(prefix="gemm-farm-build-") as name:
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
            environment = {**os.environ, "TMPDIR": name, "LC_ALL": "C"}
            try:
                done = subprocess.run(
                    command, cwd=name, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS,
                    check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompilerMissing(why=f"{self.nvcc} does not work ({error})") from None
            if done.returncode:
                line = error_line(done.stdout + done.stderr, self.headers) or f"it ended with {done.returncode}"
                raise CompilerMissing(why=f"{self.nvcc} cannot compile here: {line}")

    def compile(self, binary: Binary, *, time_limit: float = TIME_LIMIT_SECONDS) -> Built:
        """Raises `DoesNotCompile` where trying again is no use, and `BuildFailed` where it may be."""
        with tempfile.TemporaryDirectory(prefix="gemm-farm-build-") as name:
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
        record = Record(
            hash=binary.hash(self.versions),
            template=binary.template.name,
            definitions=dict(binary.definitions),
            arch=binary.arch,
            label=binary.label,
            cutlass=self.versions.cutlass,
            cuda=self.versions.cuda,
            seconds=round(seconds, 3),
            sha256=hashlib.sha256(code).hexdigest(),
            bytes=len(code),
            params_bytes=params_bytes,
            shared_bytes=shared_bytes,
            threads=threads,
            **resources(output, ENTRY),
        )
        return Built(code, record)

    def _run(self, binary: Binary, folder: Path, time_limit: float) -> str:
        """Compiles inside the folder, where also nvcc's own files go. Its processes end with it."""
        output = _output(binary)
        where = (f"-I{self.headers}", *(f"-L{place}" for place in self._libraries(binary)))
        command = [str(self.nvcc), *binary.options, "-Xptxas=-v", *where, "-o", output, _SOURCE]
        environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise BuildFailed(binary=binary, why=f"{self.nvcc} cannot be started ({error})") from None
        try:
            printed, _ = process.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired:
            raise BuildFailed(binary=binary, why=f"the compiler took longer than {time_limit:g} s") from None
        finally:
            if process.poll() is None:  # too slow, or this process was interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode == 0 and (folder / output).is_file():
            return printed
        line = error_line(printed, self.headers)
        if line is None or not _OF_THE_KERNEL.search(line) or _KILLED.search(printed):
            how = f"the compiler ended with {process.returncode}"
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
            text = line.strip().replace(f"{headers}{os.sep}", "")
            return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"
    return None


def resources(output: str, entry: str) -> dict[str, int]:
    """The resources of a kernel in the output of ptxas -v: registers, spill_bytes, stack_bytes, static_shared_bytes. 0 if missing."""
    about = re.search(
        rf"Compiling entry function '{re.escape(entry)}'(.*?)(?=Compiling entry function|\Z)", output, re.S
    )
    text = about[1] if about else ""
    found = {name: pattern.search(text) for name, pattern in _RESOURCES.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


def _compilers() -> Iterator[Path]:
    wheels = importlib.util.find_spec("nvidia")
    for place in (wheels.submodule_search_locations if wheels else None) or ():
        yield from sorted(Path(place).glob("cu*/bin/nvcc"), reverse=True)
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield Path(on_path)


def _cutlass_headers() -> Path | None:
    wheel = importlib.util.find_spec(HEADERS)
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
        raise CompilerMissing(why=f"{nvcc} does not work ({error})") from None
    found = re.search(r"\bV(\d+(?:\.\d+)+)", printed)
    if found is None:
        raise CompilerMissing(why=f"{nvcc} does not report its version")
    return found[1]

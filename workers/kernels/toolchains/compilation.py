"""What compilers of kernels share: running within a time limit, and reading what ptxas and others print."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.builds.record import Built, Record
from farm.errors import BuildFailed
from farm.kernels.binary import Binary
from farm.kernels.toolchains import Versions

TIME_LIMIT_SECONDS = 300.0
"""The slowest of 365 kernels of CUTLASS 2.x took 25 s on a busy host, of 3.x 100 s."""

MAX_LINE = 400
"""Maximum characters of the compiler's output in an error. Names of template types can take thousands."""

MAX_OUTPUT = 2**24
"""Maximum bytes of the compiler's output that are read: its end."""

ENTRY = "gemm"
"""The kernel whose resources are recorded."""

TEMPORARY = "gemm-farm-build-"
"""How names of temporary folders begin."""

KILLED = re.compile(r"died due to signal|Killed|No space left on device|out of memory", re.IGNORECASE)
"""What is the host's fault, in the output of a compiler."""

_RESOURCES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "static_shared_bytes": re.compile(r"(\d+) bytes smem"),
}


def environment_in(folder: Path, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a compiler whose own temporary files go to the folder."""
    return {**variables, "TMPDIR": str(folder), "LC_ALL": "C"}


def run(
    binary: Binary,
    command: Sequence[str],
    folder: Path,
    *,
    time_limit: float,
    given: str = "",
    variables: Mapping[str, str] = os.environ,
) -> tuple[int, str]:
    """Runs a compiler inside the folder, with `given` as its input. Its processes end with it.

    Returns:
        Its status, and what it printed.

    Raises:
        BuildFailed: it cannot be started, or took longer than `time_limit` seconds.
    """
    # A file, because an own kernel can make a compiler print without end, and pipes are read into memory.
    with tempfile.TemporaryFile(dir=folder) as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_in(folder, variables),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise BuildFailed(binary=binary, why=f"{command[0]} cannot be started ({error})") from None
        try:
            process.communicate(given, timeout=time_limit)
        except subprocess.TimeoutExpired:
            raise BuildFailed(binary=binary, why=f"the compiler took longer than {time_limit:g} s") from None
        finally:
            if process.poll() is None:  # too slow, or this process was interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_OUTPUT))
        return process.returncode, output.read().decode(errors="replace")


def built(
    binary: Binary,
    versions: Versions,
    code: bytes,
    *,
    seconds: float,
    params_bytes: int,
    shared_bytes: int,
    threads: int,
    ptxas: str,
    entry: str = ENTRY,
) -> Built:
    """The code with its record. `ptxas` is what `ptxas -v` printed, and `entry` the name of the kernel."""
    facts = {
        "hash": binary.hash(versions),
        "template": binary.template.name,
        "definitions": dict(binary.definitions),
        "arch": binary.arch,
        "label": binary.label,
        **versions,
        "seconds": round(seconds, 3),
        "sha256": hashlib.sha256(code).hexdigest(),
        "bytes": len(code),
        "params_bytes": params_bytes,
        "shared_bytes": shared_bytes,
        "threads": threads,
        **resources(ptxas, entry),
    }
    return Built(code, Record.model_validate(facts))


def resources(output: str, entry: str) -> dict[str, int]:
    """The resources of a kernel in the output of ptxas -v: registers, spill_bytes, stack_bytes, static_shared_bytes. 0 if missing."""
    about = re.search(
        rf"Compiling entry function '{re.escape(entry)}'(.*?)(?=Compiling entry function|\Z)", output, re.S
    )
    text = about[1] if about else ""
    found = {name: pattern.search(text) for name, pattern in _RESOURCES.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


def cut(text: str) -> str:
    """The text, or its beginning where it is too long for an error."""
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"

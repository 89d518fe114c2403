"""`python -m workers.compiling FILE FOLDER SLOTS`: builds kernels into a folder, with no services. `farm kernels build`
starts it.

FILE has a description of a kernel in each line (`farm.kernels.binary.Binary.to_json`), for an own kernel in Triton with its `definition`
(`farm.kernels.definition`). The process answers on standard output with a JSON object for each finished kernel:

    {"hash": …, "built": {the record}, "new": whether it was compiled now}
    {"hash": …, "failed": why}

or, first and last, why nothing can be built: {"refused": {"exit_code": …, "message": …}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from farm import signing_keys
from farm.builds import versions_of
from farm.builds.cache import KernelCache
from farm.errors import BuildFailed, FarmError
from farm.kernels.binary import Binary
from farm.kernels.definition import Definition
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import Versions
from farm.settings import settings
from farm.signing import Purpose
from workers.answers import refusal_of
from workers.kernels.toolchains import Compiler, compiler_of


def main() -> None:
    file, folder, slots = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    described = [json.loads(line) for line in file.read_text().splitlines()]
    definitions = [Definition.from_json(one["definition"]) for one in described if "definition" in one]
    binaries = [binary_from_json(one) for one in described]
    versions = versions_of(settings())
    try:
        compilers = _compilers(binaries, versions)
        signer = signing_keys.signer(settings(), Purpose.KERNEL)
    except FarmError as error:
        _say(refusal_of(error))
        return
    cache = KernelCache(folder)

    def build(binary: Binary) -> dict[str, Any]:
        name = binary.hash(versions)
        known = cache.get(name)
        if known is not None and known.is_signed([signer.public]):
            return {"hash": name, "built": known.record.model_dump(), "new": False}
        try:
            built = compilers[binary.template.toolchain.name].compile(binary).signed(signer)
            cache.put(built)
        except BuildFailed as error:
            return {"hash": name, "failed": str(error)}
        except OSError as error:
            return {"hash": name, "failed": f"{binary} could not be kept in {folder}: {error}"}
        return {"hash": name, "built": built.record.model_dump(), "new": True}

    with ThreadPoolExecutor(slots) as pool:
        for done in as_completed(pool.submit(build, binary) for binary in binaries):
            _say(done.result())
    definitions.clear()  # known until here


def _compilers(binaries: Iterable[Binary], versions: Versions) -> dict[str, Compiler]:
    """A compiler that works for each toolchain of the binaries, by its name. Raises `CompilerMissing` and `WrongCompiler`."""
    toolchains = {binary.template.toolchain for binary in binaries}
    found = {toolchain.name: compiler_of(toolchain, versions) for toolchain in toolchains}
    for compiler in found.values():
        compiler.prove()
    return found


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

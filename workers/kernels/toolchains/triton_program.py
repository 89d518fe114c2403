"""Compiles one binary with Triton, without a GPU. `workers.kernels.toolchains.triton` runs it in a folder of its own.

    python -P triton_program.py SOURCE COMPUTE_CAPABILITY < definitions.json

It writes gemm.cubin and facts.json, and prints what ptxas prints. It imports Triton and the source alone. If the kernel itself cannot
be compiled, it ends with status 2 and the error as its last line.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

DOES_NOT_COMPILE = 2
WARP = 32

_ENTRY = re.compile(r"\.entry \w+\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param \.[a-z]+(\d+)")


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source, capability = sys.argv[1], int(sys.argv[2])
    module = loaded(source)
    try:
        signature, constants, multiples, options = module.specialisation(json.load(sys.stdin))
        names = module.gemm.arg_names
        compiled = triton.compile(
            ASTSource(
                fn=module.gemm,
                signature={name: signature.get(name, "constexpr") for name in names},
                constexprs=constants,
                attrs={(names.index(name),): [["tt.divisibility", 16]] for name in multiples},
            ),
            target=GPUTarget("cuda", capability, WARP),
            options=options,
        )
    except (OSError, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        print(f"{type(error).__name__}: {': '.join(lines[-1:])}")  # noqa: T201
        sys.exit(DOES_NOT_COMPILE)
    metadata = compiled.metadata
    facts = {
        "shared_bytes": metadata.shared,
        "threads": metadata.num_warps * WARP,
        "params_bytes": params_bytes(compiled.asm["ptx"]),
        "scratch_bytes": sum(getattr(metadata, f"{kind}_scratch_size", 0) or 0 for kind in ("global", "profile")),
    }
    Path("gemm.cubin").write_bytes(compiled.asm["cubin"])
    Path("facts.json").write_text(json.dumps(facts))


def loaded(path: str) -> Any:
    """The source as a module."""
    spec = importlib.util.spec_from_file_location("gemm_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def params_bytes(ptx: str) -> int:
    """Bytes of the parameters of the kernel, each at a multiple of its size."""
    found = _ENTRY.search(ptx)
    assert found is not None
    total = 0
    for bits in _PARAMETER.findall(found[1]):
        size = int(bits) // 8
        total = -(-total // size) * size + size
    return total


if __name__ == "__main__":
    main()

"""Compiles one binary with Triton, without a GPU. `workers.kernels.toolchains.triton` runs it in a folder of its own.

    python -P triton_program.py SOURCE COMPUTE_CAPABILITY < given.json

What is given has `template`, the definitions of a binary of the farm's template, or `own`, what `farm.kernels.own_triton.compilation`
makes for an own kernel. For an own kernel, the process gives up the network and gets limits before it reads the source.

It writes gemm.cubin and facts.json, and prints what ptxas prints. It imports Triton and the source alone. If the kernel itself cannot
be compiled, it ends with status 2 and the error as its last line.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import re
import resource
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

DOES_NOT_COMPILE = 2
WARP = 32

LIMITS = {
    resource.RLIMIT_CPU: 600,  # seconds
    resource.RLIMIT_AS: 2**33,
    resource.RLIMIT_FSIZE: 2**28,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_CORE: 0,
}
"""Of a process that reads an own kernel, and each of its children. The example compiles with half of the memory."""

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET of sched.h."""

_ENTRY = re.compile(r"\.entry \w+\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param \.[a-z]+(\d+)")


def main() -> None:
    source, capability = sys.argv[1], int(sys.argv[2])
    given = json.load(sys.stdin)
    own = given.get("own")
    if own is not None:
        confine()

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    try:
        if own is not None:
            check_public(own["named"])
            refuse_launches()
        module = loaded(source)
        if own is None:
            kernel = module.gemm
            signature, constants, multiples, options = module.specialisation(given["template"])
        else:
            check_read(module, Path(source).read_text(encoding="utf-8"))
            kernel = getattr(module, own["entry"])
            signature, constants, multiples, options = (
                own[key] for key in ("signature", "constants", "multiples", "options")
            )
            left_out = {name: value for name, value in defaults(kernel).items() if name not in signature}
            constants = {**left_out, **constants}
        names = kernel.arg_names
        compiled = triton.compile(
            ASTSource(
                fn=kernel,
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
        print(described(error, Path(source).read_text(encoding="utf-8")))  # noqa: T201
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


def confine() -> None:
    """Gives up the network, where the system lets a process do so, and sets limits."""
    user, group = os.getuid(), os.getgid()
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER | _NEW_NETWORK) == 0:
            # Without these, the process could not make files.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    for limit, most in LIMITS.items():
        _, allowed = resource.getrlimit(limit)
        bound = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(limit, (bound, bound))


def check_public(names: list[str]) -> None:
    """Raises `AttributeError` for a name that is not public in Triton's language: it could lead to more than that."""
    for name in names:
        where, _, attribute = name.rpartition(".")
        module = importlib.import_module(where)
        value = getattr(module, attribute, None)
        listed = getattr(module, "__all__", None)
        public = (
            attribute in listed
            if listed is not None
            else str(getattr(value, "__module__", "")).startswith("triton.language")
        )
        if value is None or isinstance(value, ModuleType) or not (public or where == "triton"):
            raise AttributeError(f"{where} has no public {attribute}")


def refuse_launches() -> None:
    """Makes `kernel[grid](…)` an error: inside of a kernel, it would launch another one while this one is compiled."""
    from triton.runtime.jit import JITFunction

    def run(*_: Any, **__: Any) -> None:
        raise TypeError("a kernel cannot launch another one")

    JITFunction.run = run


def check_read(module: ModuleType, text: str) -> None:
    """Raises `ValueError` if Triton reads other code than the functions of the text, which were checked.

    Triton does not take functions from Python, but searches the text for them.
    """
    for node in ast.parse(textwrap.dedent(text)).body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            (read,) = getattr(module, node.name).parse().body
            if ast.dump(read) != ast.dump(node):
                raise ValueError(f"Triton reads {node.name} as other code than Python")


def defaults(kernel: Any) -> dict[str, Any]:
    """The default values of a kernel's parameters."""
    parameters = inspect.signature(kernel.fn).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


def described(error: BaseException, text: str) -> str:
    """The first error with its line, which Triton counts from the function that it is in."""
    line = None
    while True:
        code, inner = getattr(error, "src", None), getattr(getattr(error, "node", None), "lineno", None)
        if isinstance(code, str) and inner is not None and (at := text.find(code.rstrip())) >= 0:
            line = text.count("\n", 0, at) + inner
        if error.__cause__ is None:
            break
        error = error.__cause__
    # Without the lines of the source that Triton shows.
    message = (error.error_message or "") if hasattr(error, "error_message") else str(error)
    lines = [part.strip() for part in message.splitlines() if part.strip()]
    if line is not None:
        return f"line {line}: {lines[-1] if lines else type(error).__name__}"
    return f"{type(error).__name__}: {': '.join(lines[-1:])}"


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

"""A Triton whose compiler is a script, for tests of everything around it."""

from __future__ import annotations

import os
from pathlib import Path

PTXAS = """\
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    96 bytes stack frame, 88 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""

_TRITON = '''\
"""What gemm_triton.py and triton_program.py use of Triton."""
import ast, inspect
from types import SimpleNamespace


def jit(function):
    source = inspect.getsource(function)
    parse = lambda: ast.parse(source[source.index("def ") :])
    return SimpleNamespace(fn=function, arg_names=list(inspect.signature(function).parameters), parse=parse)


def compile(source, target, options):
    from pathlib import Path
    import os, sys
    folder = Path({folder!r})
    text = " ".join(f"-D{{name}}={{value}}" for name, value in sorted(source.constexprs.items()))
    with (folder / "compiled").open("a") as log:
        log.write(f"{{target.arch}} {{text}}\\n")
    (folder / "environment").write_text("\\n".join(f"{{name}}={{value}}" for name, value in os.environ.items()))
    says = folder / "says"
    if says.exists():
        exec(says.read_text())
    print({ptxas!r})
    own = "".join(f".param .{{'u64 .ptr' if kind[0] == '*' else 'u32'}} x,\\n" for kind in source.signature.values() if kind != "constexpr")
    ptx = f".visible .entry gemm(\\n{{own}}.param .u64 .ptr x,\\n.param .u64 .ptr x)"
    metadata = SimpleNamespace(shared=98304, num_warps=options["num_warps"], global_scratch_size=int((folder / "scratch").exists()))
    return SimpleNamespace(metadata=metadata, asm={{"ptx": ptx, "cubin": text.encode()}})
'''

_LANGUAGE = """\
class Kind:
    def __init__(self, name):
        self.name = name
    def __str__(self):
        return self.name
    def __call__(self, value):  # constexpr
        return value
float32, float16, int32, constexpr = Kind("f32"), Kind("f16"), Kind("i32"), Kind("constexpr")
program_id = arange = load = store = Kind("function")
core = __import__("os")
__all__ = ["float32", "float16", "int32", "constexpr", "program_id", "arange", "load", "store"]
"""

_COMPILER = """\
from types import SimpleNamespace
ASTSource = SimpleNamespace
"""

_TARGET = """\
from types import SimpleNamespace
GPUTarget = lambda backend, arch, warp_size: SimpleNamespace(arch=arch)
"""


class TritonToolkit:
    """Triton in a folder, found before all others by a process with the variables."""

    def __init__(self, folder: Path, *, version: str = "3.9.0") -> None:
        self._folder = folder
        files = {
            "triton/__init__.py": _TRITON.format(folder=str(folder), ptxas=PTXAS),
            "triton/language.py": _LANGUAGE,
            "triton/compiler.py": _COMPILER,
            "triton/runtime/__init__.py": "",
            "triton/runtime/jit.py": "class JITFunction: pass\n",
            "triton/backends/__init__.py": "",
            "triton/backends/compiler.py": _TARGET,
            f"triton-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n",
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    @property
    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(self._folder), os.environ.get("PYTHONPATH"))))}

    def compiled(self) -> list[str]:
        """The architecture and the constants of each compilation that began."""
        log = self._folder / "compiled"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self) -> dict[str, str]:
        """The environment of the last compilation."""
        lines = (self._folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def says(self, code: str) -> None:
        """What the compiler runs before it succeeds."""
        (self._folder / "says").write_text(code)

    def needs_scratch(self) -> None:
        (self._folder / "scratch").touch()

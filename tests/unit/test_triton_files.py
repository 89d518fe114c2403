"""What of a Python file with Triton kernels may reach a builder: nothing that could run there."""

from __future__ import annotations

import pytest

from farm.kernels.triton_files import NotAllowed, read

FILE = '''\
"""A kernel with what launches it."""
import os

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

WIDTH = tl.constexpr(4)
HOME = os.environ["HOME"]


@triton.autotune(configs=[triton.Config({"BM": 64})], key=["m"])
@triton.jit(do_not_specialize=["m"])
def kernel(a, d, m, BM: tl.constexpr, SCALE: tl.constexpr = 2):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    x, _ = tl.load(a + rows, mask=rows < m).to(tl.float32), m
    tl.store(d + rows, scaled(x, SCALE).to(d.dtype.element_ty), mask=rows < m)


@triton.jit
def scaled(x, factor):
    return libdevice.tanh(tl.math.exp(x)) * factor * triton.cdiv(WIDTH, 2)


def launch(a):
    os.system("true")
    kernel[(1,)](a)


launch(torch.zeros(3))
'''

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(a):\n    "


def test_a_file_is_cut_down_to_its_kernels_and_keeps_its_lines() -> None:
    found = read(FILE)
    kept = {number: line for number, line in enumerate(found.text.split("\n"), 1) if line}
    assert all(FILE.split("\n")[number - 1] == line for number, line in kept.items() if line != "@triton.jit")
    assert not any(word in found.text for word in ("os", "torch", "autotune", "launch"))
    assert [(one.name, one.constant, one.optional) for one in found.functions["kernel"]] == [
        ("a", False, False), ("d", False, False), ("m", False, False), ("BM", True, False), ("SCALE", True, True),
    ]  # fmt: skip
    assert list(found.functions) == ["kernel", "scaled"]
    assert {
        "triton.language.load",
        "triton.language.math.exp",
        "triton.language.extra.libdevice.tanh",
        "triton.cdiv",
    } <= {*found.named}
    assert read(found.text).text == found.text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("tl.core.os.system('true')", "the attribute system is not allowed"),
        ("tl.math.core.os", "the attribute os is not allowed"),
        ("tl.extra.cuda.utils", "the attribute utils is not allowed"),
        ("x = tl\n    x.core", "tl is a module"),
        ("tl = a", "tl is Triton's"),
        ("tl.load = a", "cannot be assigned"),
        ("tl.extern_elementwise('lib', '/etc/passwd')", "the attribute extern_elementwise is not allowed"),
        ("triton.runtime.driver", "the attribute driver is not allowed"),
        ("getattr(a, 'handle')", "the name getattr is not allowed"),
        ("hasattr(a, 'handle')", "the name hasattr is not allowed"),
        ("a.handle", "the attribute handle is not allowed"),
        ("tl.cdiv.fn(1)", "the attribute fn is not allowed"),
        ("kernel.run(1)", "the attribute run is not allowed"),
        ("tl.dot.__globals__", "the attribute __globals__ is not allowed"),
        ("a.to.__func__", "the attribute __func__ is not allowed"),
        ("f'{a.__class__}'", "the attribute __class__ is not allowed"),
        ("'{0.__class__}'.format(a)", "the attribute format is not allowed"),
        ("__builtins__", "the name __builtins__ is not allowed"),
        ("exec('1')", "the name exec is not allowed"),
        ("import os", "Import is not allowed"),
        ("(lambda: a)()", "Lambda is not allowed"),
        ("def inner(): pass", "FunctionDef is not allowed"),
        ("class Inner: pass", "ClassDef is not allowed"),
        ("with tl.anything(): pass", "With is not allowed"),
        ("global a", "Global is not allowed"),
        ("a(**tl.x)", r"\*\* is not allowed"),
        ("(x := a)", "NamedExpr is not allowed"),
        ("[x for x in a]", "ListComp is not allowed"),
        ("triton.jit(a, repr=a)", "the attribute jit is not allowed"),
        ("tl.load(a, _semantic=a)", "the argument _semantic is not allowed"),
    ],
)
def test_a_kernel_that_leads_out_of_triton_is_refused_with_its_line(body: str, why: str) -> None:
    with pytest.raises(NotAllowed, match=rf"line [78]: .*{why}"):
        read(HEAD + body + "\n")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import triton; import os\n", "line 1: 'import os' is not allowed"),
        ("import triton, os\n", "line 1: 'import triton, os' is not allowed"),
        ("import triton.language.core as tl\n", "line 1: .* is not allowed"),
        ("from triton import *\n", "line 1: .* is not allowed"),
        ("from triton.language import core\n", "line 1: .* is not allowed"),
        ("from triton.runtime import driver\n", "line 1: .* is not allowed"),
        ("WIDTH = 1; import os\n", "line 1: 'import os' is not allowed"),
        ("import triton\nx: triton.os.system = 1\n", "line 2: the attribute system"),
        ("import triton\n@triton.jit\ndef triton(a): pass\n", "line 3: triton is Triton's"),
        ("import triton\n@triton.jit\ndef f(triton): pass\n", "line 3: triton is Triton's"),
        ("import triton\n@triton.jit\ndef f(a=open('x')): pass\n", "line 3: a default is a number"),
        ("import triton\n@triton.jit\ndef f(a: open('x')): pass\n", "line 3: a type is a name"),
        ("import triton\n@triton.jit\ndef f(a) -> open('x'): pass\n", "line 3: a type is a name"),
        ("import triton\n@triton.jit\ndef f(*a): pass\n", r"line 3: f takes \* or \*\*"),
        ("import triton\nx: print('x') = 1\n", "line 2: a type is a name"),
        ("import triton\n@triton.jit\ndef f(a=exit): pass\n", "line 3: a default is .* above"),
        ("import triton\n@triton.jit\ndef f(a=exit): pass\nexit = 1\n", "line 3: a default is .* above"),
        ("@exit\ndef f(a): pass\nfrom triton import jit as exit\n", "line 2: f needs an import of Triton above"),
        ("from triton import jit\n@jit\ndef f(a): jit(a)\n", "line 3: jit is a decorator"),
        ("import triton as __builtins__\n", "line 1: the name __builtins__"),
        ("import triton\n@triton.jit\ndef f(a): pass\n@triton.jit\ndef f(a): a\n", "line 5: f is there twice"),
        ('X = """\n# coding: utf-7\n"""\n', "line 2: an encoding is not allowed"),
        ("import triton\n@triton.jit\ndef f(a):\n    return " + "(" * 300 + ")" * 300, "line 4: "),
        ("import triton\n@triton.jit\ndef f(a):\n    return " + "-" * 5000 + "1", "cannot be read|nested too deeply"),
        ("def (", "line 1: invalid syntax"),
        ("\ud800", "cannot be read"),
    ],
)
def test_what_python_would_run_is_refused(code: str, why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        read(code)


@pytest.mark.parametrize("begin", ["def f \\\n(", "def \\\nf(", "\fdef f(", "def e\u0301("])
def test_triton_finds_no_other_function_in_a_string(begin: str) -> None:
    """Triton takes the first line that looks like the begin of a function."""
    hidden = "def f(a):\n    triton.runtime.driver.os.system('id')\n    '''\n"
    code = f'import triton\n@triton.jit\n{begin}a):\n    """\n{hidden}    """\n    # \'\'\'\n    pass\n'
    with pytest.raises(NotAllowed, match="line 3: a kernel has a name in ASCII"):
        read(code)


def test_only_the_decorator_and_its_kernel_are_run() -> None:
    code = "import triton\n@print\n@triton.jit\n# coding: utf-7\ndef f(a): pass\nX = open('x')\nclass Y: pass\nfor x in 1, 2: print(x)\n"
    assert read(code).text.split("\n") == ["import triton", "", "@triton.jit", "", "def f(a): pass", ""]
    assert read(code.replace("\n", "\r\n")).text == read(code.replace("\n", "\r")).text == read(code).text

"""Own kernels in Triton: what of a Python file may reach a builder, and what its kernels take. Nothing of a file is run here.

Importing a Python module runs its statements, and a builder has the key that signs kernels. So a file is cut down to imports of
Triton, constants and functions with the decorator `triton.jit`, and what remains is checked against lists of what is allowed: kinds of
syntax, names, and attributes. Python runs nothing of it but the definitions of these functions. Triton reads the source of a function and
calls what its names and attributes lead to, which the lists confine to Triton's own language.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

LANGUAGE, LIBDEVICE = "triton.language", "triton.language.extra.libdevice"
_MODULES = ("triton", LANGUAGE)
_LIBDEVICES = (LIBDEVICE, "triton.language.extra.cuda.libdevice")

_OF_TRITON = ("cdiv", "next_power_of_2")
"""Functions of the module `triton` itself that a kernel may call."""

_NOT_OF_LANGUAGE = ("core", "extern_elementwise", "extra", "math", "random", "semantic", "standard", "target_info")
"""Submodules, and what takes the path of a file. The builder's Triton says what else is not public."""

_REACHING = (
    "breakpoint", "classmethod", "compile", "delattr", "dir", "eval", "exec", "format", "getattr", "globals", "hasattr", "help", "locals",
    "memoryview", "object", "open", "property", "setattr", "staticmethod", "super", "type", "vars",
)  # fmt: skip
"""Python's own functions that reach what no attribute may name."""

_OF_VALUES = frozenset(
    """
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg
    atomic_xor block_shape broadcast_to cast ceil cos cumprod cumsum dtype element_ty erf exp exp2 expand_dims fdiv flip floor gather
    histogram int_bitwidth is_block is_bool is_bf16 is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int is_int16 is_int32 is_int64 is_int8
    is_ptr itemsize load log log2 logical_and logical_or max min numel permute primitive_bitwidth ravel reduce reshape rsqrt scalar
    scatter shape sigmoid sin softmax sort split sqrt sqrt_rn store strides sum to trans type value view xor_sum
    """.split()  # noqa: SIM905 - a list of 90 lines
)
"""Attributes of tensors, types and constants."""

_SYNTAX = (
    ast.AnnAssign, ast.Assert, ast.Assign, ast.Attribute, ast.AugAssign, ast.BinOp, ast.BoolOp, ast.Break, ast.Call, ast.Compare,
    ast.Constant, ast.Continue, ast.Expr, ast.For, ast.FormattedValue, ast.FunctionDef, ast.If, ast.IfExp, ast.Import, ast.ImportFrom,
    ast.JoinedStr, ast.List, ast.Module, ast.Name, ast.Pass, ast.Return, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
    ast.While, ast.alias, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword, ast.operator, ast.unaryop,
)  # fmt: skip

_DEFINITION = r"def[ \t]+{name}[ \t]*\("
"""How a line with a function begins. Triton searches the text of a function for this, and would find it in a string of another one."""

_ENCODING = re.compile(r"[ \t\f]*#.*coding[:=]")
"""A line that makes Python read a file as other text than its UTF-8 (PEP 263)."""


class NotAllowed(ValueError):
    """What of a file must not reach a builder, with its line."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A parameter of a function."""

    name: str
    constant: bool  # tl.constexpr
    optional: bool


@dataclass(frozen=True, slots=True)
class TritonFile:
    """What is left of a file, and its functions with the decorator `triton.jit`. Lines have the numbers that they have in the file."""

    text: str
    functions: Mapping[str, tuple[Taken, ...]]
    # What it names of Triton, as in triton.language.dot: a builder checks that these are public.
    named: tuple[str, ...]


@lru_cache(maxsize=32)
def read(code: str) -> TritonFile:
    """Raises `NotAllowed`."""
    text = code.replace("\r\n", "\n").replace("\r", "\n")
    text = _cut_down(text, _parsed(text))
    for number, line in enumerate(text.split("\n")[:2], 1):
        if _ENCODING.match(line):
            raise NotAllowed(f"line {number}: an encoding is not allowed; write the file in UTF-8 and remove it")
    tree = _parsed(text)
    modules = _modules_in(tree)
    try:
        named = tuple(dict.fromkeys(_Check(modules).names_in(tree, text.split("\n"))))
    except RecursionError:
        raise NotAllowed("it is nested too deeply") from None
    functions = {node.name: tuple(_taken(node, modules)) for node in tree.body if isinstance(node, ast.FunctionDef)}
    return TritonFile(text, functions, named)


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise NotAllowed(f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotAllowed(f"it cannot be read: {error}") from None


def _refuse(node: ast.AST, why: str) -> NotAllowed:
    return NotAllowed(f"line {getattr(node, 'lineno', 1)}: {why}")


# --- what is kept --------------------------------------------------------------------------------------


def _cut_down(text: str, tree: ast.Module) -> str:
    """The text with every statement emptied but those of kernels, and every decorator but `triton.jit`."""
    lines, modules = text.split("\n"), _modules_in(tree)
    kept = dict[int, str]()

    def keep(node: ast.stmt, first: int | None = None) -> None:
        for number in range(first or node.lineno, (node.end_lineno or node.lineno) + 1):
            kept[number] = lines[number - 1]

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found = [one for one in map(_called, node.decorator_list) if _dotted(one, modules) == "triton.jit"]
            if found:
                keep(node)
                kept[found[0].lineno] = f"@{ast.unparse(found[0])}"
        elif _is_import(node) or _is_constant(node, modules):
            keep(node)
    return "\n".join(kept.get(number, "") for number in range(1, max(kept, default=0) + 1)) + "\n"


def _called(decorator: ast.expr) -> ast.expr:
    """`triton.jit` of `@triton.jit(…)`, whose options are not Triton's ahead of time."""
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _is_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "triton" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("triton", "__future__")


def _is_constant(node: ast.stmt, modules: Mapping[str, str]) -> bool:
    """Whether it is a name with a number or text, which may be inside of `tl.constexpr`."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return False
    if isinstance(value, ast.Call) and _dotted(value.func, modules) == f"{LANGUAGE}.constexpr" and not value.keywords:
        (value,) = value.args if len(value.args) == 1 else (value,)
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and _is_literal(value)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Constant)


# --- names ---------------------------------------------------------------------------------------------


def _modules_in(tree: ast.Module) -> dict[str, str]:
    """What the names that imports bind stand for. Imports of anything else are left out, and refused later if they are kept."""
    found = dict[str, str]()
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _MODULES:
                    found[alias.asname or "triton"] = alias.name if alias.asname else "triton"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if (whole := f"{node.module}.{alias.name}") in _importable():
                    found[alias.asname or alias.name] = LIBDEVICE if whole in _LIBDEVICES else whole
    return found


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """The names that an import, a constant or a function gives a value."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    else:
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _importable() -> tuple[str, ...]:
    return (LANGUAGE, "triton.jit", *(f"triton.{name}" for name in _OF_TRITON), *_LIBDEVICES)


def _dotted(node: ast.expr, modules: Mapping[str, str]) -> str | None:
    """The whole name of what comes from a module: `triton.language.dot` for `tl.dot`. None for anything else."""
    path = list[str]()
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in modules:
        return None
    return ".".join((modules[node.id], *path))


def _taken(node: ast.FunctionDef, modules: Mapping[str, str]) -> Iterator[Taken]:
    arguments = (*node.args.posonlyargs, *node.args.args)
    first_optional = len(arguments) - len(node.args.defaults)
    for number, one in enumerate(arguments):
        said = one.annotation
        text = said.value if isinstance(said, ast.Constant) else None if said is None else _dotted(said, modules)
        constant = isinstance(text, str) and text.rpartition(".")[2] == "constexpr"
        yield Taken(one.arg, constant, optional=number >= first_optional)


# --- the check -----------------------------------------------------------------------------------------


class _Check:
    """Checks a file that was cut down. Raises `NotAllowed`."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._bound = set[str]()  # by the statements before

    def names_in(self, tree: ast.Module, lines: Sequence[str]) -> Iterator[str]:
        """The whole names of what it uses of Triton's language. `lines` are those of the file."""
        for statement in tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._check_import(statement)
            elif isinstance(statement, ast.FunctionDef):
                self._check_signature(statement, lines[statement.lineno - 1])
                for one in self._evaluated(statement):
                    yield from self._expression(one)
                for part in statement.body:
                    yield from self._body(part)
            elif _is_constant(statement, self._modules):
                if isinstance(statement, ast.AnnAssign):
                    self._check_type(statement.annotation)
                yield from self._body(statement)
            else:
                raise _refuse(statement, "only imports, constants and functions with triton.jit are allowed")
            self._bound |= {*_bound_by(statement)}

    def _check_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            allowed = all(alias.name in _MODULES for alias in node.names)
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            allowed = not node.level and all(name in (*_importable(), "__future__.annotations") for name in names)
        if not allowed:
            why = "write import triton, import triton.language as tl, or from triton.language.extra import libdevice"
            raise _refuse(node, f"{ast.unparse(node)!r} is not allowed; {why}")
        for alias in node.names:
            self._check_name(node, alias.asname or alias.name)

    def _check_signature(self, node: ast.FunctionDef, line: str) -> None:
        args = node.args
        decorators = [_dotted(one, self._modules) for one in node.decorator_list]
        if decorators != ["triton.jit"] or getattr(node, "type_params", None):
            raise _refuse(node, f"{node.name} needs triton.jit as its decorator")
        if not (node.name.isascii() and re.match(_DEFINITION.format(name=node.name), line)):
            raise _refuse(
                node, f"a kernel has a name in ASCII, with def and ( on the same line, as in def {node.name}("
            )
        if args.vararg or args.kwarg or args.kwonlyargs:
            raise _refuse(node, f"{node.name} takes * or **; name its parameters")
        for default in args.defaults:
            if not (_is_literal(default) or (isinstance(default, ast.Name) and default.id in self._bound)):
                raise _refuse(default, "a default is a number, text or the name of a constant above")
        for name in (node.name, *(one.arg for one in (*args.posonlyargs, *args.args))):
            self._check_bound(node, name)
        if node.name in self._bound:
            raise _refuse(node, f"{node.name} is there twice; rename one of them")
        # Python would find functions of its own by other names.
        (decorator,) = node.decorator_list
        if not {one.id for one in ast.walk(decorator) if isinstance(one, ast.Name)} <= self._bound:
            raise _refuse(node, f"{node.name} needs an import of Triton above it")

    def _evaluated(self, node: ast.FunctionDef) -> Iterator[ast.expr]:
        """What Python evaluates of a definition."""
        for said in (*(one.annotation for one in (*node.args.posonlyargs, *node.args.args)), node.returns):
            if said is not None:
                self._check_type(said)
                yield said
        yield from node.args.defaults

    def _check_type(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.Attribute, ast.Name, ast.Constant)):
            raise _refuse(node, "a type is a name, as in tl.constexpr")

    def _check_bound(self, node: ast.AST, name: str) -> None:
        if name in self._modules and not isinstance(node, ast.alias):
            raise _refuse(node, f"{name} is Triton's; use another name")
        self._check_name(node, name)

    def _check_name(self, node: ast.AST, name: str) -> None:
        if name.startswith("__") or name in _REACHING:
            raise _refuse(node, f"the name {name} is not allowed in a kernel")

    def _body(self, node: ast.AST) -> Iterator[str]:
        """A statement or expression of a kernel, with all that is in it."""
        if isinstance(node, (ast.FunctionDef, ast.Import, ast.ImportFrom)) or not isinstance(node, _SYNTAX):
            raise _refuse(node, f"{type(node).__name__} is not allowed in a kernel")
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield from self._expression(node)
            return
        if isinstance(node, ast.keyword) and node.arg is None:
            raise _refuse(node.value, "** is not allowed in a kernel")
        if isinstance(node, ast.keyword) and str(node.arg).startswith("_"):
            raise _refuse(node.value, f"the argument {node.arg} is not allowed in a kernel")
        for part in ast.iter_child_nodes(node):
            yield from self._body(part)

    def _expression(self, node: ast.expr) -> Iterator[str]:
        """A name or attribute, or what has some in it."""
        if isinstance(node, ast.Name):
            yield from self._named(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        else:
            yield from self._body(node)

    def _named(self, node: ast.Name) -> Iterator[str]:
        whole = self._modules.get(node.id)
        if whole is None:
            self._check_name(node, node.id)
        elif not isinstance(node.ctx, ast.Load):
            self._check_bound(node, node.id)
        elif whole in (*_MODULES, LIBDEVICE):
            raise _refuse(node, f"{node.id} is a module; name what you use of it, as in {node.id}.dot")
        elif whole == "triton.jit":
            raise _refuse(node, f"{node.id} is a decorator, and not for the body of a kernel")
        else:
            return
        yield from ()

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        if not isinstance(node.ctx, ast.Load):
            raise _refuse(node, "attributes cannot be assigned in a kernel")
        whole = _dotted(node, self._modules)
        if whole is not None and (public := self._public(whole)) is not None:
            yield public
            return
        if node.attr not in _OF_VALUES:
            raise _refuse(node, f"the attribute {node.attr} is not allowed in a kernel")
        yield from self._expression(node.value)

    def _public(self, whole: str) -> str | None:
        """The name, if it is of a module itself and may be used. None where it is not allowed, or is of what lies in a module."""
        if whole in (f"triton.{name}" for name in _OF_TRITON):
            return whole
        module, _, name = whole.rpartition(".")
        module = LIBDEVICE if module in _LIBDEVICES else module
        if module not in (LANGUAGE, f"{LANGUAGE}.math", LIBDEVICE) or name.startswith("_"):
            return None
        return None if module == LANGUAGE and name in _NOT_OF_LANGUAGE else f"{module}.{name}"

"""Constraints: small expressions over a configuration, checked when read and compiled once.

The grammar is a part of Python's: comparisons, `and or not`, `+ - * / // % **`, `in`, min, max, abs, numbers and
words in quotes. Nothing else passes, so a campaign file cannot run code, and numbers are bounded, so it cannot hang.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from farm.gemm import ElementType, Layout
from farm.kernels import FAMILIES

PROBLEM_NUMBERS = ("m", "n", "k", "alpha", "beta", "flops", "bytes", "intensity")
PROBLEM_WORDS: dict[str, tuple[str, ...]] = {
    "layout": tuple(Layout),
    "ab": tuple(ElementType),
    "cd": tuple(ElementType),
    "acc": tuple(ElementType),
}
PROBLEM_NAMES = (*PROBLEM_NUMBERS, *PROBLEM_WORDS)
"""What a constraint may name of a problem; besides them `family` and the family's parameters."""

_LONGEST = 1000
_MOST_BITS = 4096
"""No number in a constraint grows beyond this many bits; 2·m·n·k takes 94."""

_Kind = Literal["number", "word", "truth"]
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_FUNCTIONS = {"min": min, "max": max, "abs": abs}


class Refused(ValueError):
    """What is wrong with an expression, and what would be right."""


@cache
def parameter_names() -> frozenset[str]:
    """Every parameter of every kernel family."""
    return frozenset(p.name for family in FAMILIES.values() for p in family.parameters)


def _words_of(name: str) -> tuple[str, ...] | None:
    return tuple(FAMILIES) if name == "family" else PROBLEM_WORDS.get(name)


@dataclass(frozen=True, slots=True)
class Constraint:
    """One checked expression. Two that differ in spaces or superfluous brackets are equal."""

    text: str
    names: frozenset[str]
    # Line of the campaign file, for messages about a configuration for which it cannot be computed.
    line: int = field(default=0, compare=False)

    @property
    def parameters(self) -> frozenset[str]:
        """The kernel parameters that it names: it applies only to families that have them all."""
        return self.names & parameter_names()

    @property
    def of_problem(self) -> bool:
        """Whether the problem alone decides it."""
        return not self.parameters and "family" not in self.names

    def applies_to(self, family: str) -> bool:
        return self.parameters <= {p.name for p in FAMILIES[family].parameters}


def parse(written: object, *, line: int = 0) -> Constraint:
    """Checks a constraint.

    Raises:
        Refused: with a text that says what is wrong and what would be right.
    """
    if not isinstance(written, str):
        raise Refused("a constraint is an expression such as m * n * k <= 2**33; put it in quotes if YAML splits it")
    tree = syntax_tree(written)
    try:
        kind = _Checker().kind_of(tree.body)
        text = ast.unparse(tree)
        names = frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) - set(_FUNCTIONS)
        _BoundedPowers().visit(tree)
    except ArithmeticError as error:
        raise Refused(f"{written!r} cannot be computed: {error}") from None
    except (RecursionError, MemoryError):
        raise Refused(_TOO_DEEP) from None
    if kind != "truth":
        raise Refused(f"{written!r} is a {kind}, not something that holds or not; compare it, as in m % 128 == 0")
    return Constraint(text, names, line)


_TOO_DEEP = "the expression is nested too deeply; split it into several"


def syntax_tree(written: str) -> ast.Expression:
    """An expression as Python reads it, of which nothing is checked but that it is one.

    Raises:
        Refused: with a text that says what is wrong, where, and what would be right.
    """
    if len(written) > _LONGEST:
        raise Refused(f"the expression is longer than {_LONGEST} characters; split it into several")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(written.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, or a number of thousands of digits
        hint = "; write == to compare" if _has_single_equals(written) else ""
        hint = "; write and, or, not" if any(s in written for s in ("&&", "||")) else hint
        column = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise Refused(f"{written!r} is not an expression: {what}{column}{hint}") from None
    except (RecursionError, MemoryError):
        raise Refused(_TOO_DEEP) from None


def _has_single_equals(text: str) -> bool:
    bare = text
    for operator in ("==", "<=", ">=", "!="):
        bare = bare.replace(operator, "")
    return "=" in bare


class _Checker:
    """Finds the kind of an expression's value, and refuses what is not in the grammar."""

    def kind_of(self, node: ast.expr) -> _Kind:
        method: Callable[[Any], _Kind] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Refused(
                f"{ast.unparse(node)!r} is not allowed here; a constraint has comparisons, and/or/not, arithmetic, "
                "in, min, max and abs"
            )
        return method(node)

    def _constant(self, node: ast.Constant) -> _Kind:
        if isinstance(node.value, str):
            return "word"
        if type(node.value) is int and node.value.bit_length() <= 64:
            return "number"
        if type(node.value) is float and abs(node.value) < float("inf"):
            return "number"
        raise Refused(f"{str(node.value)[:40]} is not allowed here; write a number or a word in quotes")

    def _name(self, node: ast.Name) -> _Kind:
        if _words_of(node.id) is not None:
            return "word"
        if node.id in PROBLEM_NUMBERS or node.id in parameter_names():
            return "number"
        known = [*PROBLEM_NAMES, "family", *sorted(parameter_names())]
        words = {*Layout, *ElementType, *FAMILIES}
        if node.id in words:
            raise Refused(f"{node.id} stands without quotes; write '{node.id}'")
        if node.id in ("type", "types", "dtype"):
            raise Refused(f"there is no name {node.id}; the types of A and B are ab, of C and D cd, and acc")
        close = difflib.get_close_matches(node.id, known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; the names are {', '.join(known)}"
        raise Refused(f"there is no name {node.id}{hint}")

    def _boolop(self, node: ast.BoolOp) -> _Kind:
        for value in node.values:
            self._must_be("truth", value)
        return "truth"

    def _unaryop(self, node: ast.UnaryOp) -> _Kind:
        kind: _Kind = "truth" if isinstance(node.op, ast.Not) else "number"
        if isinstance(node.op, ast.Invert):
            raise Refused("~ is not allowed here; write not")
        return self._must_be(kind, node.operand)

    def _binop(self, node: ast.BinOp) -> _Kind:
        if not isinstance(node.op, _OPERATORS):
            raise Refused(f"{ast.unparse(node)!r}: the operators are + - * / // % **; write and, or for & and |")
        self._must_be("number", node.left)
        return self._must_be("number", node.right)

    def _compare(self, node: ast.Compare) -> _Kind:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if not isinstance(operator, _COMPARISONS):
                raise Refused("is is not allowed here; write ==")
            if isinstance(operator, (ast.In, ast.NotIn)):
                if not isinstance(right, (ast.Tuple, ast.List, ast.Set)):
                    raise Refused(f"{ast.unparse(right)!r} is not a list; write in (128, 256)")
                for item in right.elts:
                    self._same_kind(left, item)
            else:
                kind = self._same_kind(left, right)
                if kind != "number" and not isinstance(operator, (ast.Eq, ast.NotEq)):
                    raise Refused(f"{ast.unparse(node)!r} orders words; compare them with ==, != or in")
            left = right
        return "truth"

    def _call(self, node: ast.Call) -> _Kind:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _FUNCTIONS or node.keywords:
            raise Refused(f"{name}(…) is not allowed here; the functions are min, max and abs")
        if (name == "abs") != (len(node.args) == 1) or not node.args:
            raise Refused(f"{name} takes {'one number' if name == 'abs' else 'two numbers or more'}")
        for argument in node.args:
            self._must_be("number", argument)
        return "number"

    def _must_be(self, kind: _Kind, node: ast.expr) -> _Kind:
        found = self.kind_of(node)
        if found != kind:
            wanted = {"truth": "a comparison", "number": "a number", "word": "a word"}[kind]
            raise Refused(f"{ast.unparse(node)!r} is a {found} where {wanted} is needed")
        return kind

    def _same_kind(self, left: ast.expr, right: ast.expr) -> _Kind:
        kinds = self.kind_of(left), self.kind_of(right)
        if kinds[0] != kinds[1]:
            raise Refused(
                f"{ast.unparse(left)!r} is a {kinds[0]} and {ast.unparse(right)!r} a {kinds[1]}; they never compare"
            )
        for name, constant in ((left, right), (right, left)):
            if isinstance(name, ast.Name) and isinstance(constant, ast.Constant):
                words = _words_of(name.id)
                if words is not None and constant.value not in words:
                    raise Refused(f"{name.id} is never {constant.value!r}; it is one of {', '.join(words)}")
        return kinds[0]


def power(base: float, exponent: float) -> Any:
    """base**exponent. Raises `ArithmeticError` for one that is huge, not real, or a division by zero."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise OverflowError(f"{base}**{exponent} is too large")
    result = base**exponent
    if isinstance(result, complex):  # what Python makes of (-8)**0.5
        raise ArithmeticError(f"{base}**{exponent} is not a real number")  # noqa: TRY004
    return result


class _BoundedPowers(ast.NodeTransformer):
    """Replaces `**` by a power that refuses huge results; powers of constants are computed here, once."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Pow):
            if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
                return ast.Constant(power(node.left.value, node.right.value))  # type: ignore[arg-type]
            return ast.Call(ast.Name("_power", ast.Load()), [node.left, node.right], [])
        return node


def compile_all(constraints: Sequence[Constraint], arguments: tuple[str, ...]) -> Callable[..., bool]:
    """One function of `arguments`, in that order, that says whether all of the constraints hold.

    It raises `ArithmeticError` where one cannot be computed, as in a division by zero.
    """
    if not constraints:
        return lambda *_: True
    tests = [ast.parse(c.text, mode="eval").body for c in constraints]
    body = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
    parameters = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in arguments], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    tree = ast.Expression(ast.Lambda(parameters, _BoundedPowers().visit(body)))
    code = compile(ast.fix_missing_locations(tree), "<constraints>", "eval")
    # Only names and calls that `parse` let through are in the tree.
    function: Callable[..., bool] = eval(code, {"__builtins__": {}, "_power": power, **_FUNCTIONS})
    return function

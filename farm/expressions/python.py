"""Expressions as Python functions, as fast as the same written by hand: campaigns call them for every configuration."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

from farm.expressions.tree import OPERATORS, Constant, Expression, Name, Node, Operation

_MAX_BITS = 4096
"""No power becomes a larger whole number than of this many bits; 2·m·n·k takes 94."""


def power(base: float, exponent: float) -> Any:
    """base**exponent. Raises `ArithmeticError` for one that is huge, not real, or a division by zero."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise OverflowError(f"{base}**{exponent} is too large")
    result = base**exponent
    if isinstance(result, complex):  # what Python makes of (-8)**0.5
        raise ArithmeticError(f"{base}**{exponent} is not a real number")  # noqa: TRY004
    return result


_FUNCTIONS = {"min": min, "max": max, "abs": abs, "ceil": math.ceil, "**": power}
_SYNTAX: dict[str, Any] = {"part of": ast.In, **{operator: syntax for syntax, operator in OPERATORS.items()}}


def compile_all(conditions: Sequence[Expression], arguments: Sequence[str]) -> Callable[..., bool]:
    """One function of `arguments`, in that order, that says whether all of the conditions hold.

    It raises `ArithmeticError` where one cannot be computed, as in a division by zero.
    """
    if not conditions:
        return lambda *_: True
    tests = [_syntax(condition.root) for condition in conditions]
    holds: Callable[..., bool] = _function(tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests), arguments)
    return holds


def compile_numbers(expressions: Sequence[Expression], arguments: Sequence[str]) -> Callable[..., tuple[float, ...]]:
    """One function of `arguments`, in that order, that computes all of the expressions, which are numbers.

    It raises `ArithmeticError` as that of `compile_all` does.
    """
    return _function(ast.Tuple([_syntax(one.root) for one in expressions], ast.Load()), arguments)


def _function(body: ast.expr, arguments: Sequence[str]) -> Callable[..., Any]:
    tree: Any = ast.parse(f"lambda {', '.join(arguments)}: 0", mode="eval")
    tree.body.body = ast.fix_missing_locations(body)
    function: Callable[..., Any] = eval(compile(tree, "<conditions>", "eval"), {"__builtins__": {}, **_FUNCTIONS})
    return function


def _syntax(node: Node) -> ast.expr:
    if isinstance(node, Constant):
        return ast.Constant(node.value)  # type: ignore[arg-type]
    if isinstance(node, Name):
        return ast.Name(node.name, ast.Load())
    assert isinstance(node, Operation), "parts of objects are only for SQL"
    first, *others = [_syntax(operand) for operand in node.operands]
    if node.operator in _FUNCTIONS:
        return ast.Call(ast.Name(node.operator, ast.Load()), [first, *others], [])
    operator = _SYNTAX[node.operator]()
    if isinstance(operator, ast.boolop):
        return ast.BoolOp(operator, [first, *others])
    if isinstance(operator, ast.unaryop):
        return ast.UnaryOp(operator, first)
    if isinstance(operator, ast.operator):
        return ast.BinOp(first, operator, others[0])
    return ast.Compare(first, [operator], [ast.Tuple(others, ast.Load())] if node.operator == "in" else others)

"""The expressions of an own kernel: launch bounds, constants and requirements, of the problem and the parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.expressions import parser
from farm.expressions.parser import Vocabulary
from farm.expressions.tree import BadExpression, Expression, Kind
from farm.gemm import PROBLEM_WORDS, Problem
from farm.kernels.own_arguments import groups_of

PROBLEM_NUMBERS = ("m", "n", "k", "alpha", "beta", "batch", "groups")
_WORDS = {name: words for name, words in PROBLEM_WORDS.items() if name != "sparsity"}
"""Own kernels compute no sparse products."""

PROBLEM_NAMES = (*PROBLEM_NUMBERS, *_WORDS)


def expression(written: object, parameters: Sequence[str], kind: Kind = "number") -> Expression:
    """A bound, or with `truth` a requirement. Raises `BadExpression`."""
    if not isinstance(written, (str, int, float)):
        raise BadExpression("an expression is text such as ceil(n / BN); put it in quotes if YAML splits it")
    vocabulary = Vocabulary(
        kinds={**dict.fromkeys((*PROBLEM_NUMBERS, *parameters), "number"), **dict.fromkeys(_WORDS, "word")},
        words=_WORDS,
        noun="name",
        listing=f"Names: {', '.join(PROBLEM_NAMES)}. Parameters: {', '.join(parameters) or 'none'}",
        functions=("min", "max", "abs", "ceil"),
        instead={},
    )
    return parser.parse(str(written), vocabulary, kind)


def number_or_condition(written: object, parameters: Sequence[str]) -> Expression:
    """A constant of Triton: a number, or a condition, which is 1 or 0. Raises `BadExpression`."""
    try:
        return expression(written, parameters)
    except BadExpression:
        return expression(written, parameters, "truth")


def values_of(problem: Problem) -> tuple[Any, ...]:
    """The values of `PROBLEM_NAMES`."""
    p, s, t = problem, problem.shape, problem.types
    numbers = (s.m, s.n, s.k, p.alpha, p.beta, p.batch, groups_of(p))
    return (*numbers, p.layout, t.ab, t.cd, t.acc, p.scale, p.fused)

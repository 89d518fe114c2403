"""Constraints: expressions (`farm.expressions`) over a configuration, checked when read and compiled once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from farm.expressions import parser
from farm.expressions.parser import Vocabulary
from farm.expressions.tree import BadExpression, Expression
from farm.gemm import PROBLEM_WORDS
from farm.kernels import FAMILIES

PROBLEM_NUMBERS = ("m", "n", "k", "alpha", "beta", "batch", "flops", "bytes", "intensity", "groups", "active_groups")
PROBLEM_NAMES = (*PROBLEM_NUMBERS, *PROBLEM_WORDS)
"""What a constraint may name of a problem; besides them `family` and the family's parameters."""


@cache
def parameter_names() -> frozenset[str]:
    """Every parameter of every kernel family."""
    return frozenset(p.name for family in FAMILIES.values() for p in family.parameters)


@cache
def vocabulary() -> Vocabulary:
    words = {**PROBLEM_WORDS, "family": tuple(FAMILIES)}
    parameters = sorted(parameter_names())
    return Vocabulary(
        kinds={**dict.fromkeys((*PROBLEM_NUMBERS, *parameters), "number"), **dict.fromkeys(words, "word")},
        words=words,
        noun="name",
        listing=f"Names: {', '.join(PROBLEM_NAMES)}, family. Kernel parameters: {', '.join(parameters)}",
        functions=("min", "max", "abs"),
        instead=dict.fromkeys(("type", "types", "dtype"), "the types of A and B are ab, of C and D cd, and acc"),
    )


@dataclass(frozen=True, slots=True)
class Constraint(Expression):
    """A condition over the names of a problem, the kernel family and its parameters."""

    def __str__(self) -> str:
        return self.text

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


def parse_constraint(written: object) -> Constraint:
    """Checks a constraint. Raises `BadExpression`, which says what is wrong and what to write instead."""
    if not isinstance(written, str):
        why = "a constraint is an expression such as m * n * k <= 2**33; put it in quotes if YAML splits it"
        raise BadExpression(why)
    parsed = parser.parse(written, vocabulary())
    return Constraint(parsed.text, parsed.names, parsed.root)

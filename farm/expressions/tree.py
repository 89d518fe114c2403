"""The tree of a checked expression: every part with its place and the kind of its value (pure)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farm.errors import BadInput

Kind = Literal["number", "word", "truth", "time", "id", "object"]

OPERATORS: Mapping[type[ast.AST], str] = {
    ast.And: "and", ast.Or: "or", ast.Not: "not", ast.USub: "neg", ast.UAdd: "pos",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
}  # fmt: skip
"""How an `Operation` calls them."""

OF_ONE_NUMBER = ("abs", "ceil")
"""Functions of one number. The others take two or more."""

TOO_DEEP = "the expression is nested too deeply; split it into several"


class BadExpression(BadInput):
    """{place}{why}"""

    def __init__(self, why: str, character: int | None = None) -> None:
        super().__init__(why=why, place=f"at character {character}, " if character else "")
        self.character = character


@dataclass(frozen=True, slots=True)
class Node:
    kind: Kind
    character: int


@dataclass(frozen=True, slots=True)
class Constant(Node):
    value: object


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True)
class ObjectPart(Node):
    """A value inside an object, as in `details.registers`. Its kind is that of what it is compared with."""

    name: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation(Node):
    """One of `OPERATORS`, a function, or `part of`: whether a word is in another. `in` has its left side, then the list."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression in normal spelling, the names in it, and its tree. Spaces and superfluous brackets make no difference."""

    text: str
    names: frozenset[str]
    root: Node = field(compare=False, repr=False)

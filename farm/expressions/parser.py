"""From text to a checked tree."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from ast import unparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farm.errors import BadMoment
from farm.expressions import tree
from farm.expressions.python import power
from farm.expressions.tree import BadExpression, Kind, Node, ObjectPart, Operation

_MAX_LENGTH = 1000
_MAX_NODES = 10_000
"""Operations that are checked in one expression: what is compared twice, as in `a < b < c`, is checked twice."""
_SINGLE_EQUALS = re.compile(r"(?<![=<>!])=(?!=)")
_SHOWN: Mapping[Kind, str] = {
    "number": "a number", "word": "a word", "truth": "a comparison", "time": "a time", "id": "an id", "object": "an object",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What an expression may name."""

    kinds: Mapping[str, Kind]
    # The words that a name can be, where they are known.
    words: Mapping[str, tuple[str, ...]]
    # What messages call a name, and all of them.
    noun: str
    listing: str
    # What may be called, of min, max, abs, ceil and has.
    functions: tuple[str, ...]
    # What to write instead of an object, another name or constant, or a word that cannot be read as a kind.
    instead: Mapping[str, str]
    # Objects whose parts may be named.
    objects: tuple[str, ...] = ()
    # How a word that is compared with a value of that kind is read.
    readers: Mapping[Kind, Callable[[str], object]] = field(default_factory=dict)


def parse(written: str, vocabulary: Vocabulary, kind: Kind = "truth") -> tree.Expression:
    """Checks an expression of that kind, a condition by default.

    Raises `BadExpression`, which says what is wrong, where, and what to write instead.
    """
    if len(written) > _MAX_LENGTH:
        raise BadExpression(f"the expression is longer than {_MAX_LENGTH} characters; split it into several")
    # A comment ends with its line. Without one, line breaks are spaces.
    text = written.strip() if "#" in written else " ".join(written.splitlines()).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            syntax = ast.parse(text, mode="eval")
        parser = _Parser(text, vocabulary)
        root = parser.of_kind(kind, syntax.body)
        return tree.Expression(unparse(syntax), frozenset(parser.names), root)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte, or a number of thousands of digits
        hint = "; write == to compare" if _SINGLE_EQUALS.search(text) else ""
        hint = "; write and, or, not" if any(s in text for s in ("&&", "||")) else hint
        column = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise BadExpression(f"{written!r} is not an expression: {what}{column}{hint}") from None
    except (RecursionError, MemoryError):
        raise BadExpression(tree.TOO_DEEP) from None


class _Parser:
    """Makes nodes of Python's syntax, and refuses what is not in the language."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.names = set[str]()
        self._lines = text.split("\n")
        self._nodes = 0
        self._vocabulary = vocabulary
        *others, last = vocabulary.functions
        self._functions = f"{', '.join(others)} and {last}"

    def of_kind(self, kind: Kind, syntax: ast.expr) -> Node:
        node = _typed(self._node(syntax), kind)
        if node.kind != kind:
            hint = "; compare it, as in m % 128 == 0" if kind == "truth" else ""
            raise self._bad(syntax, f"{unparse(syntax)} is {_SHOWN[node.kind]} where {_SHOWN[kind]} is needed{hint}")
        return node

    def _node(self, syntax: ast.expr) -> Node:
        method: Callable[[Any], Node] | None = getattr(self, f"_{type(syntax).__name__.lower()}", None)
        if method is None:
            allowed = f"comparisons, and/or/not, arithmetic, in, {self._functions}"
            raise self._bad(syntax, f"{unparse(syntax)} is not allowed here; an expression has {allowed}")
        return method(syntax)

    def _character(self, syntax: ast.expr) -> int:
        before, line = self._lines[: syntax.lineno - 1], self._lines[syntax.lineno - 1]
        inside = line.encode()[: syntax.col_offset].decode(errors="ignore")
        return sum(len(line) + 1 for line in before) + len(inside) + 1

    def _bad(self, syntax: ast.expr, why: str) -> BadExpression:
        return BadExpression(why, self._character(syntax))

    def _operation(self, kind: Kind, syntax: ast.expr, operator: str, *operands: Node) -> Operation:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise BadExpression(tree.TOO_DEEP)
        return Operation(kind, self._character(syntax), operator, operands)

    # --- values --------------------------------------------------------------------------------------

    def _constant(self, syntax: ast.Constant) -> Node:
        value = syntax.value
        if isinstance(value, str):
            if not value.isprintable():
                raise self._bad(syntax, "a word has a character that cannot be printed")
            return tree.Constant("word", self._character(syntax), value)
        if type(value) is int or (type(value) is float and abs(value) < float("inf")):
            return tree.Constant("number", self._character(syntax), value)
        instead = self._vocabulary.instead.get(str(value), "write a number or a word in quotes")
        raise self._bad(syntax, f"{str(value)[:40]} is not allowed here; {instead}")

    def _name(self, syntax: ast.Name, *, objects: bool = False) -> Node:
        name, known = syntax.id, self._vocabulary
        if known.kinds.get(name) == "object" and not objects:
            raise self._bad(syntax, f"{name} is an object; {known.instead[name]}")
        if name in known.kinds:
            self.names.add(name)
            return tree.Name(known.kinds[name], self._character(syntax), name)
        if any(name in words for words in known.words.values()):
            raise self._bad(syntax, f"{name} stands without quotes; write '{name}'")
        close = difflib.get_close_matches(name, known.kinds, 1)
        hint = f"did you mean {close[0]}?" if close else f"if it is a word, write '{name}'."
        instead = known.instead.get(name, f"{hint} {known.listing}")
        raise self._bad(syntax, f"there is no {known.noun} {name}; {instead}")

    def _attribute(self, syntax: ast.Attribute) -> Node:
        name, *path = unparse(syntax).split(".")
        if name not in self._vocabulary.objects or not all(part.isidentifier() for part in path):
            objects = " and ".join(self._vocabulary.objects) or "objects"
            raise self._bad(syntax, f"{unparse(syntax)} is not allowed here; only {objects} have parts")
        self.names.add(name)
        return ObjectPart("object", self._character(syntax), name, tuple(path))

    # --- operators -----------------------------------------------------------------------------------

    def _boolop(self, syntax: ast.BoolOp) -> Node:
        values = (self.of_kind("truth", value) for value in syntax.values)
        return self._operation("truth", syntax, tree.OPERATORS[type(syntax.op)], *values)

    def _unaryop(self, syntax: ast.UnaryOp) -> Node:
        if isinstance(syntax.op, ast.Invert):
            raise self._bad(syntax, "~ is not allowed here; write not")
        kind: Kind = "truth" if isinstance(syntax.op, ast.Not) else "number"
        return self._operation(kind, syntax, tree.OPERATORS[type(syntax.op)], self.of_kind(kind, syntax.operand))

    def _binop(self, syntax: ast.BinOp) -> Node:
        if type(syntax.op) not in tree.OPERATORS:
            instead = "the operators are + - * / // % **; write and, or for & and |"
            raise self._bad(syntax, f"{unparse(syntax)}: {instead}")
        left, right = self.of_kind("number", syntax.left), self.of_kind("number", syntax.right)
        if isinstance(syntax.op, ast.Pow) and isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
            try:
                return replace(left, value=power(left.value, right.value))  # type: ignore[arg-type]
            except ArithmeticError as error:
                raise self._bad(syntax, f"{unparse(syntax)} cannot be computed: {error}") from None
        return self._operation("number", syntax, tree.OPERATORS[type(syntax.op)], left, right)

    def _call(self, syntax: ast.Call) -> Node:
        name = unparse(syntax.func)
        if name not in self._vocabulary.functions or syntax.keywords:
            raise self._bad(syntax, f"{name}(…) is not allowed here; the functions are {self._functions}")
        if name == "has":
            one = syntax.args[0] if len(syntax.args) == 1 else None
            if not isinstance(one, (ast.Name, ast.Attribute)):
                raise self._bad(syntax, "has takes one column, as in has(power_w)")
            found = self._name(one, objects=True) if isinstance(one, ast.Name) else self._attribute(one)
            return self._operation("truth", syntax, name, found)
        takes_one = name in tree.OF_ONE_NUMBER
        if takes_one != (len(syntax.args) == 1) or not syntax.args:
            raise self._bad(syntax, f"{name} takes {'one number' if takes_one else 'two numbers or more'}")
        return self._operation("number", syntax, name, *(self.of_kind("number", each) for each in syntax.args))

    # --- comparisons ---------------------------------------------------------------------------------

    def _compare(self, syntax: ast.Compare) -> Node:
        sides = [syntax.left, *syntax.comparators]
        found = [self._comparison(syntax, *each) for each in zip(sides, syntax.ops, syntax.comparators, strict=False)]
        return found[0] if len(found) == 1 else self._operation("truth", syntax, "and", *found)

    def _comparison(self, syntax: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Node:
        for constant, other in ((left, right), (right, left)):
            if isinstance(constant, ast.Constant) and constant.value is None and "has" in self._vocabulary.functions:
                no = "" if isinstance(operator, (ast.NotEq, ast.IsNot)) else "not "
                raise self._bad(syntax, f"{unparse(syntax)} is not allowed here; write {no}has({unparse(other)})")
        if isinstance(operator, (ast.Is, ast.IsNot)):
            raise self._bad(syntax, "is is not allowed here; write ==")
        if isinstance(operator, (ast.In, ast.NotIn)):
            within = self._within(syntax, left, right)
            return within if isinstance(operator, ast.In) else self._operation("truth", syntax, "not", within)
        a, b = self._pair(left, right)
        if a.kind not in ("number", "time") and not isinstance(operator, (ast.Eq, ast.NotEq)):
            raise self._bad(syntax, f"{unparse(syntax)} orders words; compare them with ==, != or in")
        return self._operation("truth", syntax, tree.OPERATORS[type(operator)], a, b)

    def _within(self, syntax: ast.Compare, left: ast.expr, right: ast.expr) -> Node:
        if isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            pairs = [self._pair(left, item) for item in right.elts]
            lefts = [a for a, _ in pairs] or [self._node(left)]
            if all(a == lefts[0] for a in lefts):
                return self._operation("truth", syntax, "in", lefts[0], *(b for _, b in pairs))
            equal = (self._operation("truth", syntax, "==", *pair) for pair in pairs)
            return self._operation("truth", syntax, "or", *equal)
        whole = _typed(self._node(right), "word")
        if isinstance(left, ast.Constant) and isinstance(left.value, str) and whole.kind == "word":
            return self._operation("truth", syntax, "part of", self._constant(left), whole)
        hint = "write in (128, 256), or 'f16' in ab for part of a word"
        raise self._bad(right, f"{unparse(right)} is not a list; {hint}")

    def _pair(self, left: ast.expr, right: ast.expr) -> tuple[Node, Node]:
        """Both sides of a comparison, of one kind."""
        a, b = self._node(left), self._node(right)
        if "object" in (kinds := {a.kind, b.kind}) and kinds <= {"object", *self._vocabulary.readers}:
            raise self._bad(left, f"compare {unparse(left)} with a {self._vocabulary.noun}, a number or a word")
        a, b = self._read_like(a, b), self._read_like(b, a)
        if a.kind != b.kind:
            sides = f"{unparse(left)} is {_SHOWN[a.kind]} and {unparse(right)} {_SHOWN[b.kind]}"
            raise self._bad(left, f"{sides}; they never compare")
        return a, b

    def _read_like(self, node: Node, other: Node) -> Node:
        """One side of a comparison: a constant or a part of an object becomes what the other side is."""
        if not isinstance(node, tree.Constant):
            return _typed(node, other.kind)
        try:
            if reader := self._vocabulary.readers.get(other.kind):
                return replace(node, kind=other.kind, value=reader(str(node.value)))
        except (BadMoment, ValueError) as error:
            why = f"{node.value!r} is not {_SHOWN[other.kind]}; {self._vocabulary.instead.get(other.kind)}"
            raise BadExpression(str(error) if isinstance(error, BadMoment) else why, node.character) from None
        name = other.name if isinstance(other, tree.Name) else ""
        words = self._vocabulary.words.get(name)
        if words is not None and node.kind == "word" and node.value not in words:
            raise BadExpression(f"{name} is never {node.value!r}; it is one of {', '.join(words)}", node.character)
        return node


def _typed(node: Node, kind: Kind) -> Node:
    """A part of an object as the kind that is needed."""
    return replace(node, kind=kind) if isinstance(node, ObjectPart) else node

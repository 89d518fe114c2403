"""Which rows of results are wanted: expressions of people, checked and translated to SQL with parameters.

The language is that of a campaign's constraints (`farm.campaign.expressions`), over the columns of an export and the
parameters of kernels. Nothing that a person writes becomes part of the statement but names from fixed lists: words and
numbers are bound. Rows are chosen by Postgres, and none that does not match passes through Python.

As in SQL, what has no value makes a comparison neither true nor false, and its negation too: such a row does not match.
Arithmetic is in double precision, `//` and `%` round down as Python's do, and a division by zero has no value.
"""

from __future__ import annotations

import ast
import difflib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy.exc import DataError

from farm.campaign.expressions import PROBLEM_WORDS, Refused, parameter_names, power, syntax_tree
from farm.errors import BadFilter, BadMoment, first_line
from farm.kernels import FAMILIES
from farm.measurement import Source
from farm.moments import moment
from farm.schema import results
from farm.schema.column import ColumnType

_Kind = Literal["number", "word", "truth", "time", "id", "field", "object"]

_KINDS: Mapping[ColumnType, _Kind] = {
    ColumnType.BIGINT: "number",
    ColumnType.SMALLINT: "number",
    ColumnType.DOUBLE: "number",
    ColumnType.TEXT: "word",
    ColumnType.BOOLEAN: "truth",
    ColumnType.TIMESTAMPTZ: "time",
    ColumnType.UUID: "id",
    ColumnType.JSONB: "object",
}
COLUMNS: Mapping[str, _Kind] = {c.name: _KINDS[c.type] for c in results.COLUMNS.values() if c.filterable}
"""What a filter may name besides kernel parameters: the columns of an export, flops and bytes, and what each holds."""

_KNOWN_WORDS: Mapping[str, tuple[str, ...]] = {
    **PROBLEM_WORDS,
    "family": tuple(FAMILIES),
    "source": tuple(source for source in Source if source is not Source.SENTINEL),
}
_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "({a} + {b})",
    ast.Sub: "({a} - {b})",
    ast.Mult: "({a} * {b})",
    ast.Div: "({a} / nullif({b}, 0))",
    ast.FloorDiv: "floor({a} / nullif({b}, 0))",
    ast.Mod: "({a} - {b} * floor({a} / nullif({b}, 0)))",
    ast.Pow: "power({a}, {b})",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "=",
    ast.NotEq: "<>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_MOST_SQL = 20_000
"""Characters of SQL that one condition may become: what is nested in `%`, `min` and `max` is repeated in it."""

_SHOWN: Mapping[_Kind, str] = {
    "truth": "a comparison",
    "time": "a time",
    "id": "an id",
    "object": "an object",
    "field": "part of an object",
    "number": "a number",
    "word": "a word",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on rows that have the columns `COLUMNS`, as SQL, and the values of its parameters."""

    sql: str = "true"
    values: Mapping[str, object] = field(default_factory=dict)


EVERYTHING = Filter()


def chosen(
    *,
    where: Sequence[str] = (),
    device_uuids: Sequence[str] | None = None,
    sources: Sequence[Source] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> Filter:
    """Rows for which every expression of `where` holds, of any of these devices and sources, from `since` to before `until`.

    Raises `BadFilter`, which says what is wrong, where, and what would be right.
    """
    translator = _Translator()
    conditions = [translator.condition(written) for written in where]
    values: dict[str, object] = dict(translator.values)
    for condition, name, value in (
        ("device_uuid = ANY(:only_devices)", "only_devices", None if device_uuids is None else list(device_uuids)),
        ("source = ANY(:only_sources)", "only_sources", [str(source) for source in sources] or None),
        ("measured_at >= :only_since", "only_since", since),
        ("measured_at < :only_until", "only_until", until),
    ):
        if value is not None:
            conditions.append(condition)
            values[name] = value
    return Filter(" AND ".join(conditions) or "true", values)


@contextmanager
def computed(only: Filter) -> Iterator[None]:
    """Around a statement that has the filter: where Postgres cannot compute it for a row, that is said as `BadFilter`."""
    try:
        yield
    except DataError as error:
        if only.sql == "true":
            raise
        raise BadFilter(where="", why=f"it cannot be computed for a row: {first_line(error.orig)}") from None


class _Mistake(Exception):
    """What is wrong with a part of an expression, and which part."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node


@dataclass(frozen=True, slots=True)
class _Part:
    """SQL of a part of an expression. For a field of an object `sql` has its path's parameter; `read` makes it a kind."""

    kind: _Kind
    sql: str
    read: Callable[[_Kind], str] | None = None


class _Translator:
    """Expressions to conditions that share one set of parameters."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def condition(self, written: str) -> str:
        one_line = " ".join(written.splitlines()).strip()
        try:
            return self._of_kind("truth", syntax_tree(one_line).body)
        except _Mistake as mistake:
            at = getattr(mistake.node, "col_offset", 0)
            character = len(one_line.encode()[:at].decode(errors="ignore")) + 1
            raise BadFilter(where=f" {written}", why=f"at character {character}, {mistake}") from None
        except Refused as refused:
            raise BadFilter(where="", why=str(refused)) from None
        except RecursionError:
            raise BadFilter(where="", why="the expression is nested too deeply; split it into several") from None

    # --- parts ---------------------------------------------------------------------------------------

    def _part(self, node: ast.expr) -> _Part:
        method: Callable[[Any], _Part] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _Mistake(
                node,
                f"{ast.unparse(node)} is not allowed; a condition has comparisons, and/or/not, arithmetic, in, min, max, "
                "abs and has",
            )
        part = method(node)
        if len(part.sql) > _MOST_SQL:
            raise _Mistake(node, "the expression is nested too deeply; split it into several")
        return part

    def _of_kind(self, kind: _Kind, node: ast.expr) -> str:
        part = self._part(node)
        if part.kind == "object":
            raise _Mistake(node, _about_object(node))
        if part.read is not None:
            return part.read(kind)
        if part.kind != kind:
            hint = "; compare it, as in m % 128 == 0" if kind == "truth" else ""
            raise _Mistake(node, f"{ast.unparse(node)} is {_SHOWN[part.kind]} where {_SHOWN[kind]} is needed{hint}")
        return part.sql

    def _number(self, node: ast.expr) -> str:
        return f"CAST({self._of_kind('number', node)} AS double precision)"

    def _bound(self, value: object, sql_type: str) -> str:
        name = f"where_{len(self.values)}"
        self.values[name] = value
        return f"CAST(:{name} AS {sql_type})"

    def _constant(self, node: ast.Constant) -> _Part:
        value = node.value
        if isinstance(value, str):
            if "\0" in value or not value.isprintable():
                raise _Mistake(node, "a word has a character that cannot be printed")
            return _Part("word", self._bound(value, "text"))
        if value is None:
            raise _Mistake(node, "None is not allowed; write has(power_w) or not has(power_w)")
        if isinstance(value, bool):
            raise _Mistake(node, f"{value} is not allowed; write power_disagrees, or not power_disagrees")
        if type(value) is int and value.bit_length() < 64:
            return _Part("number", self._bound(value, "bigint"))
        if type(value) in (int, float) and abs(value) < 1e300:  # type: ignore[arg-type]
            return _Part("number", self._bound(float(value), "double precision"))  # type: ignore[arg-type]
        raise _Mistake(node, f"{str(value)[:40]} is not allowed; write a number or a word in quotes")

    def _name(self, node: ast.Name) -> _Part:
        if node.id in COLUMNS:
            return _Part(COLUMNS[node.id], node.id)
        if node.id in parameter_names():
            return _Part("number", f"CAST(parameters ->> '{node.id}' AS bigint)")
        parameters = sorted(parameter_names())
        close = difflib.get_close_matches(node.id, [*COLUMNS, *parameters], 1)
        hint = f"; did you mean {close[0]}?" if close else f"; if it is a word, write '{node.id}'."
        raise _Mistake(
            node,
            f"there is no column {node.id}{hint} Columns: {', '.join(COLUMNS)}. Kernel parameters: {', '.join(parameters)}",
        )

    def _attribute(self, node: ast.Attribute) -> _Part:
        path = list[str]()
        here: ast.expr = node
        while isinstance(here, ast.Attribute):
            path.insert(0, here.attr)
            here = here.value
        if not isinstance(here, ast.Name) or self._name(here).kind != "object" or here.id == "parameters":
            raise _Mistake(node, f"{ast.unparse(node)} is not allowed; only details and environment have parts")
        value = f"({here.id} #> {self._bound(path, 'text[]')})"

        def read(kind: _Kind) -> str:
            in_json, sql_type = {"number": ("number", "double precision"), "truth": ("boolean", "boolean")}.get(
                kind, ("string", "text")
            )
            return f"CASE WHEN jsonb_typeof({value}) = '{in_json}' THEN CAST({value} #>> '{{}}' AS {sql_type}) END"

        return _Part("field", value, read)

    # --- operators -----------------------------------------------------------------------------------

    def _boolop(self, node: ast.BoolOp) -> _Part:
        word = " AND " if isinstance(node.op, ast.And) else " OR "
        return _Part("truth", f"({word.join(self._of_kind('truth', value) for value in node.values)})")

    def _unaryop(self, node: ast.UnaryOp) -> _Part:
        if isinstance(node.op, ast.Not):
            return _Part("truth", f"(NOT {self._of_kind('truth', node.operand)})")
        if isinstance(node.op, ast.Invert):
            raise _Mistake(node, "~ is not allowed; write not")
        sign = "-" if isinstance(node.op, ast.USub) else "+"
        return _Part("number", f"({sign}({self._number(node.operand)}))")

    def _binop(self, node: ast.BinOp) -> _Part:
        written = _ARITHMETIC.get(type(node.op))
        if written is None:
            raise _Mistake(node, f"{ast.unparse(node)}: the operators are + - * / // % **; write and, or for & and |")
        if (
            isinstance(node.op, ast.Pow)
            and isinstance(node.left, ast.Constant)
            and isinstance(node.right, ast.Constant)
        ):
            self._number(node.left), self._number(node.right)
            try:
                return self._constant(ast.copy_location(ast.Constant(power(node.left.value, node.right.value)), node))  # type: ignore[arg-type]
            except ArithmeticError as error:
                raise _Mistake(node, str(error)) from None
        return _Part("number", written.format(a=self._number(node.left), b=self._number(node.right)))

    def _call(self, node: ast.Call) -> _Part:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in ("min", "max", "abs", "has") or node.keywords:
            raise _Mistake(node, f"{name}(…) is not allowed; the functions are min, max, abs and has")
        if name == "has":
            if len(node.args) != 1 or not isinstance(node.args[0], (ast.Name, ast.Attribute)):
                raise _Mistake(node, "has takes one column, as in has(power_w)")
            part = self._part(node.args[0])
            return _Part(
                "truth", f"(nullif({part.sql}, 'null') IS NOT NULL)" if part.read else f"({part.sql} IS NOT NULL)"
            )
        if (name == "abs") != (len(node.args) == 1) or not node.args:
            raise _Mistake(node, f"{name} takes {'one number' if name == 'abs' else 'two numbers or more'}")
        listed = ", ".join(self._number(argument) for argument in node.args)
        if name == "abs":
            return _Part("number", f"abs({listed})")
        # Postgres's own leave out what has no value.
        function = "least" if name == "min" else "greatest"
        return _Part("number", f"CASE WHEN num_nulls({listed}) = 0 THEN {function}({listed}) END")

    # --- comparisons ---------------------------------------------------------------------------------

    def _compare(self, node: ast.Compare) -> _Part:
        found, left = list[str](), node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            found.append(self._comparison(node, left, operator, right))
            left = right
        return _Part("truth", f"({' AND '.join(found)})")

    def _comparison(self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        for side, other in ((left, right), (right, left)):
            if isinstance(side, ast.Constant) and side.value is None:
                no = "" if isinstance(operator, (ast.NotEq, ast.IsNot)) else "not "
                raise _Mistake(node, f"{ast.unparse(node)} is not allowed; write {no}has({ast.unparse(other)})")
        if isinstance(operator, (ast.Is, ast.IsNot)):
            raise _Mistake(node, "is is not allowed; write ==")
        if isinstance(operator, (ast.In, ast.NotIn)):
            no = "NOT " if isinstance(operator, ast.NotIn) else ""
            return f"({no}{self._within(left, right)})"
        kind, a, b = self._pair(left, right)
        if kind not in ("number", "time") and not isinstance(operator, (ast.Eq, ast.NotEq)):
            raise _Mistake(node, f"{ast.unparse(node)} orders words; compare them with ==, != or in")
        return f"({a} {_COMPARISONS[type(operator)]} {b})"

    def _within(self, left: ast.expr, right: ast.expr) -> str:
        if isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            if not right.elts:
                raise _Mistake(right, "the list is empty; write in (128, 256)")
            return "(" + " OR ".join("({} = {})".format(*self._pair(left, item)[1:]) for item in right.elts) + ")"
        if (
            isinstance(left, ast.Constant)
            and isinstance(left.value, str)
            and self._part(right).kind in ("word", "field")
        ):
            return f"(strpos({self._of_kind('word', right)}, {self._constant(left).sql}) > 0)"
        raise _Mistake(
            right,
            f"{ast.unparse(right)} is not a list; write tile in (16, 32), or 'power' in throttle_reasons for part of a word",
        )

    def _pair(self, left: ast.expr, right: ast.expr) -> tuple[_Kind, str, str]:
        """What two sides of a comparison both are, and their SQL."""
        a, b = self._part(left), self._part(right)
        for node, part in ((left, a), (right, b)):
            if part.kind == "object":
                raise _Mistake(node, _about_object(node))
        if a.read is not None and b.read is not None:
            raise _Mistake(left, f"compare {ast.unparse(left)} with a column, a number or a word")
        if a.read is not None:
            return b.kind, a.read(b.kind), b.sql
        if b.read is not None:
            return a.kind, a.sql, b.read(a.kind)
        if a.kind in ("time", "id") and isinstance(right, ast.Constant):
            return a.kind, a.sql, self._read(a.kind, right)
        if b.kind in ("time", "id") and isinstance(left, ast.Constant):
            return b.kind, self._read(b.kind, left), b.sql
        if a.kind != b.kind:
            sides = f"{ast.unparse(left)} is {_SHOWN[a.kind]} and {ast.unparse(right)} {_SHOWN[b.kind]}"
            raise _Mistake(left, f"{sides}; they never compare")
        for name, constant in ((left, right), (right, left)):
            if isinstance(name, ast.Name) and isinstance(constant, ast.Constant):
                words = _KNOWN_WORDS.get(name.id)
                if words is not None and constant.value not in words:
                    raise _Mistake(constant, f"{name.id} is never {constant.value!r}; it is one of {', '.join(words)}")
        return a.kind, a.sql, b.sql

    def _read(self, kind: _Kind, node: ast.Constant) -> str:
        """A constant that stands beside a time or an id."""
        try:
            if kind == "time":
                return self._bound(moment(str(node.value)), "timestamptz")
            return self._bound(uuid.UUID(str(node.value)), "uuid")
        except BadMoment as error:
            raise _Mistake(node, str(error)) from None
        except ValueError:
            raise _Mistake(node, f"{node.value!r} is not an id; an export has them in configuration_id") from None


def _about_object(node: ast.expr) -> str:
    name = ast.unparse(node)
    if name == "parameters":
        return "parameters is an object; name the parameter itself, as in tile == 16"
    example = "details.registers > 128" if name == "details" else "environment.driver == '580.159.04'"
    return f"{name} is an object; name a part of it, as in {example}"

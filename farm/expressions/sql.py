"""Expressions as SQL with bound parameters: of what a person writes, only names from fixed lists become part of a statement.

As in SQL, what has no value makes a comparison neither true nor false, and its negation too: such a row does not match.
Arithmetic is in double precision, `//` and `%` round down as Python's do, and a division by zero has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from farm.expressions.tree import TOO_DEEP, BadExpression, Constant, Kind, Name, Node, ObjectPart, Operation

_MAX_SQL = 20_000
"""Characters of SQL that one condition may become: what is nested in `%`, `min` and `max` is repeated in it."""

_OPERATORS: Mapping[str, str] = {
    "/": "({0} / nullif({1}, 0))",
    "//": "floor({0} / nullif({1}, 0))",
    "%": "({0} - {1} * floor({0} / nullif({1}, 0)))",
    "**": "power({0}, {1})",
    "neg": "(-({0}))",
    "pos": "(+({0}))",
    "abs": "abs({0})",
    # Postgres's own leave out what has no value.
    "min": "CASE WHEN num_nulls({all}) = 0 THEN least({all}) END",
    "max": "CASE WHEN num_nulls({all}) = 0 THEN greatest({all}) END",
    "not": "(NOT {0})",
    "==": "({0} = {1})",
    "!=": "({0} <> {1})",
    "part of": "(strpos({1}, {0}) > 0)",
    "has": "({0} IS NOT NULL)",
}
_IN_JSON: Mapping[Kind, tuple[str, str]] = {"number": ("number", "double precision"), "truth": ("boolean", "boolean")}


class Translator:
    """Translates conditions that share one set of parameters, `values`. `columns` is the SQL of each name."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self.values: dict[str, object] = {}
        self._columns = columns

    def sql(self, node: Node) -> str:
        """Raises `BadExpression` for what the database cannot do."""
        if isinstance(node, Constant):
            return self._constant(node)
        if isinstance(node, Name):
            return self._columns[node.name]
        if isinstance(node, ObjectPart):
            return self._part(node)
        assert isinstance(node, Operation)
        operator, operands = node.operator, [self.sql(operand) for operand in node.operands]
        if node.kind == "number":
            operands = [f"CAST({operand} AS double precision)" for operand in operands]
        if operator == "in":
            if len(operands) == 1:
                raise BadExpression("the list is empty; write in (128, 256)", node.character)
            operator, operands = "or", [f"({operands[0]} = {item})" for item in operands[1:]]
        if operator in _OPERATORS:
            sql = _OPERATORS[operator].format(*operands, all=", ".join(operands))
        else:
            sql = f"({f' {operator} '.join(operands)})"
        if len(sql) > _MAX_SQL:
            raise BadExpression(TOO_DEEP, node.character)
        return sql

    def _constant(self, node: Constant) -> str:
        value = node.value
        if isinstance(value, (int, float)):
            if abs(value) >= 1e300:
                raise BadExpression(f"{str(value)[:40]} is too large; write a number below 1e300", node.character)
            whole = isinstance(value, int) and value.bit_length() < 64
            return self._bound(value if whole else float(value), "bigint" if whole else "double precision")
        return self._bound(value, {datetime: "timestamptz", UUID: "uuid"}.get(type(value), "text"))

    def _part(self, node: ObjectPart) -> str:
        value = f"({node.name} #> {self._bound(list(node.path), 'text[]')})"
        if node.kind == "object":  # of has()
            return f"nullif({value}, 'null')"
        in_json, sql_type = _IN_JSON.get(node.kind, ("string", "text"))
        return f"CASE WHEN jsonb_typeof({value}) = '{in_json}' THEN CAST({value} #>> '{{}}' AS {sql_type}) END"

    def _bound(self, value: object, sql_type: str) -> str:
        name = f"where_{len(self.values)}"
        self.values[name] = value
        return f"CAST(:{name} AS {sql_type})"

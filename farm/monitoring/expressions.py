"""What an expression of PromQL selects: names of metrics and labels (pure).

This is no parser of PromQL, which Prometheus has. It reads what the check of a dashboard needs: each selector with the labels in
its braces, and the labels of `by`, `without`, `on`, `ignoring` and of `group_left`. Variables of Grafana are read as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_CHARACTERS = 20_000

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
  | (?P<variable>\$\{\w+(?::\w+)?\}|\$\w+|\[\[\w+\]\])
  | (?P<range>\[[^\[\]]*\])
  | (?P<number>0x[0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:ms|[smhdwy])?(?:\d+(?:ms|[smhdwy]))*)
  | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<operator>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},@])
    """,
    re.VERBOSE,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_AFTER_AGGREGATION = frozenset({"by", "without"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "atan2"})
_MATCHING = frozenset({"=", "!=", "=~", "!~"})
_CLOSING = {")": "(", "}": "{"}


class NotAnExpression(ValueError):
    """The text is no expression. The message says where and why."""


@dataclass(frozen=True, slots=True)
class Selected:
    """What an expression uses."""

    # By the name of a metric: the labels in its braces.
    metrics: dict[str, set[str]] = field(default_factory=dict)
    # Labels by which it groups or joins.
    grouped_by: set[str] = field(default_factory=set)


def selected(expression: str) -> Selected:
    """What an expression uses. Raises `NotAnExpression`."""
    tokens = list(_tokens(expression))
    if not tokens:
        raise NotAnExpression("it is empty")
    found, at = Selected(), 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if text == "{":  # a selector without a name
            _, at = _matchers(tokens, at)
        if kind != "name":
            continue
        if text.lower() in _GROUPING:
            if following == "(":
                names, at = _listed(tokens, at + 1)
                found.grouped_by.update(names)
        elif following != "(" and following.lower() not in _AFTER_AGGREGATION and text.lower() not in _WORDS:
            labels = found.metrics.setdefault(text, set())
            if following == "{":
                names, at = _matchers(tokens, at + 1)
                labels.update(names)
    return found


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    if len(expression) > MAX_CHARACTERS:
        raise NotAnExpression(f"it has more than {MAX_CHARACTERS:,} characters")
    at, open_ = 0, list[str]()
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise NotAnExpression(f"character {at + 1}, {expression[at]!r}, cannot be read")
        at = match.end()
        text = match.group()
        if text in ("(", "{"):
            open_.append(text)
        elif text in _CLOSING and (not open_ or open_.pop() != _CLOSING[text]):
            raise NotAnExpression(f"{text!r} at character {at} closes nothing")
        if match.lastgroup != "space":
            yield match.lastgroup, text
    if open_:
        raise NotAnExpression(f"{open_[-1]!r} is not closed")


def _listed(tokens: list[tuple[str, str]], at: int) -> tuple[list[str], int]:
    """The names up to a closing parenthesis, and what follows it."""
    names = list[str]()
    while tokens[at][1] != ")":
        if tokens[at][0] == "name":
            names.append(tokens[at][1])
        at += 1
    return names, at + 1


def _matchers(tokens: list[tuple[str, str]], at: int) -> tuple[list[str], int]:
    """The labels up to a closing brace, and what follows it."""
    names = list[str]()
    while tokens[at][1] != "}":
        if tokens[at][1] == ",":
            at += 1
            continue
        kinds = [kind for kind, _ in tokens[at : at + 3]]
        if kinds[:1] != ["name"] or tokens[at + 1][1] not in _MATCHING or kinds[2:] not in (["text"], ["variable"]):
            raise NotAnExpression(f'{tokens[at][1]!r} begins no condition as in state="live"')
        names.append(tokens[at][1])
        at += 3
    return names, at + 1

"""The check of a Grafana dashboard or of a file of Prometheus rules against the metrics of this version.

An expression may use metrics of other programs. Only names that begin with `gemm_farm_`, and those that nearly do, must be
metrics of the farm.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from farm.errors import MonitoringFileRefused
from farm.formatting import lines_text
from farm.metrics import PREFIX, VERSION
from farm.monitoring.catalogue import metrics
from farm.monitoring.expressions import NotAnExpression, selected

MAX_BYTES = 4 * 2**20

TARGET_LABELS = frozenset({"instance", "job"})
"""Labels that Prometheus gives every metric that it scrapes."""

_MADE_FOR = re.compile(r"gemm-farm-metrics-v(\d{1,9})\b")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),)?\s*(?P<label>\w+)\s*\)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a file, and where it is: the title of a panel or the name of an alert."""

    place: str
    text: str
    # Labels that the file uses of its result.
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MonitoringFile:
    """A dashboard or a file of rules."""

    kind: str
    expressions: tuple[Expression, ...]
    # Names that its rules record.
    recorded: frozenset[str] = frozenset()


def check(path: Path, target_labels: Collection[str] = ()) -> MonitoringFile:
    """Reads a file and checks it.

    Args:
        path: the file.
        target_labels: labels that the user's Prometheus adds, besides `TARGET_LABELS`.

    Raises `MonitoringFileRefused`, which names every problem.
    """
    text = _text_of(path)
    made_for = {int(version) for version in _MADE_FOR.findall(text)} - {VERSION}
    if made_for:
        raise MonitoringFileRefused(
            path=path,
            why=f"it is for version {max(made_for)} of the metrics, and this version of GEMM Farm exports version {VERSION}. "
            "Use the file that came with this version (docs/watching.md)",
        )
    found = _read(path, text)
    problems = [
        f"{one.place}: {problem}"
        for one in found.expressions
        for problem in _problems(one, found.recorded, TARGET_LABELS.union(target_labels))
    ]
    if problems:
        raise MonitoringFileRefused(path=path, why=lines_text(list(dict.fromkeys(map(_plain, problems)))))
    return found


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise MonitoringFileRefused(path=path, why=f"it has more than {MAX_BYTES // 2**20} MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise MonitoringFileRefused(path=path, why=error.strerror or error) from None
    except UnicodeDecodeError:
        raise MonitoringFileRefused(path=path, why="it is not UTF-8 text") from None


def _read(path: Path, text: str) -> MonitoringFile:
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = str(error).splitlines()[0] if str(error) else "it cannot be parsed"
        raise MonitoringFileRefused(path=path, why=f"it is neither JSON nor YAML: {why}") from None
    if isinstance(document, dict) and isinstance(document.get("panels"), list):
        return MonitoringFile("dashboard", tuple(_of_dashboard(document)))
    if isinstance(document, dict) and isinstance(document.get("groups"), list):
        rules = list(_rules(document["groups"]))
        recorded = frozenset(rule["record"] for rule in rules if isinstance(rule.get("record"), str))
        return MonitoringFile("rules", tuple(_of_rule(rule) for rule in rules), recorded)
    raise MonitoringFileRefused(
        path=path, why='it is no dashboard of Grafana, which has "panels", and no file of rules, which has "groups"'
    )


def _rules(groups: list[Any]) -> Iterator[dict[str, Any]]:
    for group in groups:
        rules = group.get("rules") if isinstance(group, dict) else None
        yield from (rule for rule in (rules if isinstance(rules, list) else ()) if isinstance(rule, dict))


def _of_rule(rule: dict[str, Any]) -> Expression:
    name = rule.get("alert") or rule.get("record") or "a rule without a name"
    annotations = rule.get("annotations")
    texts = annotations.values() if isinstance(annotations, dict) else ()
    labels = {label for text in texts for label in re.findall(r"\$labels\.(\w+)", str(text))}
    return Expression(str(name), str(rule.get("expr", "")), frozenset(labels))


def _of_dashboard(document: dict[str, Any]) -> Iterator[Expression]:
    variables = document.get("templating")
    for variable in variables.get("list", ()) if isinstance(variables, dict) else ():
        query = variable.get("query") if isinstance(variable, dict) else None
        query = query.get("query") if isinstance(query, dict) else query
        if isinstance(query, str) and (match := _LABEL_VALUES.fullmatch(query.strip())) and match["selector"]:
            yield Expression(f"variable {variable.get('name')}", match["selector"], frozenset({match["label"]}))
    waiting = [one for one in document["panels"] if isinstance(one, dict)]
    while waiting:
        panel = waiting.pop(0)
        waiting += [one for one in panel.get("panels") or () if isinstance(one, dict)]
        for target in panel.get("targets") or ():
            if isinstance(target, dict) and isinstance(target.get("expr"), str):
                legend = _LEGEND.findall(str(target.get("legendFormat", "")))
                yield Expression(f"panel {panel.get('title', 'without a title')!r}", target["expr"], frozenset(legend))


def _problems(one: Expression, recorded: frozenset[str], target_labels: frozenset[str]) -> Iterator[str]:
    try:
        found = selected(one.text)
    except NotAnExpression as error:
        yield f"the expression cannot be read: {error}"
        return
    known = {name: labels for metric in metrics() for name, labels in metric.series.items()}
    usable = set(target_labels)
    foreign = False
    for name, labels in found.metrics.items():
        if name in known:
            usable |= known[name]
            for label in sorted(labels - known[name] - target_labels):
                yield f"{name} has no label {label!r}. {_labels_text(known[name])}"
        elif name in recorded or not _is_meant_for_us(name, known):
            foreign = True
        else:
            yield f"this version has no metric {name}.{_nearest(name, known)}"
            foreign = True
    if not foreign:
        for label in sorted((found.grouped_by | one.labels) - usable):
            yield f"no metric of the expression has a label {label!r}. {_labels_text(usable - target_labels)}"


def _is_meant_for_us(name: str, known: Collection[str]) -> bool:
    return name.startswith(PREFIX) or bool(difflib.get_close_matches(name, known, 1, 0.9))


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1, 0.6)
    return f" Did you mean {nearest[0]}?" if nearest else " farm metrics lists them all."


def _labels_text(labels: Collection[str]) -> str:
    return f"Labels: {', '.join(sorted(labels))}." if labels else "It has no labels."

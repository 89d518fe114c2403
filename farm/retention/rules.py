"""Every retention rule, and how they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from farm.db import audit
from farm.errors import BadInput
from farm.retention.deleted import DeletedData
from farm.retention.files import Cache, Logs
from farm.retention.kernels import UnusedKernels
from farm.retention.rule import Old, Place, Rule
from farm.retention.sessions import Sessions
from farm.settings import Settings
from farm.time_parsing import duration

RULES: Sequence[Rule] = (DeletedData(), Sessions(), UnusedKernels(), Cache(), Logs())

OPERATION = "prune"
"""In the audit log: old data were removed."""


class NoPolicy(BadInput):
    """{what}: nothing says how long to keep it. Add --older-than, as in --older-than 90d, or set {settings}."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one rule found or removed."""

    rule: Rule
    older_than: str
    old: Old


def policies(settings: Settings, names: Sequence[str], older_than: str | None) -> Mapping[str, str]:
    """The age of each rule to run: `older_than`, or that of its setting. Without names, the rules whose setting is set.

    Raises:
        BadInput: There is no rule of that name.
        NoPolicy: Neither says how long to keep something.
        BadDuration: An age cannot be read.
    """
    known = {rule.name: getattr(settings, f"keep_{rule.name}") for rule in RULES}
    if unknown := [name for name in names if name not in known]:
        raise BadInput(detail=f"There is nothing named {unknown[0]!r} to prune. Use: {', '.join(known)}.")
    if not names and older_than is not None:
        raise BadInput(detail=f"--older-than needs the names of what to prune: {', '.join(known)}.")
    chosen = {name: older_than or known[name] for name in known if name in names or (not names and known[name])}
    missing = [name for name, age in chosen.items() if not age]
    if missing or not chosen:
        variables = ", ".join(f"FARM_KEEP_{name.upper()}" for name in (missing or known))
        raise NoPolicy(what=", ".join(missing) or "Nothing was pruned", settings=variables)
    for age in chosen.values():
        duration(age)
    return chosen


def prune(place: Place, ages: Mapping[str, str], *, dry_run: bool) -> Iterator[Pruned]:
    """Runs rules one after another, each in steps that commit. Yields the result of each."""
    for rule in RULES:
        if rule.name not in ages:
            continue
        age = duration(ages[rule.name])
        yield Pruned(rule, ages[rule.name], rule.find(place, age) if dry_run else _removed(place, rule, age))


def _removed(place: Place, rule: Rule, age: timedelta) -> Old:
    removed = Old()
    try:
        while (step := rule.remove(place, age)).count:
            removed += step
    finally:
        if removed.count:  # also before an error or an interruption
            with audit.change(place.engine, audit.local_actor(), OPERATION) as change:
                facts = {"removed": removed.count, "bytes": removed.bytes, "older_than": str(age)}
                change.record(rule.name, rule.what, after=facts)
    return removed

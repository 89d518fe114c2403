"""What may be compared: rows that differ in more than their side are refused, or labelled (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from farm.compare.sides import UNKNOWN, Kind
from farm.errors import NotComparable

Held = Mapping[str, Sequence[tuple[Kind, int]]]
"""By the name of a side its kinds, each with the rows that are compared."""

_REFUSED = (
    ("Clock policy", "clocks", "A card at other clocks is another card."),
    ("Operand distribution", "distribution", "Power depends on what is multiplied, and time where power is limited."),
)


def refuse(held: Held, *, mixed: bool) -> list[str]:
    """Notes on what differs though it should not. Raises `NotComparable` for it, unless `mixed`."""
    notes, differing, how = list[str](), dict[str, str](), list[str]()
    for what, key, why in _REFUSED:
        found = {name: _counted(kinds, key) for name, kinds in held.items()}
        values = sorted({value for counts in found.values() for value in counts})
        if len(values) < 2:
            continue
        said = "; ".join(
            f"{name} has " + ", ".join(f"{value} ({rows:,} rows)" for value, rows in sorted(counts.items()))
            for name, counts in found.items()
        )
        differing[what.lower()] = f"{what} differs: {said}. {why}"
        how.append(" or ".join(f"{key}={value}" for value in values))
        notes.append(f"MIXED {what.lower()}: {said}. {why}")
    if differing and not mixed:
        raise NotComparable(
            what=" and ".join(differing),
            differences=" ".join(differing.values()),
            how=f"each group with {', and '.join(how)}",
        )
    return notes


def _counted(kinds: Sequence[tuple[Kind, int]], key: str) -> Counter[str]:
    counts = Counter[str]()
    for kind, rows in kinds:
        counts[str(getattr(kind, key) or UNKNOWN)] += rows
    return counts


_NOT_COMPUTING = ("cupy", "framework", "kernel_source", "numpy", "os", "python", "version")
"""Keys of environments whose differences are minor: they compile and run no kernel, or only repeat who measured."""


def labels(held: Held) -> tuple[list[str], list[str]]:
    """Notes on what else the rows do not have in common: those that matter, and the minor ones.

    Sources, the L2 and versions of what computed and measured matter. It is minor that some rows do not tell a version, and
    that programs differ which compute nothing.
    """
    notes, minor = list[str](), list[str]()
    sources = {name: set(_counted(kinds, "source")) for name, kinds in held.items()}
    if set().union(*sources.values()) != {"measured"}:
        notes.append(f"Not all was measured by this farm: {_said(sources)}")
    l2 = {name: set(_counted(kinds, "l2")) for name, kinds in held.items()}
    if len(set().union(*l2.values())) > 1:
        notes.append(f"L2 before each sample: {_said(l2)}")
    keys = sorted({key for kinds in held.values() for kind, _ in kinds for key in kind.environment})
    for key in keys:
        versions = {
            name: {str(kind.environment.get(key, UNKNOWN)) for kind, _ in kinds} for name, kinds in held.items()
        }
        found = set().union(*versions.values())
        if len(found) > 1:
            matters = len(found - {UNKNOWN}) > 1 and key not in _NOT_COMPUTING
            (notes if matters else minor).append(f"{key}: {_said(versions)}")
    return notes, minor


def _said(values: Mapping[str, set[str]], most: int = 3) -> str:
    return "; ".join(
        f"{name} {', '.join(sorted(found)[:most])}" + (f" and {len(found) - most} more" if len(found) > most else "")
        for name, found in values.items()
    )

"""Which rows may be compared: groups that differ in clocks, operands or protocol are refused, other differences noted (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from farm.compare.groups import UNKNOWN, RowKind
from farm.errors import NotComparable
from farm.formatting import some_of

KindsByGroup = Mapping[str, Sequence[tuple[RowKind, int]]]
"""By the name of a group its kinds of rows, each with the number of rows that are compared."""

_MUST_MATCH = (
    ("Clock policy", "clocks", "Results at other clocks are those of another card."),
    ("Operand distribution", "distribution", "Operand values change power, and times where power is limited."),
    (
        "Protocol",
        "protocol",
        "Protocols measure different times, and these rows have no burst or settled time in common.",
    ),
)

_NOT_COMPUTING = ("cupy", "framework", "kernel_source", "numpy", "os", "python", "version")
"""Keys of environments whose differences are minor: they neither compile nor run kernels."""


def require_compatible(kinds: KindsByGroup, *, mixed: bool, common_time: bool = False) -> list[str]:
    """Raises `NotComparable` for differences in clocks, operands or protocol. With `mixed`, returns a note on each instead.

    Args:
        common_time: Protocols may differ, because a time is compared that all rows have.
    """
    notes, differing, narrowed = list[str](), dict[str, str](), list[str]()
    for what, key, why in _MUST_MATCH:
        if key == "protocol" and common_time:
            continue
        counts = {name: _row_counts(of_group, key) for name, of_group in kinds.items()}
        values = sorted(set().union(*counts.values()))
        if len(values) < 2:
            continue
        each = "; ".join(
            f"{name} has " + ", ".join(f"{value} ({rows:,} rows)" for value, rows in sorted(of_group.items()))
            for name, of_group in counts.items()
        )
        differing[what.lower()] = f"{what} differs: {each}. {why}"
        narrowed.append(" or ".join(f"{key}={value}" for value in values))
        notes.append(f"MIXED {what.lower()}: {each}. {why}")
    if differing and not mixed:
        raise NotComparable(
            what=" and ".join(differing),
            differences=" ".join(differing.values()),
            how=f"each group with {', and '.join(narrowed)}",
        )
    return notes


def _row_counts(kinds: Sequence[tuple[RowKind, int]], key: str) -> Counter[str]:
    counts = Counter[str]()
    for kind, rows in kinds:
        counts[str(getattr(kind, key) or UNKNOWN)] += rows
    return counts


def difference_notes(kinds: KindsByGroup) -> tuple[list[str], list[str]]:
    """Notes on other differences between the rows: those that matter, and the minor ones.

    Sources, the L2 state and versions of what computed and measured matter. Unknown versions, and versions of programs that
    compute nothing, are minor.
    """
    notes, minor = list[str](), list[str]()
    sources = {name: set(_row_counts(of_group, "source")) for name, of_group in kinds.items()}
    if set().union(*sources.values()) != {"measured"}:
        notes.append(f"Not all rows were measured by this farm: {_values_text(sources)}")
    l2 = {name: set(_row_counts(of_group, "l2")) for name, of_group in kinds.items()}
    if len(set().union(*l2.values())) > 1:
        notes.append(f"L2 before each sample: {_values_text(l2)}")
    for key in sorted({key for of_group in kinds.values() for kind, _ in of_group for key in kind.environment}):
        versions = {
            name: {str(kind.environment.get(key, UNKNOWN)) for kind, _ in of_group} for name, of_group in kinds.items()
        }
        found = set().union(*versions.values())
        if len(found) > 1:
            matters = len(found - {UNKNOWN}) > 1 and key not in _NOT_COMPUTING
            (notes if matters else minor).append(f"{key}: {_values_text(versions)}")
    return notes, minor


def _values_text(values: Mapping[str, set[str]]) -> str:
    return "; ".join(f"{name} {some_of(sorted(found), limit=3)}" for name, found in values.items())

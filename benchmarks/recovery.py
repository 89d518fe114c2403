"""How long after each class of fault do healthy devices measure again, and does a fault do harm to healthy jobs?

    python -m benchmarks.recovery [--strikes 5] [--kinds cut_leader,hold_lane] [--add]

A farm on seven hosts of its own, network namespaces that need root: a database, two coordinators, four hosts with a device
each. Ten owners keep it busy. Programs run with the farm's own times, but for batches of one second, whose landings show when
a device measures. Faults strike one at a time, in an order drawn at random; each for `strike_s` of `tests/chaos/plan.py`.

`seconds` are from the strike until every healthy device has landed a batch that it claimed later, and come back from every
outage of at least 4 s that began within 20 s. A device is healthy where the fault does not hold it. What takes a service from
everybody (`measured_from`: `end`) is timed from when it was made good. A farm where nothing happens takes 1 to 2 s.

With `--add` strikes are added to those in `results/recovery.json`. They are written after each round of all faults.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, end_like_interrupted, markdown, write

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the farm that is broken is the tests' own

HARM = ("jobs_lost", "rows_doubled", "healthy_jobs_dead")

CLASSES = {
    "the leading coordinator: killed, frozen or cut off": (
        "kill_coordinator", "pause_coordinator", "freeze_coordinator", "cut_leader", "cut_from_leader", "cut_to_leader",
        "cut_half",
    ),
    "the coordinator: killed between commit and send": ("kill_before_sending",),
    "messages: lost, repeated or meaningless": ("lose_messages", "repeat_messages", "junk_messages"),
    "a process of a device: killed or frozen": (
        "kill_child", "freeze_child", "kill_landing", "freeze_landing", "kill_parent", "pause_worker",
    ),
    "a host of devices: cut off, frozen, slow, stopped or killed": (
        "cut_host", "cut_from_host", "cut_to_host", "cut_landing", "freeze_host", "slow_host", "stop_host", "kill_host",
    ),
    "locks of foreign sessions, a stopped submission": (
        "hold_lane", "hold_campaign", "hold_batch", "hold_device", "stop_submission",
    ),
    "Postgres: killed, restarted, frozen or cut off from all": (
        "kill_postgres", "crash_postgres", "restart_postgres", "drop_connections", "freeze_postgres", "cut_database",
    ),
    "Postgres: read-only, or its disk is full": ("read_only_postgres", "full_disk"),
    "Redis: empty, away, frozen, full or read-only": (
        "flush_redis", "kill_redis", "stop_redis", "freeze_redis", "full_redis", "read_only_redis",
    ),
    "a device that fails everything": ("sicken_device",),
    "a second or an older farm-worker": ("second_worker", "old_worker"),
    "clocks that step by an hour": ("step_host_clock", "step_leader_clock"),
    "pause, cancel, drain, and fifty owners at once": (
        "pause_campaign", "cancel_campaign", "drain_device", "fifty_owners",
    ),
}  # fmt: skip
"""Faults by what they have in common. docs/operating.md has the worst of each class."""

TAKEOVER = "*another coordinator leads*"


def main() -> None:
    from chaos.__main__ import kinds_of
    from chaos.network import Unavailable
    from chaos.plan import ALONE
    from chaos.run import strike_alone

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strikes", type=int, default=5, help="of each fault")
    parser.add_argument("--kinds", type=kinds_of, help="faults, by name with commas (default: all)")
    parser.add_argument("--add", action="store_true", help="to the strikes that were measured before")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    end_like_interrupted()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("chaos").setLevel(logging.INFO)
    kinds = asked.kinds or ALONE
    keep = Path(tempfile.gettempdir()) / "farm-chaos-logs"
    found = json.loads((RESULTS / "recovery.json").read_text()) if asked.add else {}
    for number in range(asked.strikes):
        try:
            outcome = strike_alone(seed=asked.seed + number, keep=keep, kinds=kinds)
        except Unavailable as why:
            sys.exit(f"No hosts can be made: {why}")
        found = figures(found, outcome)
        write("recovery", found, table(found), repetitions=max(one["strikes"] for one in found["faults"].values()))
        for finding in outcome.findings:
            print(finding, file=sys.stderr)


def figures(before: dict[str, Any], outcome: Any) -> dict[str, Any]:
    """Those of an outcome, added to what was found before."""
    from chaos.plan import TRAITS, Holds
    from chaos.recovery import BOUND_S, TAKEOVER_BOUND_S

    faults: dict[str, dict[str, Any]] = dict(before.get("faults", {}))
    for strike in outcome.strikes:
        name = strike.kind.name.lower()
        one = faults.get(name, {"seconds": [], "takeover_seconds": []})
        seconds = [*one["seconds"], strike.seconds]
        taken = [*one["takeover_seconds"], *([strike.takeover_seconds] if TRAITS[strike.kind].takes_lead else [])]
        faults[name] = {
            "fault": strike.kind.value,
            "measured_from": "end" if TRAITS[strike.kind].holds is Holds.EVERYBODY else "strike",
            "lasted_seconds": TRAITS[strike.kind].strike_s,
            **summary(seconds, BOUND_S),
            "seconds": rounded(seconds),
            "takeover_seconds": rounded(taken),
        }
    takeovers = [seconds for one in faults.values() for seconds in one["takeover_seconds"]]
    return {
        "faults": dict(sorted(faults.items())),
        "leader_takeover": summary(takeovers, TAKEOVER_BOUND_S) if takeovers else None,
        **{name: before.get(name, 0) + outcome.harm.get(name, 0) for name in HARM},
        "jobs": dict(Counter(before.get("jobs", {})) + Counter(outcome.summary.get("jobs", {}))),
        "findings": [*before.get("findings", []), *outcome.findings],
    }


def summary(seconds: Sequence[float | None], bound_s: float) -> dict[str, Any]:
    """Median and worst; None where devices did not measure again."""
    known = [one for one in seconds if one is not None]
    all_known = len(known) == len(seconds)
    return {
        "strikes": len(seconds),
        "median_seconds": round(statistics.median(known), 2) if known else None,
        "worst_seconds": round(max(known), 2) if all_known else None,
        "bound_seconds": bound_s,
    }


def rounded(seconds: Sequence[float | None]) -> list[float | None]:
    return [None if one is None else round(one, 2) for one in seconds]


def table(found: dict[str, Any]) -> str:
    rows = [
        [
            one["fault"],
            one["measured_from"],
            str(one["strikes"]),
            shown(one["median_seconds"]),
            shown(one["worst_seconds"]),
            f"{one['bound_seconds']:g}",
        ]
        for one in sorted(found["faults"].values(), key=lambda one: -(one["worst_seconds"] or 1e9))
    ]
    if (takeover := found["leader_takeover"]) is not None:
        figures = [shown(takeover["median_seconds"]), shown(takeover["worst_seconds"])]
        rows.append(
            [
                TAKEOVER,
                "strike",
                str(takeover["strikes"]),
                *figures,
                f"{takeover['bound_seconds']:g}",
            ]
        )
    head = ["fault", "seconds from its", "strikes", "median", "worst", "bound"]
    harm = ", ".join(f"{name.replace('_', ' ')} {found[name]}" for name in HARM)
    done = found["jobs"].get("done", 0)
    said = f"Of {done:,} jobs that were measured: {harm}. A farm where nothing happens takes 1 to 2 s."
    return f"{markdown(head, rows)}\n\n{said}\n\n{classes(found)}"


def classes(found: dict[str, Any]) -> str:
    """The worst of each class of faults, as a table. Faults that were not measured are left out."""
    rows = []
    for title, names in CLASSES.items():
        measured = [found["faults"][name] for name in names if name in found["faults"]]
        if measured:
            rows.append([title, *worst_of(measured)])
    if (takeover := found["leader_takeover"]) is not None:
        rows.append([TAKEOVER, *worst_of([takeover])])
    return markdown(["class of faults", "strikes", "bound in s", "worst in s"], rows)


def worst_of(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Strikes, bound and worst of several summaries."""
    worst = [one["worst_seconds"] for one in measured]
    known = [seconds for seconds in worst if seconds is not None]
    return [
        str(sum(one["strikes"] for one in measured)),
        f"{max(one['bound_seconds'] for one in measured):g}",
        shown(max(known) if len(known) == len(worst) else None),
    ]


def shown(seconds: float | None) -> str:
    return "not within 120" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    main()

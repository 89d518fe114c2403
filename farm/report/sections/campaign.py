"""What the campaign is, and what came out of it in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

from farm.charts.description import number
from farm.compare.statistics import Ints
from farm.db.campaign_verdict import state_text, verdict
from farm.report.document import Listing, Section, Table
from farm.report.figures.fronts import of_choice
from farm.report.figures.labelled import LabelledResults, counted, percent
from farm.report.loading import MAX_REASONS, CampaignData

_NEARLY = 0.95
"""A share of the best's speed that most would call as fast."""


def about(data: CampaignData) -> Section:
    stored, counts = data.stored, data.counts
    held = {state: jobs for state, jobs in counts.items() if jobs}
    facts = [
        ("name", stored["name"]),
        ("digest", stored["digest"]),
        ("owner", stored["owner"]),
        ("state", state_text(stored["state"], counts)),
        ("submitted", stored["submitted_at"]),
        ("finished", stored["finished_at"]),
        ("device time", seconds_text(sum(origin.device_s for origin in data.origins))),
        *([("rounds", data.rounds)] if data.rounds > 1 else []),
    ]
    total = sum(counts.values())
    return Section(
        name="campaign",
        title="The campaign",
        says=[stored["document"].get("description") or "It has no description."],
        tables=[
            Table(caption="What it is", columns=["field", "value"], rows=facts),
            Table(
                caption="Its jobs",
                columns=["state", "jobs", "% of all"],
                rows=[(state, jobs, 100 * jobs / total) for state, jobs in held.items()],
                numbers=frozenset({"jobs", "% of all"}),
            ),
        ],
        listings=[
            Listing(
                caption="The campaign file, in normal form",
                text=yaml.safe_dump(dict(stored["document"]), sort_keys=False, allow_unicode=True, width=110),
            )
        ],
        figures={
            **{name: stored[name] for name in ("name", "digest", "owner", "state", "submitted_at", "finished_at")},
            "counts": dict(counts),
            "verdict": verdict(stored["state"], counts),
            "document": stored["document"],
        },
    )


def seconds_text(seconds: float) -> str:
    """`45.2 s`, `12.4 min`, `2.3 h`."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"


def findings(data: CampaignData, labelled: LabelledResults) -> Section:
    """The headline in sentences, each with its figures."""
    results, counts = data.results, data.counts
    total, done = sum(counts.values()), counts["done"]
    says = [
        f"{done:,} of {counted(total, 'job')} {'has' if done == 1 else 'have'} a result ({percent(done / max(total, 1))})."
    ]
    best = list(_bests(labelled))
    says += [_said(one) for one in best]
    says += _of_kernels(labelled)
    says += _of_energy(labelled)
    says += _of_failures(data)
    if data.open_jobs:
        says.append(f"{data.open_jobs:,} jobs are open: all of this is what was measured so far.")
    reasons = data.failed[:MAX_REASONS]
    tables = [
        Table(
            caption="Why jobs ended without a result"
            + (
                f": the {MAX_REASONS} most frequent of {len(data.failed):,} reasons"
                if len(data.failed) > MAX_REASONS
                else ""
            ),
            columns=["state", "jobs", "reason", "for example"],
            rows=[
                (one.state, one.jobs, one.reason, "" if one.example == one.reason else one.example) for one in reasons
            ],
            numbers=frozenset({"jobs"}),
        )
    ]
    return Section(
        name="findings",
        title="Findings",
        says=says,
        tables=tables if reasons else [],
        figures={
            "best": best,
            "failed": [
                {"state": one.state, "kind": one.kind, "reason": one.reason, "example": one.example, "jobs": one.jobs}
                for one in data.failed
            ],
        }
        if len(results) or data.failed
        else None,
    )


def _bests(labelled: LabelledResults) -> Iterator[dict[str, Any]]:
    """Of each device type and element types the fastest configuration, and the one of most operations for its energy."""
    results = labelled.results
    for kind, device_type in enumerate(results.types):
        for number_, types in enumerate(labelled.element_types):
            points = np.flatnonzero((results.type == kind) & (labelled.element_type == number_))
            if not len(points):
                continue
            yield {
                "device_type": device_type,
                "types": types,
                "configurations": len(points),
                "fastest": _described(labelled, points, results.tflops),
                "most_efficient": _described(labelled, points, results.gflops_per_w),
            }


def _described(labelled: LabelledResults, points: Ints, values: Any) -> dict[str, Any] | None:
    known = points[np.isfinite(values[points])]
    if not len(known):
        return None
    results, top = labelled.results, int(known[int(np.argmax(values[known]))])
    card = results.cards[results.type[top]]
    peak = None if card is None else card.peak_tflops(results.problems[results.problem[top]].types.ab)
    return {
        "kernel": str(results.kernels[results.kernel[top]]),
        "kernel_short": labelled.kernel_names[results.kernel[top]],
        "problem": labelled.problem_names[results.problem[top]],
        "tflops": float(results.tflops[top]),
        "share_of_peak": None if peak is None else float(results.tflops[top] / peak),
        "gflops_per_w": None if np.isnan(results.gflops_per_w[top]) else float(results.gflops_per_w[top]),
        "power_w": None if np.isnan(results.power_w[top]) else float(results.power_w[top]),
    }


def _said(best: dict[str, Any]) -> str:
    fast, thrifty = best["fastest"], best["most_efficient"]
    peak = "" if fast["share_of_peak"] is None else f", {percent(fast['share_of_peak'])} of the card's peak"
    text = (
        f"The highest speed on {best['device_type']} in {best['types']} is {number(fast['tflops'], 4)} TFLOP/s{peak}: "
        f"{fast['kernel_short']} on {fast['problem']}."
    )
    if thrifty is None:
        return text
    same = " by the same configuration" if (thrifty["kernel"], thrifty["problem"]) == (fast["kernel"], fast["problem"]) else (
        f" by {thrifty['kernel_short']} on {thrifty['problem']}"
    )  # fmt: skip
    return f"{text} The most operations for the energy are {number(thrifty['gflops_per_w'], 4)} GFLOP/s per W,{same}."


def _of_kernels(labelled: LabelledResults) -> Iterator[str]:
    """Which kernel is fastest most often, and what it would cost to take it always."""
    results = labelled.results
    for kind, device_type in enumerate(results.types):
        points = np.flatnonzero(results.type == kind)
        problems = len(np.unique(results.problem[points]))
        wins = np.bincount(results.kernel[points[results.fastest[points]]], minlength=len(results.kernels))
        if problems < 2 or len(np.unique(results.kernel[points])) < 2:
            continue
        top = int(np.argmax(wins))
        own = points[results.kernel[points] == top]
        shares = results.share_of_best[own]
        yield (
            f"On {device_type} {labelled.kernel_names[top]} is the fastest on {wins[top]:,} of {counted(problems, 'problem')}, more "
            f"than any other of {np.count_nonzero(wins):,} that are; it reaches {percent(_NEARLY)} of the best's speed on "
            f"{int((shares >= _NEARLY).sum()):,}, and {percent(float(shares.min()))} at worst."
        )


def _of_energy(labelled: LabelledResults) -> Iterator[str]:
    """What least energy costs in time."""
    results = labelled.results
    choice = of_choice(results)
    for kind, device_type in enumerate(results.types):
        points = np.flatnonzero(choice & (results.type == kind))
        if not len(points):
            continue
        timed = np.where(choice, results.runtime_ms, np.nan)
        thrifty = points[results.thriftiest[points]]
        slower = results.runtime_ms[thrifty] / results.least(timed)[thrifty]
        fast_energy = np.full(len(results.types) * len(results.problems), np.nan)
        fast = points[timed[points] == results.least(timed)[points]]
        fast_energy[results.place[fast]] = results.energy_mj[fast]
        saved = 1 - results.energy_mj[thrifty] / fast_energy[results.place[thrifty]]
        apart = slower > 1
        if not apart.any():
            yield f"On {device_type} the fastest kernel takes the least energy on every problem with a choice ({len(thrifty):,})."
            continue
        yield (
            f"On {device_type} the fastest kernel is not the one of least energy on {int(apart.sum()):,} of "
            f"{counted(len(thrifty), 'problem')} with a choice: there the latter saves {percent(float(np.median(saved[apart])))} of "
            f"the energy for {percent(float(np.median(slower[apart])) - 1)} more time (medians)."
        )


def _of_failures(data: CampaignData) -> Iterator[str]:
    for state, words in (("invalid", "cannot run there"), ("dead", "failed at each attempt")):
        jobs = data.counts[state]
        of_state = [one for one in data.failed if one.state == state]
        if jobs:
            why = f" Most of them: {of_state[0].reason}" if of_state else ""
            yield f"{counted(jobs, 'job')} {words} ({state}).{why}"

"""The campaign itself, and its findings in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import yaml

from farm.charts.chart import number
from farm.compare.statistics import Ints
from farm.db.campaign_verdict import state_text, verdict
from farm.formatting import counted
from farm.report.document import Listing, Section, Table
from farm.report.figures.fronts import of_choice
from farm.report.figures.points import percent
from farm.report.report_data import MAX_REASONS, CampaignData
from farm.report.result_points import Results

_NEARLY = 0.95
"""The share of the best's speed from which a kernel counts as nearly as fast."""


def about(data: CampaignData) -> Section:
    stored, counts = data.stored, data.counts
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
        sentences=[stored["document"].get("description") or "It has no description."],
        tables=[
            Table(caption="What it is", columns=["field", "value"], rows=facts),
            Table(
                caption="Its jobs",
                columns=["state", "jobs", "% of all"],
                rows=[(state, jobs, 100 * jobs / total) for state, jobs in counts.items() if jobs],
            ),
        ],
        listings=[
            Listing(
                caption="The campaign file, in normal form",
                text=yaml.safe_dump(dict(stored["document"]), sort_keys=False, allow_unicode=True, width=110),
            )
        ],
        data={
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


def findings(data: CampaignData) -> Section:
    """The headline in sentences, each with its figures."""
    results, counts = data.results, data.counts
    total, done = sum(counts.values()), counts["done"]
    best = list(_bests(results))
    sentences = [
        f"{done:,} of {counted(total, 'job')} {'has' if done == 1 else 'have'} a result ({percent(done / max(total, 1))}).",
        *map(_best_sentence, best),
        *_of_kernels(results),
        *_of_energy(results),
        *_of_failures(data),
    ]
    if data.open_jobs:
        sentences.append(f"{data.open_jobs:,} jobs are open: this report has what was measured so far.")
    some = (
        f": the {MAX_REASONS} most frequent of {len(data.failed):,} reasons" if len(data.failed) > MAX_REASONS else ""
    )
    table = Table(
        caption=f"Why jobs ended without a result{some}",
        columns=["state", "jobs", "reason", "for example"],
        rows=[
            (one.state, one.jobs, one.reason, "" if one.example == one.reason else one.example)
            for one in data.failed[:MAX_REASONS]
        ],
    )
    known = len(results) or data.failed
    return Section(
        name="findings",
        title="Findings",
        sentences=sentences,
        tables=[table] if data.failed else [],
        data={"best": best, "failed": [asdict(one) for one in data.failed]} if known else None,
    )


def _bests(results: Results) -> Iterator[dict[str, Any]]:
    """The fastest configuration of each device type and element types, and the one with the most operations for its energy."""
    for kind, device_type in enumerate(results.types):
        for number_, types in enumerate(results.element_types):
            points = np.flatnonzero((results.type == kind) & (results.element_type == number_))
            if not len(points):
                continue
            yield {
                "device_type": device_type,
                "types": types,
                "configurations": len(points),
                "fastest": _described(results, points, results.tflops),
                "most_efficient": _described(results, points, results.gflops_per_w),
            }


def _described(results: Results, points: Ints, values: Any) -> dict[str, Any] | None:
    known = points[np.isfinite(values[points])]
    if not len(known):
        return None
    top = int(known[int(np.argmax(values[known]))])
    card = results.cards[results.type[top]]
    problem = results.problems[results.problem[top]]
    peak = None if card is None else card.peak_tflops(problem.types.ab, problem.sparsity)
    return {
        "kernel": str(results.kernels[results.kernel[top]]),
        "kernel_short": results.kernel_names[results.kernel[top]],
        "problem": results.problem_names[results.problem[top]],
        "tflops": float(results.tflops[top]),
        "share_of_peak": None if peak is None else float(results.tflops[top] / peak),
        "gflops_per_w": None if np.isnan(results.gflops_per_w[top]) else float(results.gflops_per_w[top]),
        "power_w": None if np.isnan(results.power_w[top]) else float(results.power_w[top]),
    }


def _best_sentence(best: dict[str, Any]) -> str:
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


def _of_kernels(results: Results) -> Iterator[str]:
    """Which kernel is fastest most often, and what always taking it would cost."""
    for kind, device_type in enumerate(results.types):
        points = np.flatnonzero(results.type == kind)
        problems = len(np.unique(results.problem[points]))
        wins = np.bincount(results.kernel[points[results.fastest[points]]], minlength=len(results.kernels))
        if problems < 2 or len(np.unique(results.kernel[points])) < 2:
            continue
        top = int(np.argmax(wins))
        own = points[results.kernel[points] == top]
        shares = results.share_of_best[own]
        fastest = np.count_nonzero(wins)
        if fastest == 1:
            always = "both problems" if problems == 2 else f"all {problems:,} problems"
            yield f"On {device_type} {results.kernel_names[top]} is the fastest on {always}."
            continue
        yield (
            f"On {device_type} {results.kernel_names[top]} is the fastest on {wins[top]:,} of {problems:,} problems, the most of "
            f"the {fastest:,} kernels that are the fastest on any. It reaches {percent(_NEARLY)} of the best's speed on "
            f"{int((shares >= _NEARLY).sum()):,}, and {percent(float(shares.min()))} at worst."
        )


def _of_energy(results: Results) -> Iterator[str]:
    """What the least energy costs in time."""
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
    for state, outcome in (("invalid", "cannot run there"), ("dead", "failed at each attempt")):
        jobs = data.counts[state]
        of_state = [one for one in data.failed if one.state == state]
        if jobs:
            why = f" Most of them: {of_state[0].reason}" if of_state else ""
            yield f"{counted(jobs, 'job')} {outcome} ({state}).{why}"

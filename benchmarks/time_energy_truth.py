"""How far are the time and the energy of a GEMM that the farm tells from those of the long run?

Of windows of power_windows.py. The truth of the time is the mean of a kernel's references; that of the energy is the power
times the pace of the settled part of its truths. Kernels that the power limiter holds are judged apart from the `others`:
their clocks swing, and even two references differ by that.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.common import markdown
from benchmarks.power_windows import SETTLING_SECONDS, Window, counter_power_w
from farm.vendors.nvidia import ClockEvent
from workers.measure.replay import Lot

PACES_AFTER_SECONDS = (0.0, 0.1, 0.2, 0.3)
"""Lots that end earlier than that after the window's beginning are left out."""

LOTS_AHEAD = 2
"""Lots that still lie before the card when the farm has read enough: they are waited for, and count."""

Told = tuple[str, float]
"""A kernel, and by how many percent an answer about it is off."""


# --- errors --------------------------------------------------------------------------------------------


def errors(errors_pct: Sequence[float], asked: int) -> dict[str, float]:
    """Median, 90th percentile and worst of the sizes of errors, and the median of the errors themselves.

    `answered` is the share of windows for which there was an answer at all.
    """
    sizes = sorted(abs(error) for error in errors_pct)
    if not sizes:
        return {"answered": 0.0}
    return {
        "answered": len(sizes) / asked,
        "median_error_pct": statistics.median(sizes),
        "p90_error_pct": sizes[min(round(0.9 * len(sizes)), len(sizes) - 1)],
        "worst_error_pct": sizes[-1],
        "bias_pct": statistics.median(errors_pct),
    }


def cell(found: dict[str, Any], digits: int = 1) -> str:
    """Median / 90th percentile / worst."""
    if not found.get("answered"):
        return "-"
    names = ("median_error_pct", "p90_error_pct", "worst_error_pct")
    text = " / ".join(f"{found[name]:.{digits}f}" for name in names)
    return text if found["answered"] == 1 else f"{text} (of {found['answered']:.0%})"


def apart_pct(values: Sequence[float]) -> float | None:
    """How far the last of a kernel's truths is from the first. None of a single one."""
    return 100 * abs(values[-1] / values[0] - 1) if len(values) > 1 else None


def held_kernels(windows: Sequence[Window]) -> set[str]:
    """Those with which the power limiter was seen at work in more than half of the looks at their truths."""
    looks = defaultdict[str, list[bool]](list)
    for window in windows:
        if window["role"] == "truth":
            looks[window["kernel"]] += [bool((look[3] or 0) & ClockEvent.SW_POWER_CAP) for look in window["tele"]]
    return {kernel for kernel, limited in looks.items() if sum(limited) > len(limited) / 2}


def errors_in(told: Sequence[Told], kernels: Collection[str]) -> dict[str, float]:
    found = [error for kernel, error in told if kernel in kernels]
    return errors(found, len(found))


def by_regime(told: Sequence[Told], held: set[str]) -> dict[str, dict[str, float]]:
    """Errors over all kernels, over those that the power limiter held, and over the others."""
    kernels = {kernel for kernel, _ in told}
    groups = {"all": kernels, "others": kernels - held, "held": kernels & held}
    return {name: errors_in(told, group) for name, group in groups.items()}


def by_kernel(told: Sequence[Told]) -> dict[str, dict[str, float]]:
    return {kernel: errors_in(told, {kernel}) for kernel in sorted({kernel for kernel, _ in told})}


# --- time ----------------------------------------------------------------------------------------------


def time_errors(windows: Sequence[Window]) -> dict[str, Any] | None:
    """The timing tier's median of every window, against the kernel's references. None where the windows have no times."""
    references = defaultdict[str, list[Window]](list)
    for window in windows:
        if "reference_ms" in window:
            references[window["kernel"]].append(window)
    truth_ms = {kernel: statistics.fmean(w["reference_ms"] for w in of) for kernel, of in references.items()}
    timed = [window for window in windows if "timing_ms" in window and window["kernel"] in truth_ms]
    if not timed:
        return None
    held = held_kernels(windows)
    told = [(w["kernel"], 100 * (w["timing_ms"] / truth_ms[w["kernel"]] - 1)) for w in timed]
    kernels = {
        kernel: {
            "held": kernel in held,
            "reference_ms": truth_ms[kernel],
            "reference_launches": sum(w["reference_launches"] for w in references[kernel]),
            "references_apart_pct": apart_pct([w["reference_ms"] for w in references[kernel]]),
            **found,
        }
        for kernel, found in by_kernel(told).items()
    }
    return {
        **by_regime(told, held),
        "tier_seconds": statistics.median(window["timing_s"] for window in timed),
        "windows": len(timed),
        "by_kernel": kernels,
    }


def time_table(found: dict[str, Any]) -> str:
    groups = [[name, cell(found[name], 2), _signed(found[name].get("bias_pct"))] for name in ("all", "others", "held")]
    kernels = [
        [
            kernel,
            "held" if one["held"] else "",
            one["reference_ms"],
            one["reference_launches"],
            "-" if one["references_apart_pct"] is None else f"{one['references_apart_pct']:.2f}",
            *(f"{one[name]:.2f}" for name in ("median_error_pct", "worst_error_pct")),
            _signed(one["bias_pct"]),
        ]
        for kernel, one in found["by_kernel"].items()
    ]
    return (
        f"Time: the timing tier's median in {found['windows']} windows, against references of many launches; it took"
        f" {found['tier_seconds']:.3f} s (median). `held`: kernels held by the power limiter, which moves the references"
        " too. Error in percent, median / 90th percentile / worst:\n\n"
        + markdown(["kernels", "error", "median with its sign"], groups)
        + "\n\n"
        + markdown(["kernel", "", "ms", "launches", "references apart", "median", "worst", "with its sign"], kernels)
    )


# --- energy --------------------------------------------------------------------------------------------


def after(seconds: float) -> str:
    """The name of that candidate."""
    return f"pace after {seconds:g} s"


FARM_CANDIDATE = "settled time"
"""What the farm takes: the settled time that it told before the window."""


def mean_ms(lots: Sequence[Lot], after_s: float) -> float | None:
    """The mean time of a GEMM over the lots that ended after that time, at least the last one. None without any."""
    kept = [lot for lot in lots if lot.ended_s >= after_s] or list(lots[-1:])
    launches = sum(lot.launches for lot in kept)
    return sum(lot.gemm_ms * lot.launches for lot in kept) / launches if launches else None


def pace_ms(window: Window, after_s: float, until_s: float | None = None) -> float | None:
    """The farm's mean time of a GEMM over the lots after that time, had the window ended at `until_s`."""
    lots = [Lot(*lot) for lot in window.get("pace", [])]
    if until_s is not None:
        lots = lots[: sum(lot.ended_s <= until_s for lot in lots) + LOTS_AHEAD]
    return mean_ms(lots, after_s)


def energies_mj(window: Window, power_w: float, until_s: float) -> dict[str, float]:
    """What a window with the farm's power of its first `until_s` seconds makes of the energy of a GEMM, in mJ."""
    times_ms = {FARM_CANDIDATE: window["timing_ms"]}
    times_ms |= {after(since_s): pace_ms(window, since_s, until_s) for since_s in PACES_AFTER_SECONDS}
    return {name: power_w * ms for name, ms in times_ms.items()}


def energy_truths_mj(windows: Sequence[Window]) -> dict[str, list[float]]:
    """Power times pace of each truth after it settled, by kernel, in the order in which they were recorded."""
    found = defaultdict[str, list[float]](list)
    for window in windows:
        if window["role"] == "truth":
            watts = counter_power_w(window, SETTLING_SECONDS, window["seconds"] + 1)
            ms = pace_ms(window, SETTLING_SECONDS)
            if watts is not None and ms is not None:
                found[window["kernel"]].append(watts * ms)
    return dict(found)


def energy_errors(
    windows: Sequence[Window], powers: Sequence[tuple[Window, float, float]]
) -> dict[str, dict[str, Any]] | None:
    """The candidates for the energy of a GEMM, against its truth. None where the windows have no pace or no times.

    `powers` are short windows with the farm's power of each, in W, and the seconds after which the farm stopped.
    """
    truths = energy_truths_mj(windows)
    truth_mj = {kernel: statistics.fmean(energies) for kernel, energies in truths.items()}
    judged = [
        (window["kernel"], energies_mj(window, power_w, until_s))
        for window, power_w, until_s in powers
        if window["kernel"] in truth_mj and window.get("pace") and "timing_ms" in window
    ]
    if not judged:
        return None
    held = held_kernels(windows)
    told = {
        name: [(kernel, 100 * (energies[name] / truth_mj[kernel] - 1)) for kernel, energies in judged]
        for name in judged[0][1]
    }
    kernels = {
        kernel: {
            "held": kernel in held,
            "truth_mj": truth_mj[kernel],
            "truths_apart_pct": apart_pct(truths[kernel]),
            **found,
        }
        for kernel, found in by_kernel(told[FARM_CANDIDATE]).items()
    }
    candidates = {name: by_regime(of, held) for name, of in told.items()}
    return {"candidates": candidates, "by_kernel": kernels}


def energy_table(found: dict[str, Any]) -> str:
    groups = ("all", "others", "held")
    candidates = [
        [name, *(cell(of[group], 2) for group in groups), *(_signed(of[group].get("bias_pct")) for group in groups[1:])]
        for name, of in found["candidates"].items()
    ]
    kernels = [
        [kernel, "held" if one["held"] else "", one["truth_mj"], cell(one, 2), _signed(one.get("bias_pct"))]
        for kernel, one in found["by_kernel"].items()
    ]
    return (
        "Energy of a GEMM: the farm's power times a time, against power times pace of the long run. Error in percent,"
        " median / 90th percentile / worst; and its median with its sign:\n\n"
        + markdown(["time", *groups, *(f"sign, {group}" for group in groups[1:])], candidates)
        + f"\n\nBy kernel, with the {FARM_CANDIDATE}:\n\n"
        + markdown(["kernel", "", "mJ", "error", "with its sign"], kernels)
    )


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.2f}"

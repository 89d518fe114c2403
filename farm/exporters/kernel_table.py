"""Lookup tables for programs that choose a kernel at run time: from each problem of a plan to the kernel, its time and its energy.

There are two files with the same entries: JSON, and a header for C and C++ that needs no library. Entries are sorted by their problem, so
that the header finds one by binary search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from farm import __version__
from farm.api.plans import Planned
from farm.exporters.exporter import Export, ExportedFile
from farm.kernels import Configuration, problem_line
from farm.model_plans.amounts import Estimate
from farm.model_plans.step_plans import GemmEstimate

JSON_FILE, HEADER_FILE = "gemm_kernels.json", "gemm_kernels.h"

_HEADER = """\
/* Kernels for the GEMMs of {model} on {device_type}, {load} load. Made by GEMM Farm {version}. */
#ifndef GEMM_KERNELS_H
#define GEMM_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Times are in ms, energies in mJ. Bounds contain nine of ten measurements. NAN: not known. */
typedef struct {{
    const char *problem; /* m x n x k, types and layout, as in "512x6144x4096 bf16:bf16:f32 nt" */
    const char *kernel;
    double ms, ms_low, ms_high;
    double mj, mj_low, mj_high;
    int measured; /* 1: the time was measured, 0: it is predicted */
}} gemm_kernel;

static const gemm_kernel gemm_kernels[] = {{
{entries}
}};

/* The entry of a problem, or NULL. */
static inline const gemm_kernel *find_gemm_kernel(const char *problem) {{
    size_t low = 0, high = sizeof gemm_kernels / sizeof gemm_kernels[0];
    while (low < high) {{
        size_t middle = low + (high - low) / 2;
        int order = strcmp(problem, gemm_kernels[middle].problem);
        if (order == 0)
            return &gemm_kernels[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }}
    return NULL;
}}

#endif
"""


def export(planned: Planned, device_type: str) -> Export:
    """The table of plans that are all of one device type."""
    found = {entry["problem"]: entry for one in planned.plans for entry in map(_entry, one.gemms)}
    entries = [found[problem] for problem in sorted(found, key=str.encode)]
    document = {
        "made_by": f"GEMM Farm {__version__}",
        "model": planned.model,
        "device_type": device_type,
        "load": planned.load,
        "answered_by": [f"{one.name} v{one.version}" for one in planned.answered_by],
        "kernels": entries,
    }
    header = _HEADER.format(
        model=planned.model.replace("*/", "* /"),
        device_type=device_type,
        load=planned.load,
        version=__version__,
        entries="\n".join(map(_c_entry, entries)),
    )
    predicted = sum(entry["time"] == "predicted" for entry in entries)
    remarks = [f"{predicted:,} of {len(entries):,} times are predicted."] if predicted else []
    return Export(
        [
            ExportedFile(JSON_FILE, (json.dumps(document, indent=1) + "\n").encode(), len(entries), "kernels"),
            ExportedFile(HEADER_FILE, header.encode(), len(entries), "kernels"),
        ],
        remarks,
    )


def _entry(gemm: GemmEstimate) -> dict[str, Any]:
    chosen = Configuration.parse(gemm.configuration)
    return {
        # Whole: a plan shows long lists of groups shortened, which is the same text for several.
        "problem": problem_line(chosen.problem, scalars=False),
        "kernel": str(chosen.kernel),
        **_bounded("ms", gemm.ms),
        **_bounded("mj", gemm.mj),
        "time": "measured" if gemm.measured else "predicted",
        "rows": gemm.rows,
    }


def _bounded(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A figure and its bounds under their names; None where it is not known."""
    ends = (None, None, None) if estimate is None else astuple(estimate.amount)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


_NUMBERS: Sequence[str] = ("ms", "ms_low", "ms_high", "mj", "mj_low", "mj_high")


def _c_entry(entry: Mapping[str, Any]) -> str:
    numbers = ", ".join("NAN" if entry[name] is None else repr(float(entry[name])) for name in _NUMBERS)
    texts = ", ".join(json.dumps(entry[name]) for name in ("problem", "kernel"))
    return f"    {{{texts}, {numbers}, {int(entry['time'] == 'measured')}}},"

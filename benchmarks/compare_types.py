"""Types of cards beside each other on tables that other people measured: does the known order of the cards come out?

    python benchmarks/compare_types.py [--data FOLDER] [--cards a100_sxm,l40s,h100_sxm,b200_sxm,gb200]

AIConfigurator's tables of linear layers in bf16 (`farm import aiconfigurator`) are imported into a farm of its own, and every pair
of cards is compared as `farm compare --any-source` compares them: on the shapes that both have. Where a GEMM is bound by memory, cards
should come out in the order of their bandwidths; where computing bounds it, in the order of their peaks: A100 before L40S there,
and L40S before A100 here. `expected` is the ratio of the makers' figures (`farm/gpus.yaml`), which is what both cards would show if they
reached the same share of their roofline.

The importer keeps bf16 alone: what the tables call fp8, fp8_block and nvfp4 is no plain GEMM, or of no element type of the farm.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from common import markdown, write
from farms import farm_home
from learning import add_data, needed
from sqlalchemy import Engine

from farm.compare.comparing import compare
from farm.compare.findings import Figures
from farm.compare.gathering import Question
from farm.gemm import ElementType
from farm.gpus import Gpu, find_gpu
from farm.importers import aiconfigurator
from farm.importers.landing import import_table

CARDS = ("a100_sxm", "l40s", "h100_sxm", "b200_sxm", "gb200")
BOUNDS = ("memory-bound", "compute-bound")
TYPE = ElementType.BF16


def land(engine: Engine, folder: Path, cards: Sequence[str]) -> dict[str, int]:
    """Imports the tables of these cards; by device type, how many rows came in."""
    rows = dict[str, int]()
    for card in cards:
        path = next(iter(sorted(folder.glob(f"{card}_*.parquet"))), folder / f"{card}_*.parquet")
        found = aiconfigurator.look(needed(path, f"AIConfigurator's table of {card}", "Name its folder with --data."))
        done = import_table(engine, found, dry_run=False, progress=lambda _: None)
        rows |= {device.identity.type: device.rows for device in done.devices}
    return rows


def expected(baseline: Gpu, side: Gpu, bound: str) -> float | None:
    """By what factor the side's time should be the baseline's, by the makers' figures alone."""
    if bound == "memory-bound":
        return baseline.memory_gb_per_s / side.memory_gb_per_s
    peaks = baseline.peak_tflops(TYPE), side.peak_tflops(TYPE)
    return None if peaks[0] is None or peaks[1] is None else peaks[0] / peaks[1]


def of_pair(engine: Engine, baseline: str, side: str) -> list[dict[str, Any]]:
    """One line for all, and one each for what is bound by memory, and by computing, on the baseline."""
    found = compare(engine, Question(sides=(baseline, side), any_source=True)).sides[0].measured
    assert found.overall is not None
    cards = find_gpu(baseline), find_gpu(side)
    parts: dict[str, Figures] = {"all": found.overall, **found.by_bound}
    return [
        {
            "baseline": baseline,
            "side": side,
            "bound": part,
            "expected_time_ratio": expected(cards[0], cards[1], part)
            if part != "all" and cards[0] and cards[1]
            else None,
            **asdict(figures),
        }
        for part, figures in parts.items()
    ]


def orders(lines: Sequence[Mapping[str, Any]], types: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each bound the order of the cards, the slowest first, by the makers' figures and by how many others each beats."""
    found = {}
    for bound in BOUNDS:
        known = {name: gpu for name in types if (gpu := find_gpu(name)) is not None}
        beaten = dict.fromkeys(types, 0)
        for line in lines:
            if (
                line["bound"] == bound
                and line["time"]["low"] is not None
                and not line["time"]["low"] <= 1 <= line["time"]["high"]
            ):
                beaten[line["side"] if line["time"]["ratio"] < 1 else line["baseline"]] += 1
        figure = {
            name: gpu.memory_gb_per_s if bound == "memory-bound" else gpu.peak_tflops(TYPE)
            for name, gpu in known.items()
        }
        by_figure, by_time = (
            sorted(known, key=lambda name: figure[name] or 0),
            sorted(types, key=lambda name: beaten[name]),
        )
        found[bound] = {
            "by_makers_figures": by_figure,
            "by_time": by_time,
            "figures": figure,
            "the_same": by_figure == by_time,
        }
    return found


def table(found: Mapping[str, Any]) -> str:
    def between(line: Mapping[str, Any]) -> str:
        time = line["time"]
        return f"{time['ratio']:.3f} ({time['low']:.3f} – {time['high']:.3f})"

    lines = [
        [
            line["side"], line["baseline"], line["bound"], line["configurations"], between(line),
            "-" if line["expected_time_ratio"] is None else f"{line['expected_time_ratio']:.3f}",
            f"{line['faster']:,} / {line['ties']:,} / {line['slower']:,} / {line['unsure']:,}",
            f"{100 * line['baseline_roofline']:.0f}%", f"{100 * line['roofline']:.0f}%",
        ]
        for line in found["pairs"]
    ]  # fmt: skip
    heads = [
        "card", "beside", "bound", "shared shapes", "time (95%)", "by makers' figures", "faster / tie / slower / unsure",
        "the other reaches", "it reaches",
    ]  # fmt: skip
    order = [
        [bound, " < ".join(one["by_time"]), " < ".join(one["by_makers_figures"]), "yes" if one["the_same"] else "no"]
        for bound, one in found["orders"].items()
    ]
    return "\n\n".join([
        markdown(["bound", "order by time, the slowest first", "order by the makers' figures", "the same"], order),
        markdown(heads, lines),
        markdown(["card", "rows"], list(found["rows"].items())),
    ])  # fmt: skip


def figures(engine: Engine, folder: Path, cards: Sequence[str]) -> dict[str, Any]:
    """Everything, of the tables in a folder."""
    rows = land(engine, folder, cards)
    lines = [line for pair in combinations(rows, 2) for line in of_pair(engine, *pair)]
    return {"rows": rows, "types": [str(TYPE)], "orders": orders(lines, list(rows)), "pairs": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--cards", default=",".join(CARDS), help="some of the default")
    asked = parser.parse_args()
    with farm_home() as (_, engine):
        found = figures(engine, asked.data / "aiconfigurator", asked.cards.split(","))
    write("compare_types", found, table(found), repetitions=1)


if __name__ == "__main__":
    main()

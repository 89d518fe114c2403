"""Types of cards beside each other on tables that other people measured: does the known order of the cards come out?

    python -m benchmarks.compare_types [--data FOLDER] [--cards a100_sxm,l40s,h100_sxm,b200_sxm,gb200]

AIConfigurator's tables of linear layers in bf16 (`farm import aiconfigurator`) are imported into a farm of its own, and every pair
of cards is compared as `farm compare --any-source` compares them: on the shapes that both have, all of them and by bound.

`farm compare` takes the ridge of the baseline, the other card has another; a small GEMM is bound by its launch, and one whose
operands stay in the L2 by that. So two parts of the shapes stand beside these, on which one figure of a card's maker should decide:

  memory      fewer operations per byte than the lowest ridge of all cards, and more bytes than the largest L2
  computing   more operations per byte than the highest ridge of all cards, and at least 1e12 operations

There cards should come out in the order of their bandwidths, and of their peaks. `by makers' figures` is the ratio of these
(`farm/gpus.yaml`), which both cards would show if they reached the same share of them.

The importer keeps bf16 alone: what the tables call fp8, fp8_block and nvfp4 is no plain GEMM, or of no element type of the farm.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from benchmarks.learning import add_data, needed
from farm.compare import row_query
from farm.compare.aggregation import CompareQuery
from farm.compare.breakdowns import Problems, bytes_of, flops_of
from farm.compare.comparison import compare
from farm.compare.findings import ConfigurationFacts, Pairs, summarize
from farm.compare.statistics import TIE, Bools
from farm.compare.summaries import RatioSummary
from farm.gemm import ElementType
from farm.gpus import Gpu, find_gpu
from farm.importers import aiconfigurator
from farm.importers.landing import import_table

CARDS = ("a100_sxm", "l40s", "h100_sxm", "b200_sxm", "gb200")
PARTS = ("memory", "computing")
TYPE = ElementType.BF16
LARGE_FLOPS = 1e12


def land(engine: Engine, folder: Path, cards: Sequence[str]) -> dict[str, int]:
    """Imports the tables of these cards; by device type, how many rows came in."""
    rows = dict[str, int]()
    for card in cards:
        path = next(iter(sorted(folder.glob(f"{card}_*.parquet"))), folder / f"{card}_*.parquet")
        found = aiconfigurator.look(needed(path, f"AIConfigurator's table of {card}", "Name its folder with --data."))
        done = import_table(engine, found, dry_run=False, progress=lambda _: None)
        rows |= {device.identity.type: device.rows for device in done.devices}
    return rows


def figure(card: Gpu, part: str) -> float:
    """Of its maker's: GB/s, or TFLOP/s."""
    return card.memory_gb_per_s if part == "memory" else (card.peak_tflops(TYPE) or 0.0)


def parts(problems: Problems, cards: Sequence[Gpu]) -> dict[str, Bools]:
    """Which problems belong to a part: [problems] each."""
    ridges = [1e3 * figure(card, "computing") / figure(card, "memory") for card in cards]
    flops, traffic = flops_of(problems), bytes_of(problems)
    intensity = flops / traffic
    beyond = traffic > max(card.l2_mib for card in cards) * 2**20
    return {
        "memory": (intensity < min(ridges)) & beyond,
        "computing": (intensity > max(ridges)) & (flops >= LARGE_FLOPS),
    }


def of_part(pairs: Pairs, problems: Problems, which: Bools, cards: tuple[Gpu, Gpu]) -> RatioSummary | None:
    """None where the part has none of the pairs."""
    at = np.flatnonzero(which)
    if not len(at):
        return None
    own = Pairs.measured(pairs.ids[at], pairs.baseline.at(at), pairs.side.at(at), TIE)
    facts = ConfigurationFacts.of(problems.at(at), cards[0])
    return summarize(own, facts, cards, prices=(None, None), grams_per_kwh=None).overall


def of_pair(engine: Engine, baseline: str, side: str, cards: Mapping[str, Gpu]) -> list[dict[str, Any]]:
    """One line for all, for each bound on the baseline, and for each part."""
    comparison = compare(engine, CompareQuery(groups=(baseline, side), any_source=True, family="cublaslt"))
    found, pairs = comparison.groups[0], comparison.measured_pairs[side]
    two = cards[baseline], cards[side]
    problems = row_query.problems(engine, pairs.ids)
    of_parts = {
        part: of_part(pairs, problems, which, two) for part, which in parts(problems, list(cards.values())).items()
    }
    lines = {"all": found.overall, **found.by_bound, **of_parts}
    return [
        {
            "baseline": baseline,
            "side": side,
            "part": part,
            "expected_time_ratio": figure(two[0], part) / figure(two[1], part) if part in PARTS else None,
            **asdict(figures),
        }
        for part, figures in lines.items()
        if figures is not None
    ]


def orders(lines: Sequence[Mapping[str, Any]], cards: Mapping[str, Gpu]) -> dict[str, dict[str, Any]]:
    """For each part the order of the cards, the slowest first, by the makers' figures and by how many others each is faster than;
    and the pairs of cards that are not in the order of the figures."""
    found = {}
    for part in PARTS:
        own = [line for line in lines if line["part"] == part]
        beaten = dict.fromkeys(cards, 0)
        for line in own:
            beaten[line["side"] if line["time"]["ratio"] < 1 else line["baseline"]] += 1
        found[part] = {
            "by_makers_figures": sorted(cards, key=lambda name: figure(cards[name], part)),
            "by_time": sorted(cards, key=lambda name: beaten[name]),
            "figures": {name: figure(card, part) for name, card in cards.items()},
            "pairs": len(own),
            # An interval that holds 1 tells no order.
            "known": sum(not line["time"]["low"] <= 1 <= line["time"]["high"] for line in own),
            "other_way_round": [
                [line["side"], line["baseline"]]
                for line in own
                if (line["time"]["ratio"] < 1) != (line["expected_time_ratio"] < 1)
            ],
        }
    return found


def table(found: Mapping[str, Any]) -> str:
    def between(line: Mapping[str, Any]) -> str:
        time = line["time"]
        return f"{time['ratio']:.3f} ({time['low']:.3f} – {time['high']:.3f})"

    lines = [
        [
            line["side"], line["baseline"], line["part"], line["configurations"], between(line),
            "-" if line["expected_time_ratio"] is None else f"{line['expected_time_ratio']:.3f}",
            f"{line['faster']:,} / {line['ties']:,} / {line['slower']:,} / {line['unsure']:,}",
            f"{100 * line['baseline_roofline']:.0f}%", f"{100 * line['roofline']:.0f}%",
        ]
        for line in found["pairs"]
    ]  # fmt: skip
    heads = [
        "card", "beside", "part", "shared shapes", "time (95%)", "by makers' figures", "faster / tie / slower / unsure",
        "the other reaches", "it reaches",
    ]  # fmt: skip
    order = [
        [
            part, " < ".join(one["by_time"]), " < ".join(one["by_makers_figures"]),
            f"{one['pairs'] - len(one['other_way_round'])} of {one['pairs']}",
        ]
        for part, one in found["orders"].items()
    ]  # fmt: skip
    return "\n\n".join([
        markdown(["part", "order by time, the slowest first", "order by the makers' figures", "pairs in that order"], order),
        markdown(heads, lines),
        markdown(["card", "rows"], list(found["rows"].items())),
    ])  # fmt: skip


def figures(engine: Engine, folder: Path, cards: Sequence[str]) -> dict[str, Any]:
    """Everything, of the tables in a folder."""
    rows = land(engine, folder, cards)
    known = {name: gpu for name in rows if (gpu := find_gpu(name)) is not None}
    lines = [line for pair in combinations(known, 2) for line in of_pair(engine, *pair, known)]
    return {"rows": rows, "types": [str(TYPE)], "orders": orders(lines, known), "pairs": lines}


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

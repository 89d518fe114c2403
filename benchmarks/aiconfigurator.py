"""How near are predictions of the vendor's library on five cards, on tables that AIConfigurator measured?

    python -m benchmarks.aiconfigurator [--data FOLDER] [--cards a100_sxm,l40s,h100_sxm,b200_sxm,gb200]

The rows are linear layers in bf16, as `farm import aiconfigurator` reads them: which kernel ran is not known. One model for each
card, and beside it on the same rows of the same folds a forest on m, n and k alone (24 extra trees, as the farm's; ln ms).

  unseen_shapes   5 folds by (m, n, k), which intervals are calibrated on: a shape's neighbours in m stay in training, so that
                  this is the easiest
  unseen_nk       5 folds by (n, k): new weights under every m
  beyond_8192     fitted where n <= 8192, asked where n > 8192
  another_type    a single model for all cards, with the constants of the card among the features, fitted without the card that
                  it is asked about. Everything else is as in production, where each card has a model of its own. Two simpler
                  answers stand beside it: the reference time alone, times the median factor that the other cards miss it by,
                  and that of the nearest by name (H100 for B200, B200 and GB200 for each other, A100 for L40S and H100)

Beside these, how much there is to learn. The tables hold no repeats, but while m goes from 9 to 16 every kernel covers the product
with the same blocks: `roughness` says how far a time lies from the mean of its two neighbours in m. And of the rows with n > 8192
there is the error of `unseen_nk`, whose models learned of other weights as wide.

Power is that of GB200's GEMMs of at least 0.1 ms, which the importer keeps. Where no trees have seen a card, nothing of its
kernels is known: `another_type` is what it is.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.common import markdown, write
from benchmarks.learning import (
    SEED,
    Alternative,
    Figure,
    Target,
    add_data,
    compare,
    coverage_table,
    figure_table,
    figures_of,
    imported,
    judge,
    needed,
    pick,
    target_table,
)
from farm.forest.card import Card
from farm.forest.features import Seen, see
from farm.importers import aiconfigurator
from trainer.cards import card_of
from trainer.evaluate import measured_outputs
from trainer.folds import Splits, by_nk, by_shape
from trainer.forest import ForestSettings
from trainer.table import configurations, vocabulary_of

CARDS = ("a100_sxm", "l40s", "h100_sxm", "b200_sxm", "gb200")
NEAREST = {"l40s": "a100_sxm", "h100_sxm": "a100_sxm", "a100_sxm": "h100_sxm", "b200_sxm": "gb200", "gb200": "b200_sxm"}
WIDEST = 8192
WIDE = f"n > {WIDEST:,}"
LEVEL_M = range(9, 17)
"""Fewer rows than a tile of any kernel has, and more than a kernel for vectors takes."""

BANDS_MS = (0, 0.01, 0.03, 0.1, 1, np.inf)
PLAIN = ("log2_m", "log2_n", "log2_k")

_Array = np.ndarray[Any, np.dtype[Any]]


def beyond(frame: pd.DataFrame) -> Splits:
    """All n above `WIDEST` held out."""
    wide = (frame["n"] > WIDEST).to_numpy()
    if wide.any() and not wide.all():
        yield np.flatnonzero(~wide), np.flatnonzero(wide)


KINDS = {"unseen_shapes": by_shape, "unseen_nk": by_nk, "beyond_8192": beyond}


def plain(jobs: int = 2) -> dict[str, Alternative]:
    """A forest on m, n and k."""
    trees = ForestSettings().trees

    def grown() -> list[Any]:
        return [ExtraTreesRegressor(trees, max_features=1.0, random_state=SEED, n_jobs=jobs)]

    return {"a forest on m, n, k": Alternative(grown, PLAIN, normalised=False)}


def of_one_card(card: str, configured: pd.DataFrame, device_type: str, settings: ForestSettings) -> dict[str, Any]:
    """Figures on each kind of folds, the farm's and the plain forest's."""
    wide = (configured["n"] > WIDEST).to_numpy()
    ours = judge(device_type, configured, KINDS, settings=settings, parts={WIDE: wide})
    figures = [
        one for one in ours.figures
        if one["target"] in ("runtime_ms", "power_w", "energy_mj") and (one["part"] == "all" or one["folds"] == "unseen_nk")
    ]  # fmt: skip
    measured = measured_outputs(configured)
    for kind, split in KINDS.items():
        for name, predicted in compare(device_type, configured, split(configured), plain()).items():
            figures += figures_of({"part": "all", "folds": kind, "model": name}, measured, predicted)
    return {
        "figures": [{"card": card, **one} for one in figures],
        "coverage": [{"card": card, **one} for one in ours.coverage if one["target"] != "tflops"],
        "roughness": [{"card": card, **one} for one in roughness(configured)],
    }


def roughness(configured: pd.DataFrame) -> list[dict[str, Any]]:
    """How far times lie from the geometric mean of their two neighbours in m, of the same (n, k) and with m in `LEVEL_M`: by bands of
    time in ms, and of all. Were errors independent, their spread would be this one over the root of 1.5."""
    level = configured[configured["m"].isin(LEVEL_M)]
    by_m = level.pivot_table(index=["n", "k"], columns="m", values="runtime_ms").reindex(columns=LEVEL_M)
    logs = np.log(by_m.to_numpy())
    middle, between = logs[:, 1:-1], (logs[:, :-2] + logs[:, 2:]) / 2
    off = 100 * np.abs(np.expm1(middle - between))
    known, ms = np.isfinite(off), np.exp(middle)
    found = []
    for low, high in [(BANDS_MS[0], BANDS_MS[-1]), *pairwise(BANDS_MS)]:
        own = off[known & (ms >= low) & (ms < high)]
        if len(own):
            median, p90 = (float(np.percentile(own, share)) for share in (50, 90))
            found.append({
                "from_ms": low, "below_ms": high if np.isfinite(high) else None, "rows": len(own), "median_pct": median, "p90_pct": p90,
            })  # fmt: skip
    return found


def card_features(card: Card) -> dict[str, float]:
    """A card as a forest may see it: logs of its constants and of their ratios."""
    peak, rate = card.flops_per_ms["bf16"], card.bytes_per_ms
    logs = {
        "peak": peak,
        "bandwidth": rate,
        "multiprocessors": card.multiprocessors,
        "l2": card.l2_bytes,
        "limit": card.power_w,
        "balance": peak / rate,
        "peak_each": peak / card.multiprocessors,
        "bandwidth_each": rate / card.multiprocessors,
        "l2_each": card.l2_bytes / card.multiprocessors,
        "watts_per_flop": card.power_w / peak,
    }
    return {f"card_{name}": float(np.log2(value)) for name, value in logs.items()}


def seen_by_card(tables: dict[str, pd.DataFrame], types: dict[str, str]) -> dict[str, tuple[Seen, Card]]:
    """The features of each card's rows, on that card."""
    vocabulary = vocabulary_of(pd.concat(tables.values(), ignore_index=True))
    found = {}
    for name, configured in tables.items():
        card = card_of(types[name], configured)
        found[name] = (see(vocabulary.complete(configured), vocabulary, card), card)
    return found


def another_type(tables: dict[str, pd.DataFrame], types: dict[str, str], settings: ForestSettings) -> list[Figure]:
    """Each card asked of a model that learned from the others."""
    seen = seen_by_card(tables, types)
    names = sorted({name for one, _ in seen.values() for name in one.varying()})
    of_cards = {name: card_features(card) for name, (_, card) in seen.items()}
    x = {
        name: np.hstack([one.matrix(names), np.tile(np.array(list(of_cards[name].values()), "float32"), (len(one.flops), 1))])
        for name, (one, _) in seen.items()
    }  # fmt: skip
    missed = {name: np.log(tables[name]["runtime_ms"].to_numpy() / seen[name][0].reference_ms) for name in tables}
    figures = list[Figure]()
    for card, configured in tables.items():
        others = [name for name in tables if name != card]
        y = np.concatenate([missed[name] for name in others])
        forest = ExtraTreesRegressor(
            settings.trees, max_features=settings.max_features, min_samples_leaf=settings.min_samples_leaf,
            bootstrap=len(y) > settings.max_rows_per_tree, random_state=settings.seed, n_jobs=settings.jobs,
            max_samples=settings.max_rows_per_tree if len(y) > settings.max_rows_per_tree else None,
        ).fit(np.concatenate([x[name] for name in others]), y)  # fmt: skip
        reference = seen[card][0].reference_ms
        answers = {
            "one model for all cards": np.exp(forest.predict(x[card])) * reference,
            "reference time x median factor": np.exp(np.median(y)) * reference,
        }
        if NEAREST[card] in others:
            nearest = np.median(missed[NEAREST[card]])
            answers["reference time x median factor of the nearest card"] = np.exp(nearest) * reference
        measured = measured_outputs(configured)
        for model, runtime_ms in answers.items():
            predicted = pd.DataFrame({"runtime_ms": runtime_ms}, index=configured.index)
            figures += figures_of({"card": card, "folds": "another_type", "model": model}, measured, predicted)
    return figures


def targets_of(figures: list[Figure], cards: list[str]) -> list[Target]:
    def ours(card: str, folds: str, target: str = "runtime_ms") -> Figure:
        return pick(figures, card=card, folds=folds, target=target, model="this farm", part="all")

    found = []
    for card in cards:
        nk = ours(card, "unseen_nk")
        found += [
            Target(f"{card}, unseen (n, k): median error of time %", nk["median_error_pct"], 2.5),
            Target(f"{card}, unseen (n, k): 90th percentile of error of time %", nk["p90_error_pct"], 8.0),
            Target(f"{card}, n > 8192: median error of time %", ours(card, "beyond_8192")["median_error_pct"], 3.5),
        ]
    if "gb200" in cards:
        power = ours("gb200", "unseen_nk", "power_w")
        found.append(Target("gb200, unseen (n, k): median error of power %", power["median_error_pct"], 4.0))
    return found


def read(folder: Path, card: str) -> tuple[str, pd.DataFrame]:
    """A card's device type and its configurations."""
    paths = sorted(folder.glob(f"{card}_*.parquet"))
    path = paths[0] if paths else folder / f"{card}_*.parquet"
    rows = imported(
        aiconfigurator.look(needed(path, f"AIConfigurator's table of {card}", "Name its folder with --data."))
    )
    (device_type,) = rows["device_type"].unique()
    return str(device_type), configurations(rows[rows["family"] == "cublaslt"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--cards", default=",".join(CARDS), help="some of the default")
    asked = parser.parse_args()
    cards, settings = asked.cards.split(","), ForestSettings()
    read_in = {card: read(asked.data / "aiconfigurator", card) for card in cards}
    types, tables = {card: one[0] for card, one in read_in.items()}, {card: one[1] for card, one in read_in.items()}

    figures, coverage, rough = list[Figure](), list[dict[str, Any]](), list[dict[str, Any]]()
    for card in cards:
        found = of_one_card(card, tables[card], types[card], settings)
        figures += found["figures"]
        coverage += found["coverage"]
        rough += found["roughness"]
        print(figure_table(found["figures"], ["card", "folds", "part", "target", "model"]), flush=True)
    across = another_type(tables, types, settings) if len(cards) > 1 else []
    targets = targets_of(figures, cards)

    def of(*kinds: str, target: str = "runtime_ms", part: str = "all") -> list[Figure]:
        return [one for one in figures if one["folds"] in kinds and one["target"] == target and one["part"] == part]

    tables_shown = [
        "Time, new weights (n, k):",
        figure_table(of("unseen_nk"), ["card", "model"]),
        "Time, n > 8192, from n <= 8192:",
        figure_table(of("beyond_8192"), ["card", "model"]),
        "Time, n > 8192, from models that learned of other weights as wide (unseen (n, k)):",
        figure_table(of("unseen_nk", part=WIDE), ["card", "model"]),
        "Time, unseen (m, n, k):",
        figure_table(of("unseen_shapes"), ["card", "model"]),
        "Power and energy, of GEMMs of at least 0.1 ms:",
        figure_table([*of(*KINDS, target="power_w"), *of(*KINDS, target="energy_mj")], ["card", "target", "folds", "model"]),
        target_table(targets),
        f"Roughness: how far a time lies from the mean of its neighbours in m, with m from {LEVEL_M[0]} to {LEVEL_M[-1]}:",
        markdown(["card", "from ms", "below ms", "rows", "median %", "p90 %"], [
            [one["card"], one["from_ms"], one["below_ms"] or "-", one["rows"], one["median_pct"], one["p90_pct"]] for one in rough
        ]),
        "A card that no tree has seen:",
        figure_table(across, ["card", "model"]) if across else "",
        "Held inside intervals, unseen (m, n, k):",
        coverage_table(coverage, ["card"]),
        markdown(["card", "configurations", "with power"], [
            [card, len(one), int(one["power_w"].notna().sum())] for card, one in tables.items()
        ]),
    ]  # fmt: skip
    found = {
        "configurations": {card: len(one) for card, one in tables.items()},
        "figures": figures, "another_type": across, "coverage": coverage, "roughness": rough, "targets": [one.to_json() for one in targets],
    }  # fmt: skip
    write("aiconfigurator", found, "\n\n".join(part for part in tables_shown if part), repetitions=1)


if __name__ == "__main__":
    main()

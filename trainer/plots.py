"""Pictures that are logged with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trainer.evaluate import metrics

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's colours (2008), told apart with any colour vision; families also differ in marker."""

_MARKERS = ("o", "s", "^", "D", "v", "P")
_PANELS = {"runtime_ms": ("runtime", "ms"), "power_w": ("power", "W")}
_BAND = 1.2
_NARROW = 100


def parity_plot(
    path: Path, device_type: str, families: pd.Series, measured: pd.DataFrame, predicted: pd.DataFrame
) -> None:
    """Held-out predictions against measurements on logarithmic axes, one panel for each target that was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [target for target in _PANELS if (measured[target].notna() & predicted[target].notna()).any()]
    figure = Figure(figsize=(5.6 * len(shown), 5.4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    for axes, target in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        _panel(axes, target, families, measured[target], predicted[target])
    figure.suptitle(f"{device_type}: shapes held out of training")
    figure.savefig(path)


def _panel(axes: Any, target: str, families: pd.Series, measured: pd.Series, predicted: pd.Series) -> None:
    quantity, unit = _PANELS[target]
    both = measured.notna() & predicted.notna()
    for index, family in enumerate(sorted(families[both].unique())):
        rows = both & (families == family)
        axes.scatter(
            measured[rows],
            predicted[rows],
            s=16,
            alpha=0.6,
            linewidths=0,
            color=_PALETTE[index % len(_PALETTE)],
            marker=_MARKERS[index % len(_MARKERS)],
            label=f"{family} ({rows.sum():,})",
        )
    low = min(measured[both].min(), predicted[both].min()) / 1.15
    high = max(measured[both].max(), predicted[both].max()) * 1.15
    line = np.array([low, high])
    axes.plot(line, line, color="black", linewidth=1, label="equal")
    axes.fill_between(
        line, line / _BAND, line * _BAND, color="grey", alpha=0.15, linewidth=0, label="within a factor 1.2"
    )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    if high / low < _NARROW:
        _plain_ticks(axes)
    axes.set_xlabel(f"measured {quantity} ({unit})")
    axes.set_ylabel(f"predicted {quantity} ({unit})")
    found = metrics(measured, predicted)
    if found:
        axes.set_title(
            f"median error {found['median_error_pct']:.1f} %, mean {found['mean_error_pct']:.1f} %", fontsize=10
        )
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.grid(visible=True, which="major", alpha=0.3)


def _plain_ticks(axes: Any) -> None:
    """30, 50, 100 instead of powers of ten, of which a narrow range holds one at most."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))

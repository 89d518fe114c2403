"""Pictures that are logged with a model: where its held-out predictions are off, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from farm.forest.physics import compulsory_bytes, flops_of
from trainer.evaluate import metrics
from trainer.table import vocabulary_of

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's colours (2008), told apart with any colour vision; families also differ in marker."""

_MARKERS = ("o", "s", "^", "D", "v", "P")
_PANELS = {"runtime_ms": ("runtime", "ms"), "power_w": ("power", "W")}
_BAND = 1.2
_NARROW = 100
_MAX_POINTS = 20_000
"""Of a family in a picture."""

_BINS = 12
_MAX_FEATURES = 20
_MIN_ERROR_PCT = 0.01
"""Errors below this are drawn here: a logarithmic axis has no zero."""


@dataclass(frozen=True, slots=True)
class HeldOutRows:
    """One row per configuration, and what was measured and predicted of it by a model that had not seen its shape."""

    device_type: str
    configured: pd.DataFrame
    measured: pd.DataFrame
    predicted: pd.DataFrame

    def shown(self, target: str) -> pd.Series:
        """Which rows have both numbers."""
        return self.measured[target].notna() & self.predicted[target].notna()

    @property
    def panels(self) -> list[str]:
        return [target for target in _PANELS if self.shown(target).any()]


def plots(folder: Path, rows: HeldOutRows) -> None:
    """Every picture of held-out predictions, as PNGs in the folder."""
    _parity_plot(folder / "parity.png", rows)
    completed = vocabulary_of(rows.configured).complete(rows.configured)
    size = pd.Series(flops_of(completed), rows.configured.index)
    traffic = pd.Series(compulsory_bytes(completed), rows.configured.index)
    _error_plot(folder / "error_by_flops.png", rows, size, "work of the GEMM (flop)")
    _error_plot(folder / "error_by_intensity.png", rows, size / traffic, "arithmetic intensity (flop per byte)")
    _coverage_plot(folder / "interval_coverage.png", rows, size)


def _parity_plot(path: Path, rows: HeldOutRows) -> None:
    """Predictions against measurements on logarithmic axes, one panel for each target."""

    def draw(axes: Any, target: str) -> None:
        quantity, unit = _PANELS[target]
        shown = rows.shown(target)
        measured, predicted = rows.measured[target][shown], rows.predicted[target][shown]
        _scatter(axes, rows.configured["family"], measured, predicted)
        low, high = min(measured.min(), predicted.min()) / 1.15, max(measured.max(), predicted.max()) * 1.15
        line = np.array([low, high])
        axes.plot(line, line, color="black", linewidth=1, label="equal")
        axes.fill_between(
            line, line / _BAND, line * _BAND, color="grey", alpha=0.15, linewidth=0, label="within a factor 1.2"
        )
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        if high / low < _NARROW:
            _plain_ticks(axes.xaxis, axes.yaxis)
        axes.set_xlabel(f"measured {quantity} ({unit})")
        axes.set_ylabel(f"predicted {quantity} ({unit})")
        found = metrics(measured, predicted)
        if found:
            axes.set_title(
                f"median error {found['median_error_pct']:.1f} %, mean {found['mean_error_pct']:.1f} %", fontsize=10
            )
        axes.legend(loc="upper left", fontsize=8, frameon=False)
        axes.grid(visible=True, which="major", alpha=0.3)

    _draw(path, f"{rows.device_type}: shapes held out of training", rows.panels, draw)


def _error_plot(path: Path, rows: HeldOutRows, along: pd.Series, label: str) -> None:
    """|predicted - measured| / measured along some number, one panel for each target, with its running median."""

    def draw(axes: Any, target: str) -> None:
        shown = rows.shown(target)
        measured, predicted = rows.measured[target][shown], rows.predicted[target][shown]
        error = (100 * (predicted - measured).abs() / measured).clip(lower=_MIN_ERROR_PCT)
        x = along[shown]
        _scatter(axes, rows.configured["family"], x, error)
        middle, median = _binned(x, error, "median")
        axes.plot(middle, median, color="black", linewidth=1.5, label="median")
        axes.set(xscale="log", yscale="log")
        if x.max() / x.min() < _NARROW:
            _plain_ticks(axes.xaxis)
        axes.set_xlabel(label)
        axes.set_ylabel(f"error of the predicted {_PANELS[target][0]} (%)")
        axes.legend(loc="best", fontsize=8, frameon=False)
        axes.grid(visible=True, which="major", alpha=0.3)

    _draw(path, f"{rows.device_type}: errors on shapes held out of training", rows.panels, draw)


def _coverage_plot(path: Path, rows: HeldOutRows, size: pd.Series) -> None:
    """Which share of measurements lies inside the predicted interval, where intervals were predicted at all."""
    panels = [t for t in rows.panels if {f"{t}_low", f"{t}_high"} <= set(rows.predicted)]
    if not panels:
        return

    def draw(axes: Any, target: str) -> None:
        low, high = rows.predicted[f"{target}_low"], rows.predicted[f"{target}_high"]
        shown = rows.measured[target].notna() & low.notna() & high.notna()
        inside = rows.measured[target].between(low, high)[shown].astype("float64") * 100
        middle, share = _binned(size[shown], inside, "mean")
        axes.plot(middle, share, color=_PALETTE[0], marker=_MARKERS[0], label="of rows of such a size")
        axes.axhline(inside.mean(), color="black", linewidth=1, label=f"of all rows: {inside.mean():.0f} %")
        axes.set(xscale="log", ylim=(0, 103))
        axes.set_xlabel("work of the GEMM (flop)")
        axes.set_ylabel(f"measured {_PANELS[target][0]} inside its interval (%)")
        axes.legend(loc="lower right", fontsize=8, frameon=False)
        axes.grid(visible=True, which="major", alpha=0.3)

    _draw(path, f"{rows.device_type}: intervals on shapes held out of training", panels, draw)


def importance_plot(folder: Path, device_type: str, importance: Mapping[str, float]) -> None:
    """`importance.png`: the features that matter most; nothing where none are known."""
    if not importance:
        return
    most = sorted(importance.items(), key=lambda item: -item[1])[:_MAX_FEATURES][::-1]

    def draw(axes: Any, _: str) -> None:
        axes.barh([name for name, _ in most], [100 * share for _, share in most], color=_PALETTE[0])
        axes.set_xlabel("importance (% of all features)")
        axes.set_ylabel("feature")
        axes.grid(visible=True, axis="x", alpha=0.3)

    _draw(folder / "importance.png", f"{device_type}: what the model looks at", ["features"], draw, width=7.5)


def _draw(path: Path, title: str, panels: list[str], draw: Callable[[Any, str], None], *, width: float = 5.6) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * len(panels), 5.4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        draw(axes, name)
    figure.suptitle(title)
    figure.savefig(path)


def _binned(x: pd.Series, y: pd.Series, how: str) -> tuple[pd.Series, pd.Series]:
    """A running number: y of rows with about the same x, in bins that hold about as many rows each."""
    bins = pd.qcut(x, min(_BINS, x.nunique()), duplicates="drop")
    return x.groupby(bins, observed=True).median(), y.groupby(bins, observed=True).agg(how)


def _scatter(axes: Any, families: pd.Series, x: pd.Series, y: pd.Series) -> None:
    """y over x in the colour of each row's family: the same in every picture, whatever rows it shows of all."""
    own = families[x.index]
    for index, family in enumerate(sorted(families.unique())):
        of = own == family
        if of.any():
            colour, marker = _PALETTE[index % len(_PALETTE)], _MARKERS[index % len(_MARKERS)]
            label = f"{family} ({of.sum():,})"
            # More points hide each other, and take minutes to draw.
            shown = np.flatnonzero(of)[:: 1 + int(of.sum()) // _MAX_POINTS]
            axes.scatter(
                x.iloc[shown], y.iloc[shown], s=16, alpha=0.6, linewidths=0, color=colour, marker=marker, label=label
            )


def _plain_ticks(*these: Any) -> None:
    """30, 50, 100 instead of powers of ten, of which a narrow range holds one at most."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    for axis in these:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))

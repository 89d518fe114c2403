"""Charts that are logged with a model: where its held-out predictions are off, and which features matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from farm.charts.chart import Axis, Chart, Dashes, Floats, Panels, Scale, Series
from farm.charts.matplotlib_renderer import write_pngs
from farm.forest.physics import compulsory_bytes, flops_of
from trainer.evaluate import metrics
from trainer.table import vocabulary_of

_QUANTITIES = {"runtime_ms": ("runtime", "ms"), "runtime_burst_ms": ("burst time", "ms"), "power_w": ("power", "W")}
_BAND = 1.2
_MAX_POINTS = 20_000
"""Points of a family in a chart. More points hide each other, and take minutes to draw."""

_BINS = 12
_MAX_FEATURES = 20
_MIN_ERROR_PCT = 0.01
"""Errors below this are drawn at this value, because a logarithmic axis has no zero."""

_WORK = Axis(label="work of the GEMM", unit="GFLOP", scale=Scale.LOG)


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
    def targets(self) -> list[str]:
        """The targets that have a panel."""
        return [target for target in _QUANTITIES if self.shown(target).any()]

    def points(self, x: pd.Series, y: pd.Series) -> list[Series]:
        """y over x, one series for each family. A family has the same look in every chart."""
        families = self.configured["family"]
        found = []
        for look, family in enumerate(sorted(families.unique())):
            own = np.flatnonzero(families[x.index] == family)
            if len(own):
                kept = own[:: 1 + len(own) // _MAX_POINTS]
                name = f"{family} ({len(own):,})"
                found.append(Series(name=name, x=_floats(x.iloc[kept]), y=_floats(y.iloc[kept]), look=look, faint=True))
        return found


def plots(folder: Path, rows: HeldOutRows) -> None:
    """Writes every chart of held-out predictions as a PNG into the folder."""
    completed = vocabulary_of(rows.configured).complete(rows.configured)
    size = pd.Series(flops_of(completed) / 1e9, rows.configured.index)
    traffic = pd.Series(compulsory_bytes(completed), rows.configured.index)
    intensity = Axis(label="arithmetic intensity", unit="FLOP/byte", scale=Scale.LOG)
    bounded = [target for target in rows.targets if {f"{target}_low", f"{target}_high"} <= set(rows.predicted)]
    drawn = {
        "parity": _each(rows.targets, _parity(rows)),
        "error_by_flops": _each(rows.targets, _errors(rows, size, _WORK)),
        "error_by_intensity": _each(rows.targets, _errors(rows, 1e9 * size / traffic, intensity)),
        "interval_coverage": _each(bounded, _coverage(rows, size)),
    }
    title = f"{rows.device_type}: held-out shapes"
    write_pngs([Panels(name=name, title=title, charts=of, titled=True) for name, of in drawn.items() if of], folder)


def _each(targets: list[str], chart: Callable[[str], Chart]) -> tuple[Chart, ...]:
    return tuple(map(chart, targets))


def _parity(rows: HeldOutRows) -> Callable[[str], Chart]:
    """Predictions against measurements."""

    def chart(target: str) -> Chart:
        quantity, unit = _QUANTITIES[target]
        shown = rows.shown(target)
        measured, predicted = rows.measured[target][shown], rows.predicted[target][shown]
        ends = np.array([min(measured.min(), predicted.min()) / 1.15, max(measured.max(), predicted.max()) * 1.15])
        found, title = metrics(measured, predicted), quantity
        if found:
            title += f": median error {found['median_error_pct']:.1f} %, mean {found['mean_error_pct']:.1f} %"
        x = Axis(label=f"measured {quantity}", unit=unit, scale=Scale.LOG, limits=(float(ends[0]), float(ends[1])))
        equal = _line(f"equal, and a factor of {_BAND}", ends, ends, low=ends / _BAND, high=ends * _BAND, band=True)
        return _chart(
            target, title, x, replace(x, label=f"predicted {quantity}"), [*rows.points(measured, predicted), equal]
        )

    return chart


def _errors(rows: HeldOutRows, along: pd.Series, axis: Axis) -> Callable[[str], Chart]:
    """|predicted - measured| / measured along some number, with the running median."""

    def chart(target: str) -> Chart:
        shown = rows.shown(target)
        measured, predicted, x = rows.measured[target][shown], rows.predicted[target][shown], along[shown]
        error = (100 * (predicted - measured).abs() / measured).clip(lower=_MIN_ERROR_PCT)
        y = Axis(label=f"error of the predicted {_QUANTITIES[target][0]}", unit="%", scale=Scale.LOG)
        running = _line("median", *_binned(x, error, "median"))
        return _chart(target, _QUANTITIES[target][0], axis, y, [*rows.points(x, error), running])

    return chart


def _coverage(rows: HeldOutRows, size: pd.Series) -> Callable[[str], Chart]:
    """The share of measurements inside the predicted interval."""

    def chart(target: str) -> Chart:
        quantity, low, high = _QUANTITIES[target][0], rows.predicted[f"{target}_low"], rows.predicted[f"{target}_high"]
        shown = rows.measured[target].notna() & low.notna() & high.notna()
        inside = rows.measured[target].between(low, high)[shown].astype("float64") * 100
        middle, share = _binned(size[shown], inside, "mean")
        y = Axis(label=f"measured {quantity} inside its interval", unit="%", limits=(0, 100))
        series = [
            Series(name="rows of this size", x=middle, y=share, line=Dashes.SOLID),
            _line("all rows", middle, np.full(len(middle), inside.mean())),
        ]
        return _chart(target, f"{quantity}: {inside.mean():.0f} % of all rows", _WORK, y, series)

    return chart


def importance_plot(folder: Path, device_type: str, importance: Mapping[str, float]) -> None:
    """Writes `importance.png`: the features that matter most. Writes nothing if none are known."""
    if not importance:
        return
    most = sorted(importance.items(), key=lambda item: -item[1])[:_MAX_FEATURES]
    shares = np.array([100 * share for _, share in most])
    x = Axis(label="importance", unit="% of all features")
    y = Axis(label="feature", scale=Scale.NAMES, names=tuple(name for name, _ in most), downwards=True)
    bars = Series(name="importance", x=shares, y=np.arange(len(most), dtype="float64"), bars=True)
    write_pngs([_chart("importance", f"{device_type}: importance of features", x, y, [bars])], folder)


def _chart(name: str, title: str, x: Axis, y: Axis, series: list[Series]) -> Chart:
    return Chart(name=name, title=title, message=title, x=x, y=y, series=tuple(series))


def _line(
    name: str, x: Floats, y: Floats, *, low: Floats | None = None, high: Floats | None = None, band: bool = False
) -> Series:
    return Series(name=name, x=x, y=y, low=low, high=high, band=band, points=False, line=Dashes.SOLID, reference=True)


def _binned(x: pd.Series, y: pd.Series, how: str) -> tuple[Floats, Floats]:
    """A running number: y of rows with similar x, in bins with about the same number of rows."""
    bins = pd.qcut(x, min(_BINS, x.nunique()), duplicates="drop")
    return _floats(x.groupby(bins, observed=True).median()), _floats(y.groupby(bins, observed=True).agg(how))


def _floats(values: pd.Series) -> Floats:
    return values.to_numpy("float64")

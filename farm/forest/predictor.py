"""From raw columns to times, power, energy and rate: what a registered model computes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import BadFiles, Expected, read_arrays, require
from .burst import Bursts, inputs
from .card import Card
from .choice import Choices
from .columns import EXTENTS, OUTPUTS, types_columns
from .completed_rows import Configurations
from .described import FORMAT, WITHOUT_BATCH, WITHOUT_BURST, WITHOUT_SCALE, WITHOUT_WAITS, description_of
from .energy import Energies
from .features import Seen, see
from .numeric import Array, Bools, Floats
from .raw_values import is_table
from .reach import PROBLEM_NUMBERS, Measured, Reach
from .text_columns import Text
from .timing import Timing
from .trees import Grove, Trees
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import pandas as pd

RUNTIME = "runtime"
"""Target: ln(runtime_ms / reference time)."""

ROOFLINE = "roofline"
"""Target: ln(runtime_ms / roofline time). Its forest has a say in the runtime where there is one: the fitted reference is
better on new sizes, and the roofline, whose errors are others, between sizes that were measured densely."""

_SAY = 1 / 3

POWER = "power"
"""Target: ln(power_w / the power by fitted energies), or ln(power_w) where none were fitted (`farm.forest.energy`)."""

SLOWDOWN = "slowdown"
"""Target: ln(energy_mj / (power_w x runtime_ms)): how much longer a GEMM takes while its power is read, since a card that
its power limiter holds settles at lower clocks than those of the short timing."""

TARGETS = (RUNTIME, ROOFLINE, POWER, SLOWDOWN)

CLAIM = 0.9
"""The share of measurements that the intervals of a prediction claim to hold."""

BOUNDS = tuple(f"{output}_{bound}" for output in OUTPUTS for bound in ("low", "high"))
_BELOW_AND_ABOVE = np.array([[-1.0], [1.0]])
OUTSIDE = "outside"
"""The column with the reason why a row lies outside the measured problems."""

DISTANCE = "distance_octaves"
"""The column with the distance of a row to the nearest measured problem: see `reach`."""

UNMEASURED = "unmeasured"
"""In the names of intervals: of kernels that were never measured in a row's types."""

ROWS_AT_ONCE = 4096
"""Rows that are predicted together: their features stay in a core's caches."""

_WIDEST = float(np.log(100.0))
"""Of a half width: trees that agreed and were wrong on a few rows must not make bounds that no number holds."""


@dataclass(frozen=True)
class Interval:
    """How far a measurement may lie from a prediction, as a factor: normalised conformal prediction.

    The half width of the interval of an output, in logarithms, is quantile x (spread of the trees + floor) x `widening`, where
    the quantile of |residual| / ((spread + floor) x widening) is of rows whose shapes were held out (Papadopoulos et al.,
    ECML 2002; Lei et al., JASA 113, 2018).
    """

    floor: float
    # Claim -> quantile, at most 1 and above 0 as text: JSON has no other keys.
    quantiles: Mapping[str, float]

    def of(self, claim: float) -> tuple[float, float]:
        """Floor and quantile."""
        return self.floor, self.quantiles[f"{claim:g}"]


_NONE = (np.nan, np.nan)
"""In the place of the floor and quantile of an interval."""


def widening(distance: Floats) -> Floats:
    """How much wider intervals are by octaves to the nearest measured problem.

    Residuals over the spread of the trees grow by that, on the H200's rows of the domain (`benchmarks/outside.py`).
    """
    wider: Floats = 1.0 + np.square(distance / _DOUBLED)
    return wider


_DOUBLED = 4.5
"""Octaves at which intervals are twice as wide."""


Groups = Sequence[tuple[Sequence[str], Array | slice]]
"""The rows that have their intervals in common, with the names of these, the best first."""


def groups_of(kinds: Text, unmeasured: Bools) -> Groups:
    """Rows by family and types, "family:ab:cd:acc", and by whether their kernel was measured in these types."""
    if len(unmeasured) == 1:
        return [(_names(kinds.values[kinds.codes[0]], bool(unmeasured[0])), slice(None))]
    return [
        (_names(kind, new), np.flatnonzero((kinds.codes == code) & (unmeasured == new)))
        for code, kind in enumerate(kinds.values)
        for new in (False, True)
    ]


@cache
def _names(kind: str, unmeasured: bool) -> Sequence[str]:
    """Names of intervals, less the output: of family and types, of the family, of all."""
    names = (f" {kind}", f" {kind.split(':', 1)[0]}", "")
    return (*(f" {UNMEASURED}{name}" for name in names), *names) if unmeasured else names


def half_widths(
    intervals: Mapping[str, Interval],
    outputs: Sequence[str],
    groups: Groups,
    spreads: Floats,
    wider: Floats,
    claim: float,
) -> Floats:
    """Half widths of the intervals of each row, [outputs, rows] as the spreads, by the best that there is, `<output><name>`; NaN
    where there is none."""
    found = np.full(spreads.shape, np.nan)
    for names, own in groups:
        best = (
            next((intervals[key] for name in names if (key := output + name) in intervals), None) for output in outputs
        )
        floors, quantiles = np.array([_NONE if each is None else each.of(claim) for each in best]).T[..., None]
        found[:, own] = np.minimum((spreads[:, own] + floors) * wider[own] * quantiles, _WIDEST)
    return found


@dataclass(frozen=True)
class Predictor:
    """Forests for one device type, with the vocabulary and the card that give their numbers a meaning.

    `forests` maps the targets that a forest predicts together, such as ("power", "slowdown"), to its trees and `features` to
    what these look at. `intervals` has one for each output that was calibrated, as `<output> <family>` and
    `<output> <family>:<types>` those of families and types that had enough rows, and as `<output> unmeasured`, also with either
    of these behind it, those of kernels that were never measured in a row's types.
    """

    card: Card
    vocabulary: Vocabulary
    features: Sequence[str]
    forests: Mapping[tuple[str, ...], Trees]
    intervals: Mapping[str, Interval]
    # Share of each feature in what the runtime's trees tell apart (the decrease of the squared error).
    importance: Mapping[str, float]
    timing: Timing = field(default_factory=Timing.none)
    choices: Choices = field(default_factory=Choices.none)
    energies: Energies | None = None
    # The protocol of the rows, and what `runtime_ms` is by it: "burst", "settled", or None for another time.
    protocol: str = "unknown"
    time: str | None = None
    # Configurations with both times (None: not known), and what was learned from them, where they are enough.
    both_times: int | None = None
    bursts: Bursts | None = None

    @property
    def device_type(self) -> str:
        return self.card.device_type

    def predict(self, frame: Mapping[str, Any] | pd.DataFrame) -> pd.DataFrame:
        """`OUTPUTS`, `BOUNDS`, `DISTANCE` and `OUTSIDE` of each row, as `predicted` gives them; the index is that of the frame."""
        import pandas as pd

        found = pd.DataFrame(self.predicted(frame))
        if is_table(frame):
            found.index = frame.index
        return found

    def predicted(self, frame: Mapping[str, Any] | pd.DataFrame, *, claim: float = CLAIM) -> dict[str, Any]:
        """`OUTPUTS` of each row with the bounds that hold a measurement with the probability that is claimed, how far the row lies
        from the nearest measured problem, and why it lies outside what was measured.

        `frame` is a table, or a mapping of columns to sequences. Power and energy are NaN where no power was learned of such rows,
        the burst time where no such was, and bounds where no interval was calibrated. Energy is power x time x slowdown and the rate
        is flops / time, so they never contradict one another. Raises ValueError for rows that the model cannot know; see `Vocabulary.complete`.
        """
        rows = self.vocabulary.complete(frame)
        parts = [self._predicted(part, claim) for part in rows.parts(ROWS_AT_ONCE)]
        if len(parts) == 1:
            return parts[0]
        numbers = (*OUTPUTS, *BOUNDS, DISTANCE)
        found: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in numbers}
        return {**found, OUTSIDE: [reason for part in parts for reason in part[OUTSIDE]]}

    def _predicted(self, rows: Configurations, claim: float) -> dict[str, Any]:
        seen = self.see(rows)
        found, spreads = self.outputs(rows, seen)
        reach = self.reach(rows)
        groups, wider = groups_of(reach.kinds, reach.unmeasured), widening(reach.distance)
        half = half_widths(self.intervals, tuple(spreads), groups, np.array(list(spreads.values())), wider, claim)
        bounds = np.array(list(found.values()))[:, None] * np.exp(half[:, None] * _BELOW_AND_ABOVE)
        found |= zip(BOUNDS, bounds.reshape(len(BOUNDS), -1), strict=True)
        return {**found, DISTANCE: reach.distance, OUTSIDE: reach.outside}

    def reach(self, rows: Configurations) -> Reach:
        """How far completed rows lie from what was measured."""
        return self._measured.reach(rows, self.vocabulary)

    @cached_property
    def _measured(self) -> Measured:
        return Measured.of(self.vocabulary)

    def see(self, rows: Configurations) -> Seen:
        """The features of completed rows, and their reference times."""
        return see(rows, self.vocabulary, self.card, self.timing, self.choices)

    def outputs(self, rows: Configurations, seen: Seen) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """`OUTPUTS` of each row, and how far the logarithms of each spread over the trees.

        Power and energy are NaN where none was measured of a row's family and types: the power of other kernels does not apply. A
        power is never above the card's limit.
        """
        x = seen.matrix(self.features)
        logs, spreads = self._targets(x, seen)
        runtime_ms = np.exp(logs[RUNTIME]) * seen.reference_ms
        reference_w = 1.0 if self.energies is None else self.energies.power_w(seen.efforts, runtime_ms, self.card)
        power_w = np.where(self.vocabulary.powered(rows), np.exp(logs[POWER]) * reference_w, np.nan)
        if self.card.power_w > 0:
            power_w = np.minimum(power_w, self.card.power_w)
        burst_ms, apart = self._burst(rows, x, seen, runtime_ms, spreads[RUNTIME])
        outputs = {
            "runtime_ms": runtime_ms,
            "runtime_burst_ms": burst_ms,
            "power_w": power_w,
            "energy_mj": power_w * runtime_ms * np.exp(logs[SLOWDOWN]),
            "tflops": seen.flops / runtime_ms / 1e9,
        }
        # Time and power come from forests of their own: their errors are taken as independent.
        time = spreads[RUNTIME]
        energy = np.sqrt(time**2 + spreads[POWER] ** 2 + spreads[SLOWDOWN] ** 2)
        return outputs, {
            "runtime_ms": time,
            "runtime_burst_ms": apart,
            "power_w": spreads[POWER],
            "energy_mj": energy,
            "tflops": time,
        }

    def _burst(
        self, rows: Configurations, x: Array, seen: Seen, runtime_ms: Floats, spread: Floats
    ) -> tuple[Floats, Floats]:
        """The burst time of each row and its spread; NaN where it is not known."""
        if self.time == "burst":
            return runtime_ms, spread
        if self.bursts is None:
            nothing = np.full(len(runtime_ms), np.nan)
            return nothing, nothing
        log_ratio, apart = self.bursts.log_ratio(inputs(x, seen, self.energies, self.card), rows.kinds)
        return runtime_ms * np.exp(log_ratio), np.sqrt(spread**2 + apart**2)

    @cached_property
    def _grove(self) -> Grove:
        return Grove.of(list(self.forests.values()))

    def _targets(self, x: Array, seen: Seen) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Mean and spread of each target by the features [rows, features]; NaN where none was learned."""
        nothing = np.full(len(x), np.nan)
        means, spreads = dict.fromkeys(TARGETS, nothing), dict.fromkeys(TARGETS, nothing)
        learned = [target for targets in self.forests for target in targets]
        found, apart = self._grove.predict(x)
        means |= zip(learned, found, strict=True)
        spreads |= zip(learned, apart, strict=True)
        if ROOFLINE in learned:
            other = means[ROOFLINE] + np.log(seen.roofline_ms / seen.reference_ms)
            apart_by = means[RUNTIME] - other
            within = (1 - _SAY) * spreads[RUNTIME] ** 2 + _SAY * spreads[ROOFLINE] ** 2
            spreads[RUNTIME] = np.sqrt(within + _SAY * (1 - _SAY) * apart_by**2)
            means[RUNTIME] = means[RUNTIME] - _SAY * apart_by
        return means, spreads

    def known(self, frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have a family, types, scale factors, fused operations, groups or none, and a layout that the model was trained on
        together, and no batch if it learned none."""
        families, types = list(self.vocabulary.families), list(self.vocabulary.usual_output)
        named = (frame["family"].isin(families) & frame["ab"].isin(types)).to_numpy()
        found = np.zeros(len(frame), dtype=bool)
        if named.any():
            found[named] = self.vocabulary.known(self.vocabulary.read(frame[named]))
        return found

    def save(self, folder: Path) -> None:
        """Writes `model.json`, the constants of kernels' times, the kernels of libraries, the measured problems, and one `.npz` for
        each forest, with that of the burst time where it has one."""
        folder.mkdir(parents=True, exist_ok=True)
        description: dict[str, Any] = {
            "format": FORMAT,
            "card": self.card.to_json(),
            "vocabulary": self.vocabulary.to_json(),
            "features": list(self.features),
            "forests": [list(targets) for targets in self.forests],
            "intervals": {
                output: {"floor": interval.floor, "quantiles": dict(interval.quantiles)}
                for output, interval in self.intervals.items()
            },
            "importance": dict(self.importance),
            "energies": None if self.energies is None else self.energies.to_json(),
            "protocol": self.protocol,
            "time": self.time,
            "both_times": self.both_times,
            "burst_kinds": None if self.bursts is None else list(self.bursts.kinds),
        }
        # Not sorted: kernels have the order of their family's parameters.
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
        self.timing.save(folder / _TIMING)
        self.choices.save(folder / _CHOICES)
        problems = self.vocabulary.problems
        np.savez_compressed(
            folder / _PROBLEMS,
            kinds=np.array(list(problems), "U"),
            counts=np.array([len(each) for each in problems.values()], "int64"),
            problems=np.concatenate([np.empty((0, PROBLEM_NUMBERS), "int64"), *problems.values()]),
        )
        for targets, trees in self.forests.items():
            trees.save(folder / _file_of(targets))
        if self.bursts is not None:
            self.bursts.trees.save(folder / _BURST)

    @classmethod
    def load(cls, folder: Path) -> Predictor:
        """The model in that folder. Raises `BadFiles`."""
        return cls.read({path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".npz")})

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> Predictor:
        """The model of these files, which `save` wrote; others are left alone. Raises `BadFiles`.

        Nothing of them is run. What they say is checked so that a prediction ends, and reads nothing but what is theirs.
        """

        def content(name: str) -> bytes:
            require(name in files, f"{name} is missing")
            return files[name]

        described = description_of(content(DESCRIPTION))
        features, learned = tuple(described["features"]), [tuple(targets) for targets in described["forests"]]
        targets = [target for each in learned for target in each]
        require(all(learned) and RUNTIME in targets, f"{DESCRIPTION}: no forest learned the {RUNTIME}")
        require(len(set(targets)) == len(targets) and set(targets) <= set(TARGETS), f"{DESCRIPTION}: unknown targets")
        intervals = {output: Interval(**interval) for output, interval in described["intervals"].items()}
        require(
            [f"{CLAIM:g}" in each.quantiles for each in intervals.values()], f"{DESCRIPTION}: no interval of {CLAIM}"
        )
        forests = {
            each: Trees.read(content(_file_of(each)), _file_of(each), features=len(features), outputs=len(each))
            for each in learned
        }
        bursts = None
        if described["burst_kinds"] is not None:
            # It looks at the overload too.
            trees = Trees.read(content(_BURST), _BURST, features=len(features) + 1, outputs=1)
            bursts = Bursts(trees, tuple(described["burst_kinds"]))
        made = cls(
            Card.from_json(described["card"]),
            Vocabulary.from_json(described["vocabulary"], _problems(content(_PROBLEMS), described["format"])),
            features,
            forests,
            intervals,
            described["importance"],
            Timing.read(content(_TIMING), _TIMING, waits=described["format"] > WITHOUT_WAITS),
            Choices.read(content(_CHOICES), _CHOICES),
            None if described["energies"] is None else Energies.from_json(described["energies"]),
            described["protocol"],
            described["time"],
            described["both_times"],
            bursts,
        )
        made._check()
        return made

    def _check(self) -> None:
        """Predicts a row that the model must know. Raises `BadFiles` where its files contradict themselves."""
        family, known = next(iter(self.vocabulary.families.items()))
        require(known.layouts and all(known.layouts.values()), f"{DESCRIPTION}: {family} was measured in nothing")
        types, layouts = next(iter(known.layouts.items()))
        try:
            row = {**types_columns(types, _EXTENT), "layout": layouts[0], "family": family}
            self.predicted({**{name: [_EXTENT] for name in EXTENTS}, **{name: [value] for name, value in row.items()}})
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise BadFiles(f"{DESCRIPTION}: the model cannot predict what it knows: {error}") from error


def _problems(content: bytes, number: int) -> dict[str, Array]:
    """The measured problems of a model of format `number`, by family and types. Raises `BadFiles`."""
    stored = _STORED_NUMBERS.get(number, PROBLEM_NUMBERS)
    expected = {
        "kinds": Expected("U", (None,)),
        "counts": Expected("<i8", (None,)),
        "problems": Expected("<i8", (None, stored)),
    }
    found = read_arrays(content, _PROBLEMS, expected)
    kinds, counts, problems = found["kinds"].tolist(), found["counts"], found["problems"]
    require(len(set(kinds)) == len(kinds) == len(counts), f"{_PROBLEMS}: kinds and counts are not of one number")
    require((counts >= 0) & (counts <= len(problems)), f"{_PROBLEMS}: counts of problems that are not there")
    require(sum(counts.tolist()) == len(problems), f"{_PROBLEMS}: counts of problems that are not there")
    require(problems >= 1, f"{_PROBLEMS}: a problem without extents")
    problems = np.pad(problems, ((0, 0), (0, PROBLEM_NUMBERS - stored)), constant_values=1)
    return dict(zip(kinds, np.split(problems, np.cumsum(counts)[:-1]), strict=True)) if kinds else {}


_STORED_NUMBERS = {WITHOUT_BURST: 6, WITHOUT_BATCH: 6, WITHOUT_SCALE: 7}
"""Numbers that older formats have of a problem: the last ones, of the batch and of groups, came later."""

_EXTENT = 1024
"""m, n and k of the row that a model is tried with."""

DESCRIPTION = "model.json"
_TIMING, _CHOICES, _PROBLEMS, _BURST = "timing.npz", "choices.npz", "problems.npz", "burst.npz"


def _file_of(targets: tuple[str, ...] | list[str]) -> str:
    return f"{'-'.join(targets)}.npz"

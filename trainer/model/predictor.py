"""From raw columns to runtime, power, energy and rate: what a registered model computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .columns import OUTPUTS, Vocabulary
from .features import features
from .physics import Roofline, flops
from .trees import Trees

FORMAT = 2
"""Of `model.json` and the arrays beside it."""

RUNTIME = "runtime"
"""Target: ln(runtime_ms / roofline time)."""

POWER = "power"
"""Target: ln(power_w)."""

SLOWDOWN = "slowdown"
"""Target: ln(energy_mj / (power_w x runtime_ms)): how much longer a GEMM takes while its power is read, since a card that
its power limiter holds settles at lower clocks than those of the short timing."""


@dataclass(frozen=True)
class Predictor:
    """Forests for one device type, with the vocabulary and the roofline that give their numbers a meaning.

    `forests` maps the targets that a forest predicts together, such as ("power", "slowdown"), to its trees.
    """

    device_type: str
    vocabulary: Vocabulary
    roofline: Roofline
    forests: Mapping[tuple[str, ...], Trees]

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """runtime_ms, power_w, energy_mj and tflops of each row; power and energy are NaN where no power was learned.

        Energy is power x time x slowdown and the rate is flops / time, so the four never contradict one another.
        Raises ValueError for rows that the model cannot know; see `Vocabulary.complete`.
        """
        complete = self.vocabulary.complete(frame)
        _, x = features(complete, self.vocabulary)
        found = {target: np.full(len(x), np.nan) for target in (RUNTIME, POWER, SLOWDOWN)}
        for targets, trees in self.forests.items():
            predicted = trees.predict(x)
            found.update({target: predicted[:, column] for column, target in enumerate(targets)})
        runtime_ms = np.exp(found[RUNTIME]) * self.roofline.time_ms(complete, self.vocabulary.element_bytes)
        power_w = np.exp(found[POWER])
        results = {
            "runtime_ms": runtime_ms,
            "power_w": power_w,
            "energy_mj": power_w * runtime_ms * np.exp(found[SLOWDOWN]),
            "tflops": flops(complete).to_numpy() / runtime_ms / 1e9,
        }
        return pd.DataFrame(results, index=frame.index, columns=list(OUTPUTS))

    def save(self, folder: Path) -> None:
        """Writes `model.json` and one `.npz` for each forest."""
        folder.mkdir(parents=True, exist_ok=True)
        description: dict[str, Any] = {
            "format": FORMAT,
            "device_type": self.device_type,
            "vocabulary": self.vocabulary.to_json(),
            "roofline": self.roofline.to_json(),
            "forests": [list(targets) for targets in self.forests],
        }
        (folder / "model.json").write_text(json.dumps(description, indent=1, sort_keys=True), encoding="utf-8")
        for targets, trees in self.forests.items():
            trees.save(folder / _file_of(targets))

    @classmethod
    def load(cls, folder: Path) -> Predictor:
        description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if description["format"] != FORMAT:
            raise ValueError(f"{folder} holds a model of format {description['format']}; this code reads {FORMAT}")
        return cls(
            description["device_type"],
            Vocabulary.from_json(description["vocabulary"]),
            Roofline.from_json(description["roofline"]),
            {tuple(targets): Trees.load(folder / _file_of(targets)) for targets in description["forests"]},
        )


def _file_of(targets: tuple[str, ...] | list[str]) -> str:
    return f"{'-'.join(targets)}.npz"

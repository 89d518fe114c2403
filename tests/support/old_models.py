"""Stored models as older versions of the farm wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from farm.forest.described import WITHOUT_BATCH, WITHOUT_SCALE, WITHOUT_WAITS
from farm.forest.predictor import DESCRIPTION

_PROBLEMS = "problems.npz"
_TIMING = "timing.npz"
_CONSTANTS = 13
"""Constants of kernels' times before waits."""


def as_format(folder: Path, number: int) -> None:
    """Turns a stored model into one of an older format: from before waits of kernels, up to 8 from before models knew a sparse B and weights
    of fewer bits, up to 7 from before scale factors and groups, and up to 6 from before batches."""
    described = json.loads((folder / DESCRIPTION).read_text())
    with np.load(folder / _TIMING) as stored:
        np.savez_compressed(folder / _TIMING, keys=stored["keys"], logs=stored["logs"][:, :_CONSTANTS])
    if number == WITHOUT_WAITS:
        (folder / DESCRIPTION).write_text(json.dumps(described | {"format": number}))
        return
    del described["vocabulary"]["bytes_of_b"]
    if number > WITHOUT_SCALE:
        (folder / DESCRIPTION).write_text(json.dumps(described | {"format": number}))
        return
    vocabulary = described["vocabulary"]
    del vocabulary["scales"], vocabulary["fusions"]
    numbers = 7
    if number <= WITHOUT_BATCH:
        numbers = 6
        for family in vocabulary["families"].values():
            del family["batched"]
    with np.load(folder / _PROBLEMS) as stored:
        arrays = dict(stored)
    np.savez_compressed(folder / _PROBLEMS, **arrays | {"problems": arrays["problems"][:, :numbers]})
    (folder / DESCRIPTION).write_text(json.dumps(described | {"format": number}))

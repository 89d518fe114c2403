"""Stored models as older versions of the farm wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from farm.forest.predictor import DESCRIPTION

_PROBLEMS = "problems.npz"


def before_batches(folder: Path, number: int) -> None:
    """Turns a stored model into one of the format `number`, from before models knew batches."""
    described = json.loads((folder / DESCRIPTION).read_text())
    for family in described["vocabulary"]["families"].values():
        del family["batched"]
    (folder / DESCRIPTION).write_text(json.dumps(described | {"format": number}))
    with np.load(folder / _PROBLEMS) as stored:
        arrays = dict(stored)
    np.savez_compressed(folder / _PROBLEMS, **arrays | {"problems": arrays["problems"][:, :-1]})

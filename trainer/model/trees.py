"""A fitted forest as plain arrays: stored without pickles, read by any version of anything, quick for a single row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_LANES = 1 << 17
"""Tree walks taken at once (rows x trees). At about 20 bytes each they stay in a core's caches."""

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees, one after another. A leaf is its own left and right child.

    roots [trees], feature, threshold, left, right [nodes], value [nodes, outputs]; `depth` steps reach every leaf.
    A row goes left where its feature is at most the threshold, as in scikit-learn.
    """

    roots: _Array
    feature: _Array
    threshold: _Array
    left: _Array
    right: _Array
    value: _Array
    depth: int

    def predict(self, x: _Array) -> _Array:
        """The mean over the trees: [rows, features] float32 -> [rows, outputs] float64."""
        at_once = max(1, _LANES // len(self.roots))
        parts = [self._walk(x[start : start + at_once]) for start in range(0, len(x), at_once)]
        return np.concatenate(parts) if parts else np.empty((0, self.value.shape[1]))

    def _walk(self, x: _Array) -> _Array:
        rows, width = x.shape
        flat = np.ascontiguousarray(x).ravel()
        start = np.repeat(np.arange(rows, dtype=np.int64) * width, len(self.roots))
        node = np.tile(self.roots, rows)
        for _ in range(self.depth):
            goes_left = flat[start + self.feature[node]] <= self.threshold[node]
            node = np.where(goes_left, self.left[node], self.right[node])
        mean: _Array = self.value[node].reshape(rows, len(self.roots), -1).mean(axis=1, dtype="float64")
        return mean

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            roots=self.roots,
            feature=self.feature,
            threshold=self.threshold,
            left=self.left,
            right=self.right,
            value=self.value,
            depth=np.int64(self.depth),
        )

    @classmethod
    def load(cls, path: Path) -> Trees:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return cls(**{**arrays, "depth": int(arrays["depth"])})

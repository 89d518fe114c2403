"""A fitted forest as plain arrays: stored without pickles, read by any version of anything, quick for a single row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_LANES = 1 << 15
"""Tree walks taken at once (rows x trees). At about 40 bytes each they stay in a core's caches."""

_STEPS_BETWEEN = 4
"""Steps after which walks that reached a leaf are put aside: looking for them costs about as much as a step."""

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees, one after another; the right child of a node follows its left one, and a leaf is its own.

    roots [trees], feature, threshold, left [nodes], value [nodes, outputs]; `depth` steps reach every leaf. A row goes left
    where its feature is at most the threshold, as in scikit-learn. A leaf's threshold is infinite: a walk stays there.
    """

    roots: _Array
    feature: _Array
    threshold: _Array
    left: _Array
    value: _Array
    depth: int

    def predict(self, x: _Array) -> tuple[_Array, _Array]:
        """Mean and standard deviation over the trees: [rows, features] float32 -> twice [rows, outputs] float64."""
        rows, outputs = len(x), self.value.shape[1]
        mean, spread = np.empty((rows, outputs)), np.empty((rows, outputs))
        at_once = max(1, _LANES // len(self.roots))
        for start in range(0, rows, at_once):
            part = x[start : start + at_once]
            found = self.value[self._leaves(part)].reshape(len(part), len(self.roots), outputs)
            mean[start : start + at_once] = found.mean(axis=1, dtype="float64")
            spread[start : start + at_once] = found.std(axis=1, dtype="float64")
        return mean, spread

    def _leaves(self, x: _Array) -> _Array:
        """The leaf of each row in each tree, the trees of a row side by side."""
        rows, width = x.shape
        flat = np.ascontiguousarray(x).ravel()
        start = np.repeat(np.arange(rows, dtype=np.intp) * width, len(self.roots))
        node = np.tile(self.roots.astype(np.intp), rows)
        leaves, lane = node, None
        for step in range(1, self.depth + 1):
            right = flat[start + self.feature[node]] > self.threshold[node]
            node = self.left[node] + right
            if step % _STEPS_BETWEEN == 0 and step < self.depth:
                moves = np.flatnonzero(self.left[node] != node)
                if not len(moves):
                    break
                if 2 * len(moves) < len(node):
                    if lane is None:
                        leaves, lane = node, moves
                    else:
                        leaves[lane] = node
                        lane = lane[moves]
                    node, start = node[moves], start[moves]
        if lane is None:
            return node
        leaves[lane] = node
        return leaves

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            roots=self.roots,
            feature=self.feature,
            threshold=self.threshold,
            left=self.left,
            value=self.value,
            depth=np.int64(self.depth),
        )

    @classmethod
    def load(cls, path: Path) -> Trees:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return cls(**{**arrays, "depth": int(arrays["depth"])})

"""A fitted forest as plain arrays: stored without pickles, read by any version of anything, quick for a single row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
        return Grove.of([self]).predict(x)[0]

    def leaves(self, x: _Array) -> _Array:
        """The leaf of each row in each tree: [rows x trees], the trees of a row side by side."""
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


@dataclass(frozen=True)
class Grove:
    """Forests that look at the same features. Their trees are walked at the same time, which for few rows takes half as long."""

    trees: Trees
    # Of each forest: its trees and its outputs, as slices of those of `trees`.
    parts: tuple[tuple[slice, slice], ...]

    @classmethod
    def of(cls, forests: Sequence[Trees]) -> Grove:
        nodes, roots, outputs = (
            np.cumsum([0, *counts]).tolist()
            for counts in zip(
                *((len(each.left), len(each.roots), each.value.shape[1]) for each in forests), strict=True
            )
        )
        value = np.zeros((nodes[-1], outputs[-1]), "float32")
        for each, (at, until), (column, last) in zip(forests, pairwise(nodes), pairwise(outputs), strict=True):
            value[at:until, column:last] = each.value
        trees = Trees(
            roots=np.concatenate([each.roots + at for each, at in zip(forests, nodes[:-1], strict=True)]),
            feature=np.concatenate([each.feature for each in forests]),
            threshold=np.concatenate([each.threshold for each in forests]),
            left=np.concatenate([each.left + at for each, at in zip(forests, nodes[:-1], strict=True)]),
            value=value,
            depth=max(each.depth for each in forests),
        )
        parts = zip(
            (slice(*pair) for pair in pairwise(roots)), (slice(*pair) for pair in pairwise(outputs)), strict=True
        )
        return cls(trees, tuple(parts))

    def predict(self, x: _Array) -> list[tuple[_Array, _Array]]:
        """For each forest what `Trees.predict` gives."""
        found = [
            (np.empty((len(x), columns.stop - columns.start)), np.empty((len(x), columns.stop - columns.start)))
            for _, columns in self.parts
        ]
        count = len(self.trees.roots)
        at_once = max(1, _LANES // count)
        for start in range(0, len(x), at_once):
            rows = slice(start, start + at_once)
            leaves = self.trees.leaves(x[rows]).reshape(-1, count)
            for (mean, spread), (own, columns) in zip(found, self.parts, strict=True):
                values = self.trees.value[leaves[:, own], columns].astype("float64")
                mean[rows], spread[rows] = values.mean(axis=1), values.std(axis=1)
        return found

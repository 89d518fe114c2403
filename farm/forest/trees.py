"""A fitted forest as plain arrays: stored without pickles, read by any version of anything, quick for a single row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import Expected, read_arrays, require

_LANES = 1 << 14
"""Tree walks taken at once (rows x trees): what they look at stays in a core's caches."""

_STEPS_BETWEEN = 4
"""Steps after which walks that reached a leaf are put aside: looking for them costs half a step."""

_MIN_ASIDE = 256
"""Walks below which none are put aside: that would take longer than to walk on."""

_MIDDLE = 0.5
"""Share of the trees, those in the middle, whose mean is a forest's answer: a tree that fell into a wrong leaf is far off."""

_MAX_DEPTH = 4096
"""Steps that a walk may take: trees of random thresholds on a million rows have fewer than a hundred."""

_ARRAYS = {
    "roots": Expected("<i4", (None,)),
    "feature": Expected("<i2", (None,)),
    "threshold": Expected("<f4", (None,)),
    "left": Expected("<i4", (None,)),
    "depth": Expected("<i8"),
}

_NODE = np.dtype([("threshold", "f4"), ("feature", "i4"), ("left", "i8")])
_WHOLE_NODE = np.dtype("c16")
"""Of the same size: numpy gathers numbers several times as fast as records."""

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
    def read(cls, content: bytes, name: str, *, features: int, outputs: int) -> Trees:
        """Reads what `save` wrote. Raises `BadFiles` unless every walk ends in a leaf, for every row."""
        arrays = read_arrays(content, name, {**_ARRAYS, "value": Expected("<f4", (None, outputs))})
        depth = int(arrays.pop("depth"))
        made = cls(**arrays, depth=depth)
        made._check(name, features)
        return made

    def _check(self, name: str, features: int) -> None:
        nodes = len(self.left)
        require(len(self.roots) >= 1, f"{name} has no trees")
        require(
            {len(self.feature), len(self.threshold), len(self.value)} == {nodes}, f"{name}: nodes are not of one number"
        )
        require((self.roots >= 0) & (self.roots < nodes), f"{name}: a root is no node")
        require((self.feature >= 0) & (self.feature < features), f"{name}: a node asks for a feature that there is not")
        own = np.arange(nodes)
        leaf = self.left == own
        # Children come after their parent, so that no walk goes in circles; and a walk stays in its leaf.
        require(
            leaf | ((self.left > own) & (self.left < nodes - 1)), f"{name}: a node's children are no nodes below it"
        )
        require(np.where(leaf, self.threshold == np.inf, np.isfinite(self.threshold)), f"{name}: bad thresholds")
        require(np.isfinite(self.value), f"{name}: a leaf's value is no number")
        require(0 <= self.depth <= min(nodes, _MAX_DEPTH), f"{name}: trees are not so deep")


@dataclass(frozen=True)
class _Forest:
    """One of a grove: which trees and outputs are its own, its first node, and its values [outputs, nodes] in float64."""

    trees: slice
    outputs: slice
    first: int
    value: _Array


@dataclass(frozen=True)
class Grove:
    """Forests that look at the same features. Their trees are walked at the same time, which for few rows takes half as long.

    roots [trees], nodes [nodes]: what a step needs of a node lies side by side.
    """

    roots: _Array
    nodes: _Array
    depth: int
    forests: tuple[_Forest, ...]

    @classmethod
    def of(cls, forests: Sequence[Trees]) -> Grove:
        counts = [(len(each.left), len(each.roots), each.value.shape[1]) for each in forests]
        bounds = pairwise(np.cumsum([(0, 0, 0), *counts], axis=0).tolist())
        roots, nodes, parts = [], [], []
        for each, ((first, tree, output), (_, last_tree, last_output)) in zip(forests, bounds, strict=True):
            own = np.empty(len(each.left), _NODE)
            own["threshold"], own["feature"], own["left"] = each.threshold, each.feature, each.left.astype("i8") + first
            value = np.ascontiguousarray(each.value.T, "float64")
            parts.append(_Forest(slice(tree, last_tree), slice(output, last_output), first, value))
            roots.append(each.roots.astype("i8") + first)
            nodes.append(own.view(_WHOLE_NODE))
        return cls(np.concatenate(roots), np.concatenate(nodes), max(each.depth for each in forests), tuple(parts))

    def predict(self, x: _Array) -> tuple[_Array, _Array]:
        """The mean of the middle half of the trees of each forest, and the standard deviation over all of them:
        [rows, features] float32 -> twice [outputs, rows] float64, the outputs of the forests one after another."""
        means, spreads = np.empty((2, self.forests[-1].outputs.stop, len(x)))
        at_once = max(1, _LANES // len(self.roots))
        for start in range(0, len(x), at_once):
            rows = slice(start, start + at_once)
            leaves = self._leaves(x[rows])
            for each in self.forests:
                values = each.value.take(leaves[each.trees] - each.first, axis=1)
                count = values.shape[1]
                aside = int(count * (1 - _MIDDLE) / 2)
                apart = values - np.add.reduce(values, axis=1, keepdims=True) / count
                values.sort(axis=1)
                mean, spread = means[each.outputs, rows], spreads[each.outputs, rows]
                np.divide(np.add.reduce(values[:, aside : count - aside], axis=1), count - 2 * aside, out=mean)
                np.divide(np.add.reduce(apart * apart, axis=1), count, out=spread)
        return means, np.sqrt(spreads, out=spreads)

    def _leaves(self, x: _Array) -> _Array:
        """The leaf of each row in each tree, [trees, rows]."""
        rows, width = x.shape
        flat = np.ascontiguousarray(x).ravel()
        node = self.roots.repeat(rows)
        # Where the row of each walk starts, which is needed where there is more than one.
        start = np.tile(np.arange(0, rows * width, width), len(self.roots)) if rows > 1 else None
        leaves, lane = node, None
        whole, value, right = (np.empty(len(node), kind) for kind in (_WHOLE_NODE, "f4", bool))
        threshold, feature, left = _parts(whole)
        place = np.empty_like(node)
        for step in range(self.depth):
            self.nodes.take(node, out=whole, mode="clip")  # any other mode has `out` copied
            if step and step % _STEPS_BETWEEN == 0:
                moving = left != node
                count = np.count_nonzero(moving)
                if not count:
                    break
                if start is not None and len(node) >= _MIN_ASIDE and 4 * count < 3 * len(node):
                    moves = np.flatnonzero(moving)
                    if lane is None:
                        leaves, lane = node, moves
                    else:
                        leaves[lane] = node
                        lane = lane[moves]
                    node, start, whole = node[moves], start[moves], whole[moves]
                    place, value, right = (each[:count] for each in (place, value, right))
                    threshold, feature, left = _parts(whole)
            at = feature if start is None else np.add(start, feature, out=place)
            flat.take(at, out=value, mode="clip")
            np.greater(value, threshold, out=right)
            np.add(left, right, out=node)
        if lane is None:
            return node.reshape(len(self.roots), rows)
        leaves[lane] = node
        return leaves.reshape(len(self.roots), rows)


def _parts(whole: _Array) -> tuple[_Array, _Array, _Array]:
    """Thresholds, features and left children of nodes, as views of them."""
    nodes = whole.view(_NODE)
    return nodes["threshold"], nodes["feature"], nodes["left"]

"""What a forest sees of a configuration: sizes, traffic, alignment, and how the kernel's tiles cover the problem.

Sizes are logarithms, so that a tree's threshold means a ratio. A feature that a family does not have is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .columns import Vocabulary
from .physics import compulsory_bytes, flops

_WIDEST_ALIGNMENT = 8
"""Alignment is counted to 2^8 elements: wider than any vector load or tile edge that a kernel can profit from."""


def features(frame: pd.DataFrame, vocabulary: Vocabulary) -> tuple[list[str], np.ndarray[Any, np.dtype[np.float32]]]:
    """The names of the features, and a matrix [rows, features] for a completed frame.

    float32 is what scikit-learn's trees compare with, so training and prediction see the same numbers.
    """
    columns = {
        **_sizes(frame, vocabulary),
        **{f"align_{name}": _alignment(frame[name]) for name in ("m", "n", "k")},
        **_kinds(frame, vocabulary),
        **{name: frame[name].fillna(0.0) for name in vocabulary.parameters if _trained(name, vocabulary)},
        **_tiling(frame),
        **_parallelism(frame),
    }
    return list(columns), np.column_stack([np.asarray(column, dtype="float32") for column in columns.values()])


def _trained(parameter: str, vocabulary: Vocabulary) -> bool:
    return any(parameter in family.parameters for family in vocabulary.families.values())


def _sizes(frame: pd.DataFrame, vocabulary: Vocabulary) -> dict[str, Any]:
    work, traffic = flops(frame), compulsory_bytes(frame, vocabulary.element_bytes)
    logs = {name: np.log2(frame[name]) for name in ("m", "n", "k")}
    return {
        **{f"log2_{name}": value for name, value in logs.items()},
        "log2_flops": np.log2(work),
        "log2_bytes": np.log2(traffic),
        "log2_intensity": np.log2(work / traffic),
        "log2_outputs": logs["m"] + logs["n"],
        "log2_aspect": logs["m"] - logs["n"],
        "log2_depth": logs["k"] - (logs["m"] + logs["n"]) / 2,
    }


def _alignment(extent: pd.Series) -> Any:
    """log2 of the largest power of two that divides the extent, at most `_WIDEST_ALIGNMENT`."""
    whole = extent.to_numpy("int64") | (1 << _WIDEST_ALIGNMENT)
    return np.log2(whole & -whole)


def _kinds(frame: pd.DataFrame, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        **{f"is_{family}": frame["family"] == family for family in vocabulary.families},
        **{f"ab_is_{ab}": frame["ab"] == ab for ab in vocabulary.usual_output},
        "ab_bytes": frame["ab"].map(vocabulary.element_bytes),
        "cd_bytes": frame["cd"].map(vocabulary.element_bytes),
        "acc_bytes": frame["acc"].map(vocabulary.element_bytes),
        "a_transposed": frame["layout"].str[0] == "t",
        "b_transposed": frame["layout"].str[1] == "t",
        "reads_c": frame["beta"] != 0,
    }


def _tiling(frame: pd.DataFrame) -> dict[str, Any]:
    """How blocks cover the problem: how many there are, what share of their work is padding, and their K loop."""
    edge = _parameter(frame, "tile")
    rows, columns, depth = (_parameter(frame, f"tile_{axis}").fillna(edge) for axis in "mnk")
    slices = _parameter(frame, "split_k").fillna(1.0)
    block_rows, block_columns = np.ceil(frame["m"] / rows), np.ceil(frame["n"] / columns)
    steps = np.ceil(frame["k"] / slices / depth)
    tiling = {
        "log2_blocks": np.log2(block_rows * block_columns * slices),
        "log2_steps": np.log2(steps),
        "padding_m": block_rows * rows / frame["m"],
        "padding_n": block_columns * columns / frame["n"],
        "padding_k": steps * depth * slices / frame["k"],
        # flops per byte that one block loads: what a tile saves in traffic.
        "tile_intensity": rows * columns / (rows + columns),
    }
    return {name: value.fillna(0.0) for name, value in tiling.items()}


def _parallelism(frame: pd.DataFrame) -> dict[str, Any]:
    per_thread = flops(frame) / _parameter(frame, "threads")
    return {"log2_flops_per_thread": np.log2(per_thread.fillna(1.0))}


def _parameter(frame: pd.DataFrame, name: str) -> pd.Series:
    if name in frame:
        return frame[name]
    return pd.Series(np.nan, index=frame.index, dtype="float64")

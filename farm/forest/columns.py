"""The raw columns that a model takes, and the numbers that follow from them.

One row is one configuration. `m, n, k, ab, family` are required. `cd, acc, layout, alpha, beta, batch, scale, fused,
groups, sparsity` have the defaults of the farm's own configurations. Every kernel parameter is a column; a gap means the default of the row's family,
or nothing where the family has no such parameter.
"""

from __future__ import annotations

REQUIRED = ("m", "n", "k", "ab", "family")
WITH_DEFAULT = ("cd", "acc", "layout", "alpha", "beta", "batch", "scale", "fused", "groups", "sparsity")
OUTPUTS = ("runtime_ms", "runtime_burst_ms", "power_w", "energy_mj", "tflops")

EXTENTS = ("m", "n", "k")
TEXTS = ("family", "ab", "cd", "acc", "layout", "scale", "fused", "groups", "sparsity")
"""The columns of texts."""

TYPES = ("ab", "cd", "acc", "scale", "fused", "groups", "sparsity")
"""Those that `types_text` takes."""

NONE = "none"
"""No scale factors, no fused operations, no groups, or a B without known zeros."""

SPARSE = "2:4"
"""The sparsity of B: two of four elements along k are kept, each with an index of two bits."""

GROUPED = "grouped"
"""In the texts of types: the product is in groups of rows, of any number and sizes."""

FIXED = {"alpha": 1.0, "beta": 0.0, "batch": 1.0}
FIXED_TEXTS = {"layout": "nn", "scale": NONE, "fused": NONE, "groups": NONE, "sparsity": NONE}
"""What replaces a gap of these, in every family."""

OF_KIND = ("ab_bytes", "cd_bytes", "acc_bytes", "a_transposed", "b_transposed")
"""Numbers that follow from the texts of a row: bytes of an element, and whether an operand is transposed, as 0 and 1."""

BLOCKS = ("a_lines", "a_inner", "b_lines", "b_inner")
"""Extents of the blocks of A and B that have one scale factor each: rows of A or columns of B, and elements along k."""

BIAS = "bias"
"""The fused operation that reads a vector, and the number that says where it is fused, as 0 and 1."""

GATE = "gate"
"""The fused operation that halves the columns of D, and the number that says where it is fused, as 0 and 1."""

BYTES_OF_B = "b_bytes"
"""The number with the bytes of an element of B: those of A but for weights of fewer bits."""

IS_SPARSE = "sparse"
"""The number that says where B is sparse, as 0 and 1."""

OF_GROUPS = ("groups", "active_groups", "largest_group")
"""Numbers of groups, of those with rows, and of rows of the largest. Without groups all are 1: there is one matrix B."""

FROM_ONE = frozenset(
    {
        *("threads", "tile", "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "cluster_m", "cluster_n"),
        *("swizzle", "split_k", "group_m", "warps"),
    }
)
"""Kernel parameters that are at least 1. The others are whole numbers from 0."""


def types_text(
    ab: str, cd: str, acc: str, scale: str = NONE, fused: str = NONE, groups: str = NONE, sparsity: str = NONE
) -> str:
    """`f8e4m3:bf16:f32 scale=row fused=bias grouped`: element types, with scale factors, fused operations, groups and sparsity where
    there are any.

    What was measured of a family is known by these texts, so a product with scale factors is something else than a plain one. The
    sizes of groups are not part of it.
    """
    added = (("" if scale == NONE else f" scale={scale}"), ("" if fused == NONE else f" fused={fused}"))
    grouped, sparse = "" if groups == NONE else f" {GROUPED}", "" if sparsity == NONE else f" sparsity={sparsity}"
    return f"{ab}:{cd}:{acc}{''.join(added)}{grouped}{sparse}"


def types_columns(types: str, m: int) -> dict[str, str]:
    """The columns that make a text of `types_text`, with all `m` rows in one group where it has groups."""
    elements, *added = types.split(" ")
    columns = dict(zip(("ab", "cd", "acc"), elements.split(":"), strict=True))
    named = (f"groups={m}" if each == GROUPED else each for each in added)
    return columns | dict(each.split("=", 1) for each in named)


def kind_text(
    family: str, ab: str, cd: str, acc: str, layout: str, scale: str, fused: str, groups: str, sparsity: str
) -> str:
    """As in `completed_rows.Configurations.kinds`, of `TEXTS`."""
    return f"{family}:{types_text(ab, cd, acc, scale, fused, groups, sparsity)}:{layout}"

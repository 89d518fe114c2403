"""Points of `cutlass3x` that nvcc 13.0.88 compiled with the headers of CUTLASS 4.2.0 for sm_90a, or refused.

Each is a compilation of some 20 to 90 seconds. They are chosen to lie on both sides of the rules.
"""

from __future__ import annotations

COMPILED = (
    ("cutlass3x(tile_m=64,tile_k=64,schedule=1) 4096 f16 nn", 214016, 8, 384),
    ("cutlass3x(tile_m=64,tile_n=16,tile_k=32,schedule=0,epilogue=0) 4096 f16 tn", 231168, 45, 256),
    ("cutlass3x(tile_k=32) 4096 tf32 nt", 231424, 5, 384),
    ("cutlass3x(swap=1,tile_k=32) 4096 tf32 nn", 231424, 5, 384),
    ("cutlass3x(tile_k=128) 4096 f8e4m3 nt", 230400, 6, 384),
    ("cutlass3x(tile_k=128) 4096 i8 nt", 231424, 5, 384),
    ("cutlass3x(swap=1,tile_m=16,tile_n=128,cluster_n=2) 4096 f16 nt", 231424, 12, 384),
    ("cutlass3x(tile_k=32) 4096 tf32 tn", 231424, 5, 384),
    ("cutlass3x(tile_k=32) 4096 tf32 tt", 231424, 5, 384),
    ("cutlass3x(tile_n=32,tile_k=64) 4096 tf32 tt", 198656, 4, 384),
)
"""What the rules let through; bytes of shared memory, stages and threads of a block, as the compiler counted them."""

NOT_COMPILED = (
    (
        "cutlass3x(tile_m=64,schedule=2) 4096 f16 nt",
        "Cooperative kernel requires Tile Size to be greater than or equal to 128 along the M-dimension.",
    ),
    ("cutlass3x(schedule=1,stream_k=1) 4096 f16 nt", "Ping-pong kernel does not currently support stream-K scheduler."),
    ("cutlass3x(tile_k=64) 4096 tf32 tn", "SmemLayoutB K must be 128bytes to be transposed."),
    ("cutlass3x(tile_n=16,tile_k=32) 4096 tf32 tn", "Copy size must evenly divide SMEM tile."),
    ("cutlass3x(tile_m=192) 4096 f16 nt", "Divisibility Condition"),
)
"""What the compiler refused, and what it said."""

COMPILED_AND_REFUSED = (
    ("cutlass3x(swap=0,tile_k=32) 4096 tf32 nn", "swap must be"),
    ("cutlass3x(schedule=1,tile_m=128,tile_n=256) 4096 f16 nt", "registers of a thread"),  # 4734 bytes spilled
    ("cutlass3x(tile_n=256,tile_k=128) 4096 f8e4m3 nt", "registers of a thread"),  # 834 bytes spilled
)
"""What compiles, but spills its accumulators, or computes something else; with what the rule says."""

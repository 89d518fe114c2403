"""Points of `cutlass3x` that nvcc 13.0.88 compiled with the headers of CUTLASS 4.2.0 for sm_90a, or refused.

Each is a compilation of 20 to 100 seconds. They are chosen to lie on both sides of the rules. For batches, groups, scale factors and
fused operations, most numbers are those of the compiler's front end, which takes a third of the time.
"""

from __future__ import annotations

COMPILED = (
    ("cutlass3x(tile_m=64,schedule=1) 4096 f16 nn", 214016, 8, 384),
    ("cutlass3x(tile_m=64,tile_n=16,tile_k=32,schedule=0,epilogue=0) 4096 f16 tn", 231168, 45, 256),
    ("cutlass3x(tile_k=32) 4096 tf32 nt", 231424, 5, 384),
    ("cutlass3x(swap=1,tile_k=32) 4096 tf32 nn", 231424, 5, 384),
    ("cutlass3x(tile_k=128) 4096 f8e4m3 nt", 230400, 6, 384),
    ("cutlass3x(tile_k=128) 4096 i8 nt", 231424, 5, 384),
    ("cutlass3x(swap=1,tile_m=16,cluster_n=2) 4096 f16 nt", 231424, 12, 384),
    ("cutlass3x(tile_k=32) 4096 tf32 tn", 231424, 5, 384),
    ("cutlass3x(tile_k=32) 4096 tf32 tt", 231424, 5, 384),
    ("cutlass3x(tile_n=32) 4096 tf32 tt", 198656, 4, 384),
    ("cutlass3x(tile_m=256,tile_n=192) 4096 f16 tn", 205824, 3, 384),
    ("cutlass3x(schedule=0,tile_m=64,tile_n=96,cluster_m=2,cluster_n=2) 4096 bf16:f32:f32 nn", 226304, 11, 256),
    ("cutlass3x(swap=1,schedule=1,tile_m=32,tile_n=64,tile_k=128,stages=4) 4096 bf16:f32:f32 nn", 116736, 4, 384),
    ("cutlass3x(schedule=0,tile_n=64,cluster_n=4) 4096 f16 tt", 221696, 9, 256),
    ("cutlass3x(tile_n=96) 4096 tf32 nt", 223232, 3, 384),
    ("cutlass3x(schedule=1,tile_k=16,stages=16) 4096 f16:f32:f32 tn", 165888, 16, 384),
    ("cutlass3x(schedule=1,epilogue=0,tile_m=64,tile_n=192) 4096 f8e4m3e5m2:f32:f32 nt", 229888, 14, 384),
    ("cutlass3x(tile_m=256,tile_n=64,tile_k=128,schedule=0,epilogue=0,swap=1) 4096 f16 tn", 163968, 2, 256),
    (
        "cutlass3x(tile_m=256,tile_n=64,tile_k=128,cluster_n=2,schedule=0,stages=2,swap=1) 4096 bf16:f32:f32 tt",
        164864,
        2,
        256,
    ),
    (
        "cutlass3x(tile_m=256,tile_n=96,cluster_n=2,epilogue=0,stages=6,stream_k=1) 4096 f8e5m2:f32:f32 nt",
        135552,
        6,
        384,
    ),
    (
        "cutlass3x(tile_m=256,tile_n=32,tile_k=32,cluster_m=2,cluster_n=4,epilogue=0,stages=6) 4096 f8e5m2e4m3:f16:f32 nt",
        55680,
        6,
        384,
    ),
    (
        "cutlass3x(tile_m=64,tile_n=64,cluster_m=2,cluster_n=4,schedule=0,epilogue=0,stages=14,swap=1) 4096 i8 nt",
        114944,
        14,
        256,
    ),
    ("cutlass3x(tile_n=16,cluster_m=4,cluster_n=2,epilogue=0) 4096 bf16 tn", 221568, 12, 384),
    (
        "cutlass3x(tile_m=16,tile_n=64,tile_k=32,cluster_m=4,schedule=1,epilogue=0,stages=13,swap=1) 4096 f16:f32:f32 tn",
        67072,
        13,
        384,
    ),
    ("cutlass3x(schedule=1,epilogue=0,stages=5,tile_m=64) 4096 f16 nt", 123264, 5, 384),
    ("cutlass3x(epilogue=0,stages=5,tile_n=32) 4096 bf16 tt", 102656, 5, 384),
    ("cutlass3x(tile_m=192,tile_k=32,cluster_m=2,cluster_n=2,schedule=0,epilogue=0) 4096 f16 tn", 225536, 11, 256),
    ("cutlass3x(tile_n=96,tile_k=32,cluster_n=8,schedule=0,epilogue=0) 4096 bf16:f32:f32 nt", 229760, 16, 256),
    ("cutlass3x(tile_n=16,tile_k=32,stages=4) 4096 tf32 nt", 91136, 4, 384),
    ("cutlass3x(tile_m=256,tile_n=32,tile_k=16,cluster_m=4,epilogue=0,stages=7) 4096 tf32 nt", 129408, 7, 384),
    ("cutlass3x(tile_n=192,cluster_m=2,cluster_n=4,stream_k=1) 4096 f8e5m2:f32:f32 nt", 231424, 8, 384),
    (
        "cutlass3x(tile_m=64,cluster_m=4,schedule=1,epilogue=0,stages=16,swap=1) 4096 f8e5m2e4m3:f16:f32 nt",
        197120,
        16,
        384,
    ),
    ("cutlass3x(tile_n=64,tile_k=256,cluster_n=2,schedule=1,epilogue=0,swap=1) 4096 i8 nt", 196992, 4, 384),
    (
        "cutlass3x(tile_m=32,tile_n=256,tile_k=32,cluster_m=2,cluster_n=2,schedule=1,epilogue=0,swap=1) 4096 bf16 tt",
        221696,
        12,
        384,
    ),
    (
        "cutlass3x(tile_m=64,tile_n=192,tile_k=32,cluster_m=2,cluster_n=4,schedule=0,swap=1) 4096 f16:f32:f32 nt",
        230400,
        14,
        256,
    ),
    ("cutlass3x(tile_n=32,tile_k=32,stages=3) 4096 tf32 tt", 96256, 3, 384),
    ("cutlass3x(stages=3,tile_k=32) 4096 tf32 tn", 165888, 3, 384),
    ("cutlass3x(tile_k=128) 4096 f8e4m3 nt scale=1x128", 202752, 5, 384),
    ("cutlass3x(tile_k=128) 4096 f8e4m3 nt scale=1x128:128x128", 200704, 5, 384),
    ("cutlass3x(tile_k=128,stream_k=1) 512 f8e4m3 nt scale=1x128:128x128", 200704, 5, 384),
    (
        "cutlass3x(tile_k=128,schedule=1,tile_m=64,stages=4) 4096 f8e4m3 nt scale=1x128:128x128 fused=bias+gelu",
        117248,
        4,
        384,
    ),
    ("cutlass3x(tile_k=128,schedule=1,tile_m=64) 512 f8e4m3 nt scale=1x128:128x128 groups=512", 217600, 8, 384),
    (
        "cutlass3x(tile_k=128,swap=1,tile_m=32) 512 f8e4m3:f32:f32 nt groups=512 fused=bias+silu scale=row",
        220160,
        9,
        384,
    ),
    ("cutlass3x() 512 bf16 nt groups=512", 231424, 6, 384),
    ("cutlass3x(swap=1,tile_m=32,epilogue=0) 512 bf16 nn groups=512", 226304, 11, 384),
    ("cutlass3x(schedule=1,tile_m=64,tile_k=128) 512 i8 nt groups=512", 232448, 8, 384),
    ("cutlass3x(schedule=1,tile_m=64,tile_n=192) 512 bf16:f32:f32 nt fused=bias scale=row", 199680, 5, 384),
    ("cutlass3x() 4096 bf16 nt fused=bias+gelu", 230400, 6, 384),
    ("cutlass3x(schedule=0,tile_m=64) 512 f16 tn fused=bias+relu", 221696, 9, 256),
    ("cutlass3x(swap=1) 4096 f16i4 nt scale=none:1x128", 222208, 9, 384),
    ("cutlass3x(swap=1) 4096 f16f4 nt scale=none:1x128", 222208, 9, 384),
    ("cutlass3x(swap=1,schedule=1) 4096 bf16i8 nt", 216064, 8, 384),
    (
        "cutlass3x(swap=1,tile_m=16,tile_n=64,tile_k=128,schedule=0,epilogue=0) 4096 bf16i8 nt scale=none:1x128",
        212992,
        17,
        256,
    ),
    (
        "cutlass3x(swap=1,tile_n=256,tile_k=128,epilogue=0,stages=3,cluster_n=2) 4096 bf16i4 nt scale=none:row",
        151552,
        3,
        384,
    ),
    ("cutlass3x(swap=1,tile_m=64,tile_n=64,tile_k=256,schedule=1) 4096 bf16i4 nt", 220160, 5, 384),
    ("cutlass3x(swap=1,schedule=1,tile_m=16,tile_n=64) 4096 bf16i4 nt scale=none:1x64", 192512, 44, 384),
    ("cutlass3x(swap=1,schedule=1,tile_m=16,tile_n=64) 4096 bf16f4 nt scale=none:1x64", 192512, 44, 384),
    ("cutlass3x(swap=1,stream_k=1,tile_m=64,cluster_m=2,cluster_n=2) 4096 bf16i4 nt scale=none:1x64", 215040, 15, 384),
    (
        "cutlass3x(swap=1,schedule=1,tile_m=16,tile_n=64,tile_k=128) 4096 bf16i4 nt scale=none:1x128 fused=bias+silu",
        206848,
        24,
        384,
    ),
)
"""What the rules let through; bytes of shared memory, stages and threads of a block, as the compiler counted them."""

NOT_COMPILED = (
    (
        "cutlass3x(tile_m=64) 4096 f16 nt",
        "Cooperative kernel requires Tile Size to be greater than or equal to 128 along t",
    ),
    ("cutlass3x(schedule=1,stream_k=1) 4096 f16 nt", "Ping-pong kernel does not currently support stream-K scheduler."),
    ("cutlass3x() 4096 tf32 tn", "SmemLayoutB K must be 128bytes to be transposed."),
    ("cutlass3x(tile_n=16,tile_k=32) 4096 tf32 tn", "Copy size must evenly divide SMEM tile."),
    ("cutlass3x(tile_m=192) 4096 f16 nt", "Divisibility Condition"),
    (
        "cutlass3x(swap=1,tile_m=32,tile_k=32,cluster_m=2) 4096 f16i4 nt scale=none:1x32",
        "Consider increasing TileShapeK",
    ),
    ("cutlass3x(tile_k=16) 4096 i8 nt", "Tile_K must be a multiple of 32."),
    ("cutlass3x(stages=9) 4096 f16 nt", "the stages do not fit into shared memory"),
    ("cutlass3x(tile_m=16,tile_k=16,cluster_m=4,stream_k=1,swap=1) 4096 tf32 nt", "Shape Divisibility Condition"),
    ("cutlass3x(tile_n=16,tile_k=32,stages=5) 4096 tf32 nt", "Shape Divisibility Condition"),
)
"""What the compiler refused, and what it said."""

COMPILED_AND_REFUSED = (
    ("cutlass3x(tile_k=32) 4096 tf32 nn", "swap must be"),
    ("cutlass3x(schedule=1,tile_n=256) 4096 f16 nt", "registers of a thread"),  # 4734 bytes spilled
    ("cutlass3x(tile_n=256,tile_k=128) 4096 f8e4m3 nt", "registers of a thread"),  # 834 bytes spilled
    ("cutlass3x(tile_k=128,tile_n=192) 4096 f8e4m3 nt scale=1x128", "registers of a thread"),  # 282 bytes spilled
    ("cutlass3x(tile_k=256) 4096 f8e5m2 nt", "adds up sums"),
    ("cutlass3x(tile_m=256,tile_n=256) 4096 f16 nt", "registers of a thread"),  # 4696 bytes spilled
    ("cutlass3x(tile_n=16,cluster_m=4) 4096 f16 nt", "no multiple of 8 rows"),
    ("cutlass3x(tile_n=32,tile_k=128) 4096 f8e4m3 nn", "in layout nt only"),
    ("cutlass3x(tile_k=128) 4096 i8 tn", "in layout nt only"),
)
"""What compiles, but spills its accumulators, or computes something else; with what the rule says."""

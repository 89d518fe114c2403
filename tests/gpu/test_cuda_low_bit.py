"""Low-bit weights on a card: what Triton kernels compute of each pair, and that wrong kernels are found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from farm.campaign import loads
from farm.errors import WrongResult
from farm.gemm import INPUT_TYPES
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.operands import OperandRules
from support import quick
from support.quick import QUICK
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import encode
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound

PAIRS = [str(kind) for kind in INPUT_TYPES if kind.low_bit_weights]

TEXT = f"""
name: low-bit
problems:
  - {{shapes: 16x512x1024, types: [{", ".join(PAIRS)}], layouts: [nt, nn], scale: [none, none:row, none:1x128, none:1x32]}}
  - {{shapes: [5x272x296, 200x528x416], types: [{", ".join(PAIRS)}], layouts: [nt, nn], scale: none:1x64}}
  - {{shapes: 3x256x256, types: [f16i4, bf16f4], layouts: nt, batch: 3, beta: 1, alpha: -0.5, scale: none:1x64, fused: [none, bias+silu]}}
kernels:
  - {{family: triton, tile_m: 16, tile_n: 32, tile_k: 128, group_m: 1, warps: 4, stages: 4}}
  - {{family: triton, tile_m: 64, tile_n: 64, tile_k: 64, group_m: 4, warps: 4, stages: 3}}
constraints: ["m > 100 or tile_m == 16", "m <= 100 or tile_m == 64"]
"""


CONFIGURATIONS = tuple(loads(TEXT, name="low_bit.yaml", owner="tests", limit=1000).expand())


@pytest.fixture(scope="module")
def built(device: CudaDevice) -> Mapping[Binary, str | None]:
    return quick.built(device, CONFIGURATIONS)


@pytest.mark.parametrize("types", PAIRS)
def test_every_layout_and_factor_is_right(device: CudaDevice, built: Mapping[Binary, str | None], types: str) -> None:
    wrong = []
    for configuration in CONFIGURATIONS:
        if configuration.problem.types.ab != types:
            continue
        binary = configuration.binary(device.identity.traits)
        assert binary is not None
        assert built[binary] is None, configuration
        try:
            row = device.measure(configuration, QUICK)
        except WrongResult as error:
            wrong.append(f"{configuration}: {error}")
            continue
        assert row.verify_error is not None
        if row.verify_error > error_bound(configuration.problem) / 1.5:
            wrong.append(f"{configuration}: its error {row.verify_error} is close to the bound")
    assert wrong == []


@pytest.mark.parametrize("text", [
    "triton(tile_m=16,tile_n=32,tile_k=128,group_m=1,warps=4,stages=4) 16x512x1024 f16i4 nt scale=none",
    "triton(tile_m=16,tile_n=32,tile_k=128,group_m=1,warps=4,stages=4) 16x512x1024 bf16f4 nn scale=none:1x32",
])  # fmt: skip
def test_a_wrong_element_and_weights_in_another_order_are_found(
    device: CudaDevice, built: Mapping[Binary, str | None], text: str
) -> None:
    configuration, rules = Configuration.parse(text), OperandRules(seed=3)
    problem = configuration.problem
    with device.replaying(configuration, rules):
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)
        device._verifier.begin(problem, operands, rules)()
        right, weights = operands.d.copy(), operands.b.copy()
        operands.d[3, 130] = encode(problem.types.cd, np.full(1, 1000, np.float32))[0]
        with pytest.raises(WrongResult, match=r"\(3, 130\)"):
            device._verifier.begin(problem, operands, rules)()
        operands.d[:] = right
        operands.b[...] = operands.b >> 4 | operands.b << 4
        with pytest.raises(WrongResult):
            device._verifier.begin(problem, operands, rules)()
        operands.b[...] = weights

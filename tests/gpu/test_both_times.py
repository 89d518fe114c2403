"""Burst and settled time, and named protocols, on a card."""

from __future__ import annotations

import pytest

from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.protocols import PROTOCOLS, ProtocolName
from workers.devices.cuda import CudaDevice
from workers.measure.explain import Explanation

HELD = Configuration.parse("cublaslt(algorithm=0) 4096x4096x4096 f16:f16:f32")
"""Draws more than the limit of the cards that it was tried on. On others the tests of a held kernel are skipped."""

FREE = Configuration.parse("tiled(tile=32) 2048x2048x2048 f32")

SPARING = Configuration.parse("tiled(tile=32) 128x128x8192 f32")
"""16 blocks, which draw 150 W. After a rest, an H100 runs f32 kernels of 400 W up to 5% faster at first than later."""


@pytest.mark.parametrize("power", ["none", "all"])
def test_a_kernel_at_the_limit_has_two_times(device: CudaDevice, power: str) -> None:
    device.measure(FREE, MeasuringRules())  # compiled, so that it is ready sooner than the card has rested
    explanation = Explanation()
    row = device.measure(HELD, MeasuringRules.model_validate({"power": power}), explanation)
    if not row.power_limited:
        pytest.skip("this card is not held at its limit")
    assert row.runtime_burst_ms is not None
    assert row.runtime_burst_ms < row.runtime_ms == row.runtime_settled_ms
    assert len(explanation.burst_ms) == row.burst_samples
    assert any("held by the power limiter" in note for note in explanation.notes)
    assert device.measure(FREE, MeasuringRules()).details["rested_s"] > 0


@pytest.mark.parametrize("power", ["none", "all"])
def test_a_kernel_that_is_slowed_down_below_the_limit_has_two_times(device: CudaDevice, power: str) -> None:
    row = device.measure(HELD, MeasuringRules.model_validate({"power": power, "operands": {"distribution": "zeros"}}))
    if not row.power_limited:
        pytest.skip("this card does not slow down kernels below its limit")
    assert row.runtime_burst_ms is not None
    assert row.runtime_burst_ms < 0.98 * row.runtime_ms
    assert row.power_w is None or row.power_w < 0.8 * (row.power_limit_w or 0)
    assert "sw_power_cap" in (row.throttle_reasons or "")


def test_a_kernel_below_the_limit_has_the_same_time_twice(device: CudaDevice) -> None:
    row = device.measure(SPARING, MeasuringRules(power="all"))
    assert row.power_limited is False
    assert row.runtime_burst_ms == pytest.approx(row.runtime_settled_ms, rel=0.02)
    assert "sw_power_cap" not in (row.throttle_reasons or "")


@pytest.mark.parametrize(
    "name", [name for name in ProtocolName if name not in (ProtocolName.FIXED_FREQUENCY, ProtocolName.FIXED_POWER)]
)
def test_a_card_follows_a_protocol(device: CudaDevice, name: ProtocolName) -> None:
    row = device.measure(FREE, MeasuringRules(protocol=name))
    assert row.protocol == name
    assert row.samples >= PROTOCOLS[name].min_samples
    assert row.runtime_ms == pytest.approx(device.measure(FREE, MeasuringRules()).runtime_ms, rel=0.3)


def test_a_card_whose_clocks_are_not_locked_refuses_fixed_frequency(device: CudaDevice) -> None:
    with pytest.raises(InvalidOnDevice, match="needs locked clocks"):
        device.measure(FREE, MeasuringRules(protocol=ProtocolName.FIXED_FREQUENCY))

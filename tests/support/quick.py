"""For tests on a card: rules that take little time, configurations that it can run, and launching once more."""

from __future__ import annotations

import pytest

from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import poison
from workers.measure.operands import SetLayout
from workers.measure.verify import Verification

QUICK = MeasuringRules(timing=TimingRules(min_samples=5, max_seconds=0.05, warmup_seconds=0.005))


def supported(device: CudaDevice, text: str) -> Configuration:
    """The configuration; the test is skipped where the card cannot run it."""
    configuration = Configuration.parse(text)
    why = configuration.why_invalid(device.identity.traits)
    if why is not None:
        pytest.skip(why)
    return configuration


def launched_again(device: CudaDevice, configuration: Configuration, launches: int = 3) -> Verification:
    """Verifies what a kernel computes that was launched that often before: what it keeps must not add up."""
    problem, rules = configuration.problem, OperandRules()
    with device.replaying(configuration, rules) as work:
        buffers = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), work.rotation.sets, rules)
        operands = buffers.views(0)
        for _ in range(launches):
            work.kernel.launch(0)
        operands.d.fill(poison(problem.types.cd))
        work.kernel.launch(0)
        return device._verifier.begin(problem, operands, rules, roundings=work.kernel.roundings)()

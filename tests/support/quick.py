"""For tests on a card: rules that take little time, configurations that it can run, binaries built at once, launching once more,
and a wide product.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import OperandRules
from support.wide_product import Read, wide_product
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.kernels.base import Placement
from workers.measure.elements import decode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import SetLayout
from workers.measure.verify import Verification, error_bound

QUICK = MeasuringRules(timing=TimingRules(min_samples=5, max_seconds=0.05, warmup_seconds=0.005))


def supported(device: CudaDevice, text: str) -> Configuration:
    """The configuration; the test is skipped where the card cannot run it."""
    configuration = Configuration.parse(text)
    why = configuration.why_invalid(device.identity.traits)
    if why is not None:
        pytest.skip(why)
    return configuration


def built(device: CudaDevice, configurations: Iterable[Configuration]) -> Mapping[Binary, str | None]:
    """Why each binary of these cannot run on the card, or None where it can. All are compiled at once, as a builder does; the test is
    skipped where none can be."""
    traits = device.identity.traits
    wanted = {c.binary(traits) for c in configurations if c.why_invalid(traits) is None}
    binaries = [binary for binary in wanted if binary is not None]

    def get(binary: Binary) -> str | None:
        try:
            device._kernels.get(binary)
        except InvalidOnDevice as error:
            return str(error)
        return None

    try:
        get(binaries[0])
    except MeasurementFailed as error:
        pytest.skip(f"{error} conftest.py says how to build them.")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(zip(binaries, pool.map(get, binaries), strict=True))


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


def on_card(address: int, count: int, dtype: Any) -> Any:
    """Elements in a card's memory."""
    import cupy

    memory = cupy.cuda.UnownedMemory(address, count * np.dtype(dtype).itemsize, None)
    return cupy.ndarray(count, dtype, cupy.cuda.MemoryPointer(memory, 0)).get()


def assert_wide_product(device: CudaDevice, configuration: Configuration, read: Read = on_card) -> None:
    """The farm verifies the result, and of the first and the last operand set it is that of `wide_product`."""
    problem, rules = configuration.problem, OperandRules()
    with device.replaying(configuration, rules) as work:
        sets = work.rotation.sets
        buffers = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), sets, rules)
        placement = Placement.of(buffers, sets)
        for index in sorted({0, sets - 1}):
            work.kernel.launch(index)
            # Read on the stream that it was launched on.
            found = decode(problem.types.cd, buffers.views(index).stacked().d.get())
            error = np.abs(found - wide_product(problem, placement, index, read)).max() / result_scale(problem, rules)
            assert error <= error_bound(problem, rules, work.kernel.roundings)  # False for NaN


def assert_right(device: CudaDevice, built: Mapping[Binary, str | None], lines: Iterable[str]) -> None:
    """As `assert_wide_product`, of each configuration that exists on the card. Its binary must be of `built`, and run there."""
    for configuration in map(Configuration.parse, lines):
        if configuration.why_invalid(device.identity.traits) is not None:
            continue
        binary = configuration.binary(device.identity.traits)
        assert binary is not None
        assert built[binary] is None, configuration
        assert_wide_product(device, configuration)

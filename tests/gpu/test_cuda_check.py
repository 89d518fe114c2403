"""Two versions measured in turn on a card."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.paired import Arm
from support.quick import supported
from workers.arm import measured
from workers.check import measured_in_turn
from workers.devices.cuda import CudaDevice

REQUEST = {"threshold": 0.02, "confidence": 0.95, "seconds": 40.0}


def checked(device: CudaDevice, base: str, head: str) -> dict[str, Any]:
    """The result of two configurations."""
    pair = {Arm.BASE: supported(device, base), Arm.HEAD: supported(device, head)}
    *_, last = measured_in_turn(lambda _, one: measured(device, one, MeasuringRules()), pair, REQUEST)
    found: dict[str, Any] = last["result"]
    return found


@pytest.mark.alone
@pytest.mark.parametrize(
    "configuration",
    ["cublaslt() 4096x4096x4096 f16", "cublaslt() 64x4096x4096 bf16 nt", "tiled(tile=32) 1000x1500x700 f32"],
)
def test_a_kernel_is_as_fast_as_itself(device: CudaDevice, configuration: str) -> None:
    found = checked(device, configuration, configuration)
    assert found["verdict"] == "unchanged"
    assert found["same_bits"] is True


@pytest.mark.alone
def test_a_kernel_that_is_slower_is_shown(device: CudaDevice) -> None:
    base, head = (f"tiled(tile={tile}) 2048x2048x1024 f32" for tile in (16, 15))
    found = checked(device, base, head)
    assert found["verdict"] == "slower"
    assert found["head"]["ms"] / found["base"]["ms"] == pytest.approx(found["ratio"])


@pytest.mark.alone
def test_two_processes_measure_in_turn(device: CudaDevice) -> None:
    configuration = Configuration.parse("cublaslt() 2048x2048x2048 f16")
    words = ["check", str(configuration), "--head-env", "GEMM_FARM_SAME=1", "--device", device.identity.uuid, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "farm", *words], capture_output=True, text=True, timeout=240, check=False
    )
    (found,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, found["verdict"], found["same_bits"]) == (0, "unchanged", True), done.stderr
    assert found["base"]["libraries"]["cublaslt"] == found["head"]["libraries"]["cublaslt"]

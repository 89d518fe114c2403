"""The checks that run on the card say what `workers.measure.verify` says, of every type, and miss no wrong element."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import ElementNotWritten, WrongResult
from farm.kernels import Configuration
from farm.operands import OperandRules, operand_rules
from workers.devices import cuda_verify
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure.elements import decode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import SetLayout
from workers.measure.verify import verify

RULES = [OperandRules(seed=3), operand_rules("a=normal*0.5 b=integers c=sparse", seed=3)]

CASES = [
    *(f"tiled(tile=16) {{shape}} {types} {layout}" for types in ("f32", "f64") for layout in ("nn", "nt", "tn", "tt")),
    "tiled(tile=16) {shape} f64 nn alpha=-1.5 beta=0.5",
    "tiled(tile=16) {shape} f32 tn alpha=0.5 beta=2",
    "cublaslt(algorithm=0) {shape} tf32 tt",
    "cublaslt(algorithm=0) {shape} f16 nn",
    "cublaslt(algorithm=0) {shape} f16:f32:f32 tn",
    "cublaslt(algorithm=0) {shape} f16:f16:f16 nt",
    "cublaslt(algorithm=0) {shape} bf16 nn alpha=1 beta=1",
    "cublaslt(algorithm=0) {shape} i8 nt",
    "cublaslt(algorithm=0) {shape} f8e4m3 nt",
    "cublaslt(algorithm=0) {shape} f8e4m3e5m2 nt",
    "cublaslt(algorithm=0) {shape} f8e5m2e4m3 nt",
]
SHAPES = {
    "every element": "80x96x64",
    "groups, all of them whole": "512x320x256",
    "the last group is short": "272x336x208",
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, device: CudaDevice) -> str:
    return str(request.param)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.text)
def test_right_results_pass_and_wrong_elements_do_not(
    device: CudaDevice, case: str, shape: str, rules: OperandRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    configuration = Configuration.parse(case.format(shape=shape))
    problem, s = configuration.problem, configuration.problem.shape
    if (why := configuration.why_invalid(device.identity.traits)) is not None:
        pytest.skip(why)
    with device.replaying(configuration, rules):  # which computes and verifies
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)

        def checked() -> Any:
            return device._verifier.begin(problem, operands, rules)()

        closely = verify(problem, operands, rules, cupy)
        with monkeypatch.context() as patch:
            patch.setattr(cuda_verify, "verify", None)  # what looks closer is not needed
            found = checked()
        assert (found.method, found.bound) == (closely.method, closely.bound)
        assert 0 <= found.error <= found.bound
        # The signs are others, and so are the largest sums.
        assert closely.error / 3 <= found.error <= 3 * closely.error

        numbers = abs(decode(problem.types.cd, operands.d, cupy)) / result_scale(problem, rules)
        middle = int(numbers[s.m // 2].argmax())
        for row, column in ((0, 0), (0, s.n - 1), (s.m - 1, 0), (s.m - 1, s.n - 1), (s.m // 2, middle)):
            right = operands.d[row, column].copy()
            operands.d[row, column] = poison(problem.types.cd)
            with pytest.raises(ElementNotWritten, match=rf"\({row}, {column}\)"):
                checked()
            operands.d[row, column] = right
            if float(numbers[row, column]) > 0.5:
                operands.d[row, column] = 0
                with pytest.raises(WrongResult, match=rf"\({row}, {column}\)"):
                    checked()
                operands.d[row, column] = right
        assert float(numbers[s.m // 2, middle]) > 0.5
        checked()

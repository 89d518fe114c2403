"""Traces that PyTorch and cuBLASLt record on a card have the products that a program computed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.kernels import problem_line
from farm.traces.formats import read_trace
from farm.traces.trace import Trace

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

PROGRAM = """
import sys
import torch

def matrix(*sizes, dtype=torch.bfloat16):
    return torch.randn(*sizes, device="cuda").to(dtype)

x, w, bias, g = matrix(256, 512), matrix(1024, 512), matrix(1024), matrix(256, 1024)
q, k = matrix(4, 64, 128), matrix(4, 32, 128)
a, b = matrix(256, 512, dtype=torch.float8_e4m3fn), matrix(1024, 512, dtype=torch.float8_e4m3fn)
one, rows, columns = (torch.ones(sizes, device="cuda") for sizes in ((), (256, 1), (1, 1024)))

def plain(x, w, bias, g, q, k):
    return x @ w.t(), x @ w.t() + 1, torch.addmm(bias, x, w.t()), g.t() @ x, torch.bmm(q, k.transpose(1, 2))

def program():
    plain(x, w, bias, g, q, k)
    for scales in ((one, one), (rows, columns)):
        torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)

if sys.argv[1] == "profiler":
    with torch.profiler.profile(record_shapes=True) as recorded:
        program()
        torch.cuda.synchronize()
    recorded.export_chrome_trace("profiler.json.gz")
elif sys.argv[1] == "inductor":
    torch.compile(plain)(x, w, bias, g, q, k)
else:
    program()
torch.cuda.synchronize()
"""

PRODUCTS = {
    "256x1024x512 bf16:bf16:f32 nt": 2,
    "256x1024x512 bf16:bf16:f32 nt fused=bias": 1,
    "1024x512x256 bf16:bf16:f32 tn": 1,
    "64x32x128 bf16:bf16:f32 nt batch=4": 1,
}
SCALED = {
    "256x1024x512 f8e4m3:bf16:f32 nt scale=tensor": 1,
    "256x1024x512 f8e4m3:bf16:f32 nt scale=row": 1,
}


def recorded(folder: Path, recorder: str, **variables: str) -> None:
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, recorder],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    (folder / "stderr").write_text(made.stderr)


def counts(trace: Trace) -> dict[str, float]:
    found: dict[str, float] = {}
    for gemm in trace.gemms:
        text = problem_line(gemm.problem, scalars=False)
        found[text] = found.get(text, 0) + gemm.count
    return found


def test_the_profiler_has_each_product_once(tmp_path: Path) -> None:
    recorded(tmp_path, "profiler")
    assert counts(read_trace(tmp_path / "profiler.json.gz")) == PRODUCTS | SCALED


def test_tunableop_lists_each_product(tmp_path: Path) -> None:
    on = {f"PYTORCH_TUNABLEOP_{name}": value for name, value in
          {"ENABLED": "1", "TUNING": "0", "RECORD_UNTUNED": "1", "UNTUNED_FILENAME": "untuned.csv"}.items()}  # fmt: skip
    recorded(tmp_path, "tunableop", **on)
    found = counts(read_trace(tmp_path / "untuned0.csv")).keys()
    # On CUDA, PyTorch's scaled products do not pass through TunableOp.
    assert found - SCALED.keys() == PRODUCTS.keys()


def test_cublaslt_logs_products_with_epilogues_and_scales(tmp_path: Path) -> None:
    recorded(tmp_path, "cublaslt", CUBLASLT_LOG_LEVEL="5", CUBLASLT_LOG_FILE=str(tmp_path / "lt.log"))
    found = counts(read_trace(tmp_path / "lt.log"))
    # PyTorch computes some products with cuBLAS, which need not be in this log.
    expected = {text: calls for text, calls in (PRODUCTS | SCALED).items() if "fused" in text or "scale" in text}
    assert {text: found.get(text) for text in expected} == expected
    assert found.keys() <= (PRODUCTS | SCALED).keys()


def test_inductor_logs_the_products_of_a_compiled_graph(tmp_path: Path) -> None:
    recorded(tmp_path, "inductor", TORCH_LOGS="+inductor", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    found = counts(read_trace(tmp_path / "stderr"))
    without_strides = {text.replace(" tn", " nt"): calls for text, calls in PRODUCTS.items()}
    assert found == without_strides

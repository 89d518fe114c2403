"""The time of a workload, whose GEMMs run several times: in tables, over JSON, and in reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine

from farm.campaign import Campaign
from farm.db import campaigns
from support.commands import farm_here
from support.samples import document, landed, row

TEXT = "On cpu-test, 33 GEMMs of 2 problems take 37 ms with the best kernels."


def test_each_gemm_counts_as_often_as_the_program_computes_it(
    engine: Engine, device: int, submit: Callable[[Campaign], campaigns.Stored], tmp_path: Path
) -> None:
    problems = {"gemms": {"8x64x64 f32 nn": 32, "16x64x64 f32 nn": 1, "24x64x64 f32 nn": 4}}
    stored = submit(Campaign.from_document(document(name="step", problems=problems)))
    times = {
        "blas(threads=1) 8x64x64 f32": 1.0,
        "blas(threads=2) 8x64x64 f32": 2.0,
        "blas(threads=1) 16x64x64 f32": 5.0,
    }
    landed(engine, device, [(line, row(ms)) for line, ms in times.items()], campaign_id=stored.campaign_id)
    command = farm_here(tmp_path, engine.url.render_as_string(hide_password=False))

    shown = command("best", "step").stdout
    assert f"{TEXT} Problems without a time: 1." in shown.replace("\n", " ")
    (workload,) = json.loads(command("best", "step", "--json").stdout)["workloads"]
    assert (workload["ms"], workload["gemms"], workload["missing"], workload["speed_up"]) == (37, 33, 1, None)

    done = command("report", "step", "--output", str(tmp_path / "step.html"))
    assert done.returncode == 0, done.stderr
    assert TEXT in (tmp_path / "step.html").read_text().replace("<wbr>", "")

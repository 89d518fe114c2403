"""Lookup tables of kernels, of plans with groups."""

from __future__ import annotations

import json

from farm.api.plans import Planned
from farm.exporters import kernel_table
from farm.formatting import problem_text
from farm.kernels import Configuration, problem_line
from farm.kernels.configuration import problem_columns
from farm.model_plans.amounts import Estimate
from farm.model_plans.step_plans import GemmEstimate, step_plan


def test_groups_that_a_plan_shows_alike_are_entries_of_their_own() -> None:
    sizes = list(map(str, range(1, 17)))
    given = [
        Configuration.parse(f"triton() 136x1536x2048 bf16 nt groups={','.join(one)}") for one in (sizes, sizes[::-1])
    ]
    shown = {problem_text(problem_columns(one.problem)) for one in given}
    assert len(shown) == 1
    gemms = [
        GemmEstimate(
            name="experts.down", problem=shown.copy().pop(), m=136, count=1, configuration=one.canonical,
            ms=Estimate(value=1.0 + number), mj=None, measured=True, energy_measured=None,
        )
        for number, one in enumerate(given)
    ]  # fmt: skip
    planned = Planned(
        model="mixture", notes=[], load="settled", plans=[step_plan("nvidia-h200", 17, gemms)], cheapest=None,
        max_latency_ms=None, without_plan=[], answered_by=[],
    )  # fmt: skip
    document, header = kernel_table.export(planned, "nvidia-h200").files
    found = {one["problem"]: one["ms"] for one in json.loads(document.content)["kernels"]}
    assert found == {problem_line(one.problem, scalars=False): 1.0 + number for number, one in enumerate(given)}
    assert all(json.dumps(problem) in header.content.decode() for problem in found)

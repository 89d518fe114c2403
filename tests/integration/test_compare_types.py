"""Types of cards on made-up tables in the format of AIConfigurator: the order that was put into them comes out."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from benchmarks import compare_types
from support.foreign_tables import AICONFIGURATOR

L40S, A100, H100, B200 = "nvidia-l40s", "nvidia-a100-sxm4-80gb", "nvidia-h100-80gb-hbm3", "nvidia-b200"


def test_tables_of_four_cards_put_them_into_their_order(engine: Engine) -> None:
    found = compare_types.figures(engine, AICONFIGURATOR, ["a100_sxm", "l40s", "h100_sxm", "b200_sxm"])
    memory, computing = found["orders"]["memory"], found["orders"]["computing"]
    assert memory["by_time"] == memory["by_makers_figures"] == [L40S, A100, H100, B200]
    assert memory["other_way_round"] == []
    # In the tables the L40S reaches far less of its peak than the A100 does.
    assert computing["by_time"] == [L40S, A100, H100, B200]
    assert computing["by_makers_figures"] == [A100, L40S, H100, B200]
    assert computing["other_way_round"] == [[L40S, A100]]
    assert (memory["known"], computing["known"]) == (6, 6)
    for line in found["pairs"]:
        assert 0 < line["roofline"] <= 1
        assert 0 < line["baseline_roofline"] <= 1
        if line["part"] == "memory":
            assert line["time"]["ratio"] == pytest.approx(line["expected_time_ratio"], rel=0.2)
        if line["part"] == "computing" and {line["baseline"], line["side"]} != {L40S, A100}:
            assert line["time"]["ratio"] == pytest.approx(line["expected_time_ratio"], rel=0.35)

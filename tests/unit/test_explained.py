"""What `farm measure --explain` says of a measurement, from an explanation as a device gives it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rich.text import Text

from farm.charts.terminal_renderer import Terminal
from farm.cli import explain_view, measurement_view
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from workers import single
from workers.measure.explain import Explanation
from workers.measure.nvml import Telemetry

CONFIGURATION = Configuration.parse("tiled(tile=16) 512x512x512 f32")
SW_POWER_CAP = 0x4
POWER_DETAILS = {
    "power_window_w": 688.1,
    "power_window_s": 0.62,
    "power_stop_reason": "converged",
    "power_limited": True,
    "power_counter_w": 688.2,
    "power_counter_rse": 0.006,
    "power_samples_w": 687.4,
    "power_samples_rse": 0.004,
}


def row(**changes: Any) -> dict[str, Any]:
    """A row as the measuring process answers with it."""
    values: dict[str, Any] = {
        **{"runtime_ms": 1.72, "runtime_q1_ms": 1.71, "runtime_q3_ms": 1.73, "runtime_min_ms": 1.7},
        **{"runtime_rse": 0.005, "samples": 52, "stop_reason": "converged", "l2": "cold"},
    }
    return single._columns(CONFIGURATION, Measurement(**{**values, **changes}))


def read(
    explanation: Explanation, width: int = 78, *, ascii_only: bool = False, **columns: Any
) -> dict[str, list[str]]:
    """The sections of an explanation by their titles."""
    answer = single._explained(explanation)
    return dict(explain_view.sections(answer, row(**columns), Terminal(width, ascii_only=ascii_only)))


# A card that starts from idle and is then held at its limit: a sample each 20 ms, a step of the counter each 100 ms.
SCRIPTED = Explanation(
    warm_up_ms=[2.0, 1.8, 1.75, 1.74],
    samples_ms=[1.72 + 0.001 * (i % 7) for i in range(52)],
    warm_l2_ms=[1.70, 1.71, 1.72, 1.71],
    energy_steps=[(0.05, 0), (0.15, 69_100), (0.25, 138_100), (0.35, 207_200)],
    power_samples=[(0.01 + 0.02 * i, 150.0 if i < 3 else 680.0 + i % 11) for i in range(40)],
    telemetry=[
        Telemetry(sm_clock_mhz=1980 - 30 * i, memory_clock_mhz=2619, temperature_c=40 + i, clock_events=events)
        for i, events in enumerate([0, 0, SW_POWER_CAP, SW_POWER_CAP, SW_POWER_CAP, 0])
    ],
    notes=["warm-up: 4 samples, stable", "power: 694 W ± 1.3% from nvml-counter+samples " + "and more " * 20],
    seconds={"timing": 0.31, "power": 0.62, "warm cache": 1e-7},
)


def test_nothing_is_shown_for_what_there_is_none_of() -> None:
    assert read(Explanation()) == {}
    assert list(read(Explanation(notes=["stopped"]))) == ["what was decided"]


def test_every_part_is_shown_in_the_order_of_the_measurement() -> None:
    assert list(read(SCRIPTED, details=POWER_DETAILS)) == [
        "what was decided",
        "where the time went, s",
        "samples: 52, ms of one GEMM",
        "samples with operands in the cache: 4, ms",
        "power",
        "readings of clocks and temperature: 6",
    ]


def test_samples_of_the_burst_have_a_part_of_their_own() -> None:
    answer = {**single._explained(Explanation(samples_ms=[1.0] * 20)), "burst_ms": [0.85, 0.86, 0.87, 0.86]}
    found = dict(explain_view.sections(answer, row(), Terminal(78, ascii_only=False)))
    assert list(found) == ["samples after a rest, the burst time: 4, ms of one GEMM", "samples: 20, ms of one GEMM"]
    (line,) = found["samples after a rest, the burst time: 4, ms of one GEMM"]
    assert line.startswith("min 0.85, quartiles 0.8575  0.86  0.8625, max 0.87; standard error ")


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [78, 98])
def test_an_explanation_fits_its_paper(width: int, ascii_only: bool) -> None:
    found = read(SCRIPTED, width, ascii_only=ascii_only, details=POWER_DETAILS)
    lines = [line for title, lines in found.items() for line in (title, *lines)]
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in lines) == ascii_only


def test_a_part_that_took_no_time_is_left_out() -> None:
    first, second = read(SCRIPTED)["where the time went, s"]
    assert first.split()[:2] == ["timing", "0.310"]
    assert second.split()[:2] == ["power", "0.620"]
    assert second.count("█") == pytest.approx(2 * first.count("█"), abs=1)


def samples(values: list[float]) -> str:
    (lines,) = read(Explanation(samples_ms=values)).values()
    return "\n".join(lines)


def test_samples_are_summed_up_as_in_the_row() -> None:
    assert samples([1.0, 2.0, 3.0, 4.0, 9.0]).startswith("min 1, quartiles 2  3  4, max 9\n")


def test_a_drift_is_told_from_noise() -> None:
    noise = [0.001 * (i * 7 % 13) for i in range(60)]
    assert "within the noise" in samples([1.0 + n + (0.001 if i >= 30 else 0.0) for i, n in enumerate(noise)])
    drifting = samples([1.0 + n + (0.01 if i >= 30 else 0.0) for i, n in enumerate(noise)])
    assert "median of the first half 1.006, of the second 1.016: +0.99%, a drift:" in drifting
    assert "within the noise" in samples([*(1.0 + n for n in noise[:-1]), 50.0])  # one that is far off is no drift


def test_two_samples_say_nothing_of_a_drift() -> None:
    assert "half" not in samples([1.0, 2.0])


def test_the_standard_error_is_said_as_it_fell() -> None:
    text = " ".join(samples([0.9, 1.1] * 60).split())
    assert text.endswith("standard error of the mean: 3.33% after 10, 2.29% after 20, 1.43% after 50,"
                         " 1.01% after 100, 0.917% after 120")  # fmt: skip


def test_of_warm_samples_there_is_one_line() -> None:
    (line,) = read(SCRIPTED)["samples with operands in the cache: 4, ms"]
    assert line == "min 1.7, quartiles 1.708  1.71  1.712, max 1.72; standard error 0.239%"


# --- power -------------------------------------------------------------------------------------------


def power(explanation: Explanation, **columns: Any) -> list[str]:
    return read(explanation, **{"details": POWER_DETAILS, **columns})["power"]


def test_each_source_of_power_is_said_with_its_error() -> None:
    lines = power(SCRIPTED, power_disagrees=True)
    assert lines[:3] == [
        "energy counter: 688.2 W ± 0.6%, 4 steps",
        "ring of samples: 687.4 W ± 0.4%, 40 samples",
        "the two disagree",
    ]
    assert "the two agree" in power(SCRIPTED, power_disagrees=False)
    assert not any("agree" in line for line in power(SCRIPTED))


def test_the_power_between_steps_of_the_counter_is_said_and_what_is_too_early_marked() -> None:
    text = " ".join(power(SCRIPTED))
    assert "(691 W at 0.15 s), 690 W at 0.25 s, 691 W at 0.35 s" in text


def test_many_steps_are_shown_together_and_their_energy_is_that_of_all() -> None:
    steps = [(0.1 + 0.1 * i, 70_000 * i) for i in range(102)]
    steps.append((10.3, 7_210_000))  # with the two before it, 210 J in 0.2 s
    text = " ".join(" ".join(power(Explanation(energy_steps=steps))).split())
    assert "between every 5 of its steps" in text
    assert text.count(" W at ") == 21
    assert "700 W at 10.10 s, 1,050 W at 10.30 s" in text


def test_the_ring_is_drawn_over_time_with_crosses_under_what_is_left_out() -> None:
    lines = power(SCRIPTED)
    start = lines.index("ring of samples, W over 0.78 s")
    chart, foot, legend = lines[start + 1 : -2], lines[-2], lines[-1]
    assert len(chart) == 6
    assert [line.partition("│")[0] for line in chart] == ["690 W ", *[" " * 6] * 4, "680 W "]
    # 5 samples are from the first 0.1 s, and the sixth is an average that begins there.
    assert foot == f"      └{'×' * 6}{'─' * 34}"
    assert legend == "×: of the first 0.1 s, left out (150 to 685 W)"


def test_a_device_that_counts_energy_but_has_no_ring_is_explained_too() -> None:
    details = {**POWER_DETAILS, "power_samples_w": None, "power_samples_rse": None, "power_counter_rse": None}
    lines = power(dataclasses.replace(SCRIPTED, power_samples=[]), details=details)
    assert lines[0] == "energy counter: 688.2 W, 4 steps"
    assert "ring" not in " ".join(lines)


# --- clocks and temperature --------------------------------------------------------------------------


def test_clocks_and_temperature_are_shown_over_time_and_reasons_when_they_held() -> None:
    assert read(SCRIPTED)["readings of clocks and temperature: 6"] == [
        "SM clock MHz      1,830 to 1,980  █▇▅▄▂▁",
        "memory clock MHz  2,619",
        "temperature °C    40 to 45        ▁▂▄▅▇█",
        "throttled by      none (readings 1 to 2), sw_power_cap (readings 3 to 5),",
        "  none (reading 6)",
    ]


def test_a_card_that_is_never_throttled_says_so_in_a_word() -> None:
    looks = [Telemetry(clock_events=0)] * 3
    assert list(read(Explanation(telemetry=looks)).values()) == [["throttled by      none"]]
    assert read(Explanation(telemetry=[Telemetry()] * 3)) == {}


# --- the fraction whose power is measured ------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "says"), [(1.0, "power: wanted, as this one is among the 100% of"), (1e-9, "power: not wanted, as")]
)
def test_of_a_fraction_it_is_said_whether_the_configuration_belongs_to_it(share: float, says: str) -> None:
    rules = MeasuringRules(power="fraction", power_fraction=share)
    assert single._chosen(CONFIGURATION, rules).startswith(says)
    assert rules.wants_power(CONFIGURATION.id) == (share == 1.0)


# --- the row -----------------------------------------------------------------------------------------


def shown(values: dict[str, Any]) -> dict[str, Any]:
    """The lines of a row by their names; a heading is None."""
    device = {"name": "NVIDIA H200", "type": "nvidia-h200", "uuid": "GPU-1"}
    return {
        str(name).strip(): None if isinstance(name, Text) else v for name, v in measurement_view.lines(device, values)
    }


def test_every_field_of_a_row_is_shown() -> None:
    """A marker in each field, so that a new column cannot be forgotten."""
    values = row(details={"registers": "r", "of_a_new_family": "new"}, environment={"driver": "580"})
    plain = [name for name in values if name not in ("details", "environment") and not name.endswith("_rse")]
    marked = {**values, **{name: f"<{name}>" for name in plain}, "runtime_rse": 0.25, "power_rse": 0.5}
    found = shown(marked)
    assert {f"<{name}>" for name in plain} <= set(found.values())
    assert (found["standard error %"], found["power's error %"]) == (25, 50)
    assert (found["registers per thread"], found["of a new family"], found["driver"]) == ("r", "new", "580")


def test_details_of_power_stand_with_the_power() -> None:
    names = list(shown(row(power_w=694.0, details=POWER_DETAILS)))
    at = {name: names.index(name) for name in ("power and energy", "energy counter W", "operands and cache")}
    assert at["power and energy"] < at["energy counter W"] < at["operands and cache"]
    assert "kernel" not in names


def test_a_group_of_which_nothing_is_known_has_no_heading() -> None:
    assert "power and energy" not in shown(row())
    assert "clocks and temperature" not in shown(row())


def test_a_share_is_shown_in_percent() -> None:
    assert shown(row(details={"occupancy": 0.75}))["occupancy %"] == 75


def test_the_efficiency_is_that_of_the_results() -> None:
    values = row(runtime_ms=2.0, power_w=500.0)
    flops = 2 * 512**3
    assert values["gflops_per_w"] == pytest.approx(flops / 2.0 / 1e6 / 500.0)
    assert values["energy_mj"] == 1000.0
    assert values["intensity"] == pytest.approx(flops / (3 * 4 * 512**2))
    slower = row(runtime_ms=2.0, power_w=500.0, runtime_settled_ms=2.5)
    assert (slower["energy_mj"], slower["tflops"]) == (1250.0, values["tflops"])
    assert slower["gflops_per_w"] == pytest.approx(flops / 2.5 / 1e6 / 500.0)


def test_the_protocol_comes_first_and_says_which_time_the_median_is() -> None:
    def time_lines(**changes: Any) -> list[tuple[str, Any]]:
        found = list(shown(row(**changes)).items())
        return found[[name for name, _ in found].index("time") + 1 :]

    limited = time_lines(runtime_burst_ms=0.85, runtime_settled_ms=1.0, power_limited=True)
    assert limited[0] == ("protocol", "farm: the settled time; the burst time is measured as well")
    assert {("burst ms", 0.85), ("settled ms", 1.0), ("power-limited", "yes")} <= set(limited)
    assert time_lines(protocol="server")[0][1].startswith("server: the median of single launches")
    # Rows that are older than both times, and imported ones.
    assert [time_lines(protocol=name)[0][1] for name in ("farm", "unknown")] == ["farm", "unknown"]


def test_whether_a_row_is_power_limited_is_shown_once() -> None:
    told = shown(row(power_w=694.0, power_limited=False, details=POWER_DETAILS))
    assert told["power-limited"] == "no"
    assert "held at the power limit" not in told

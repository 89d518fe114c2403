"""Signs that a card does not yet run a kernel as it will go on running it."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from workers.measure.nvml import Telemetry
from workers.measure.settling import drawn_w, why_unsettled

CAP, IDLE = 0x4, 0x1


def looks(*clocks_mhz: int | None, events: int | None = 0) -> list[Telemetry]:
    return [Telemetry(sm_clock_mhz=clock, clock_events=events) for clock in clocks_mhz]


@pytest.mark.parametrize(
    ("seen", "drawn_w", "limit_w", "fastest_mhz", "sign"),
    [
        (looks(1980, 1980), [400.0, 610.0], 700.0, 1980, None),
        (looks(1980, 1965), [], 700.0, 1980, None),  # a step of the clock is no sign
        (looks(1530, 1980), [], 700.0, 1980, "between 1530 and 1980 MHz"),
        (looks(1980, 1980), [450.0, 860.0, 400.0], 700.0, 1980, "860 W of 700 W"),
        (looks(1980, 1980), [631.0], 700.0, 1980, "631 W of 700 W"),
        (looks(1530, 1530, events=CAP | IDLE), [], None, 1980, "limiter is at work"),
        (looks(1530, 1530, events=CAP), [], None, None, "limiter is at work"),
        (looks(1965, 1965, events=CAP), [], None, 1980, None),  # it lets go of the last percent slowly
        (looks(1530, 1530, events=IDLE), [], None, 1980, None),  # clocks that a user has set
        (looks(None, events=CAP), [], None, None, "limiter is at work"),
        (looks(1980, 1980), [900.0], None, 1980, None),  # a card that does not tell its limit
        (looks(None, None, events=None), [], None, None, None),  # one that tells nothing
        ([], [], 700.0, None, None),
    ],
)
def test_signs(
    seen: list[Telemetry], drawn_w: list[float], limit_w: float | None, fastest_mhz: int | None, sign: str | None
) -> None:
    why = why_unsettled(seen, drawn_w, limit_w, fastest_mhz)
    assert (why is None) == (sign is None)
    assert sign is None or sign in str(why)


@pytest.mark.parametrize(
    ("samples", "drawn"),
    [
        ([(9.99, 300.0), (10.01, 150.0)], [300.0]),  # half of the sample is of the kernel, which drew 300 W at most
        ([(9.99, 150.0), (10.01, 300.0)], []),  # it may draw 600 W of 700 W
        ([(9.985, 150.0), (10.005, 300.0)], []),
        (
            [(9.985, 150.0), (10.005, 300.0), (10.015, 200.0)],
            [200.0],
        ),  # a sample of the kernel alone, though a short one
        ([(9.99, 300.0), (10.01, 650.0), (10.03, 640.0)], [640.0]),
        ([(9.96, 300.0), (9.98, 300.0)], []),  # none since it began
        ([(9.98, 300.0), (10.0, 300.0)], []),
        ([(10.01, 150.0)], []),  # not known since when
        ([(10.02, 650.0)], [650.0]),
        ([], []),
    ],
)
def test_a_power_sample_bounds_the_draw_of_a_kernel_that_began_within_it(
    samples: list[tuple[float, float]], drawn: list[float]
) -> None:
    assert drawn_w(samples, 10.0, 700.0) == pytest.approx(drawn)


def test_no_recorded_kernel_drew_much_more_than_its_bound() -> None:
    recorded = Path(__file__).parents[2] / "benchmarks" / "results" / "power_windows.json.gz"
    windows = json.loads(gzip.decompress(recorded.read_bytes()))
    shares = []
    for window in windows:
        began_s = -window["timing_s"]
        samples = [tuple(sample) for sample in window["ring"]]
        alone = [
            watts for (start_s, _), (end_s, watts) in pairwise(samples) if began_s <= start_s and end_s < began_s + 0.1
        ]
        across = [pair for pair in pairwise(samples) if pair[0][0] < began_s < pair[1][0] < began_s + 0.02]
        for pair in across:
            if alone and (bound := drawn_w(pair, began_s, 1e9)):
                shares.append(max(alone) / bound[0])
    assert len(shares) > 60
    assert max(shares) < 1.12

"""Signs that a card does not yet run a kernel as it will go on running it."""

from __future__ import annotations

import pytest

from workers.measure.nvml import Telemetry
from workers.measure.settling import why_unsettled

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

"""Measures candidates on a card, and waits for their times."""

from __future__ import annotations

import time

from farm.api import Farm, confirming
from farm.api.confirming import Candidates
from farm.cli.output import remarks
from farm.cli.progress import follow


def measure(farm: Farm, wanted: Candidates, timeout: float) -> dict[str, float]:
    """Measures those without a measurement. Returns the times by configuration, in ms.

    If it is interrupted or out of time, it returns the times that have landed so far.

    Args:
        timeout: Maximum time to wait, in seconds.
    """
    submitted = farm.ask(confirming.confirm, wanted)
    if submitted.digest is None:
        return submitted.measured_ms
    end = time.monotonic() + timeout

    def check() -> None:
        if time.monotonic() > end:
            raise TimeoutError

    try:
        follow(farm, submitted.digest, check=check)
    except (TimeoutError, KeyboardInterrupt) as error:
        why = "Interrupted" if isinstance(error, KeyboardInterrupt) else f"Not over after {timeout:g} s"
        remarks.print(f"{why}: {submitted.campaign} continues. To follow it: farm watch {submitted.campaign}")
    return farm.ask(confirming.measured, wanted).measured_ms

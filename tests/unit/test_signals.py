"""Signals that end a program, whatever its main thread is doing."""

from __future__ import annotations

import subprocess
import sys

IN_THE_MIDDLE_OF_A_WAIT = """
import os, signal, threading
from farm.services.reconnecting import set_on_signals

stop = threading.Event()
set_on_signals(stop, signal.SIGTERM)
with stop._cond:  # as `stop.wait` does before and after it waits
    os.kill(os.getpid(), signal.SIGTERM)
print(stop.wait(60))
"""


def test_a_signal_in_the_middle_of_a_wait_for_its_event_stops_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_MIDDLE_OF_A_WAIT], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "True\n"

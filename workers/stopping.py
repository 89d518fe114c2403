"""Telling the two processes of a device that their worker is to stop."""

from __future__ import annotations

import signal
import threading

STOP_SIGNAL = signal.SIGUSR2
"""Sent by the parent to its child when the worker is to stop: finish the job in hand, hand back the rest."""

stopping = threading.Event()
"""Set in both processes when the worker is to stop."""

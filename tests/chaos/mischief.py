"""Configurations that misbehave, and a device that can fall ill: a wrapper around the device that a worker opens.

Production code has no hooks for this. `farm-worker` is started as `python -m chaos.worker`, which starts the Celery
worker of a device as `python -m chaos.process` instead of `python -m workers.process`; that module replaces the one
function by which a worker makes its device, `workers.tasks.open_device`. Celery's `spawn` imports the main module of
the parent in the child, so the child has the replacement too. All else is production code.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import numpy as np
from delegating import Delegating

from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from workers.devices import Device, open_device
from workers.kernels.sources import Kernels
from workers.measure.explain import Explanation

FOLDER = "CHAOS_FOLDER"
"""The environment variable with the folder of `poisons.json` and of the marks of sick devices."""

CLOCK_AHEAD_S = "CHAOS_CLOCK_AHEAD_S"
"""The environment variable that says how many seconds the clock of a host is ahead."""

UNFIT_S = 10.0
"""In place of five minutes: a device whose process was killed three times while it opened gets another try after this."""

LANDING_S, UNLEASED_S = 5.0, 30.0
"""In place of half a minute and two and a half: what a process that stands still costs its device."""

SICK = "the device is ill (chaos)"


class Poison(StrEnum):
    """How a configuration misbehaves."""

    KILLS = "kills its process"
    EXITS = "raises SystemExit"
    HANGS = "hangs"
    HOLDS = "hangs in a call that holds the interpreter"
    POISONS = "poisons the device's context"
    RAISES = "raises what no device should"
    FAILS = "fails"
    EXHAUSTS = "asks for more memory than there is"
    IMPOSSIBLE = "gives a row that the database refuses"
    MALFORMED = "fails with a message that the database cannot store"
    UNKNOWN = "is not in the recording, so that it can never run"


class MischievousDevice(Delegating):
    """A device on which some configurations misbehave, and which fails everything but its canary while it is sick."""

    def __init__(self, device: Device, folder: Path) -> None:
        super().__init__(device)
        self._sick = sick_mark(folder, device.identity.uuid)
        self._poisons = read_poisons(folder)

    def measure(
        self, configuration: Configuration, rules: MeasuringRules, explanation: Explanation | None = None
    ) -> Measurement:
        if configuration is self.canary():
            return self._device.measure(configuration, rules)
        if self._sick.exists():
            raise MeasurementFailed(why=SICK)
        poison = self._poisons.get(str(configuration.id))
        if poison is Poison.IMPOSSIBLE:
            return _impossible_row()
        if poison is not None and poison is not Poison.UNKNOWN:
            misbehave(poison)
        return super().measure(configuration, rules, explanation)


def misbehave(poison: Poison) -> NoReturn:
    """Does what the configuration does to its process; nothing that survives it."""
    match poison:
        case Poison.KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        case Poison.EXITS:
            sys.exit(3)
        case Poison.HANGS:
            threading.Event().wait()
        case Poison.HOLDS:
            while True:  # a signal ends a sleep
                ctypes.PyDLL(None).sleep(3600)
        case Poison.POISONS:
            raise DevicePoisoned(why="chaos poisoned the context")
        case Poison.FAILS:
            raise MeasurementFailed(why="chaos made it fail")
        case Poison.EXHAUSTS:
            np.empty(2**50)
        case Poison.MALFORMED:
            raise MeasurementFailed(why="chaos wrote a zero byte: \0")
    raise RuntimeError("chaos raised")


def _impossible_row() -> Measurement:
    return Measurement(
        runtime_ms=1.0,
        runtime_q1_ms=1.0,
        runtime_q3_ms=1.0,
        runtime_min_ms=1.0,
        runtime_rse=0.0,
        samples=0,  # the table's constraint wants more
        stop_reason="chaos",
        l2="cold",
    )


def sick_mark(folder: Path, uuid: str) -> Path:
    """The file that makes a device sick for as long as it is there."""
    return folder / f"sick-{uuid}"


def write_poisons(folder: Path, poisons: dict[str, Poison]) -> None:
    """By configuration id, as text."""
    (folder / "poisons.json").write_text(json.dumps(poisons))


def read_poisons(folder: Path) -> dict[str, Poison]:
    found = json.loads((folder / "poisons.json").read_text())
    return {configuration_id: Poison(poison) for configuration_id, poison in found.items()}


def _open_mischievous(identity: DeviceIdentity, kernels: Kernels) -> Device:
    return MischievousDevice(open_device(identity, kernels), Path(os.environ[FOLDER]))


def install() -> None:
    """Makes this process open mischievous devices, and puts its clock ahead."""
    patch("workers.tasks.open_device", _open_mischievous).start()
    patch("farm.db.devices.UNFIT_SECONDS", UNFIT_S).start()
    patch("workers.runner.LANDING_SECONDS", LANDING_S).start()
    patch("workers.tasks.UNLEASED_SECONDS", UNLEASED_S).start()
    set_clock_ahead()


def set_clock_ahead() -> None:
    ahead_s, now = float(os.environ.get(CLOCK_AHEAD_S, "0")), time.time
    if ahead_s:
        patch("time.time", lambda: now() + ahead_s).start()

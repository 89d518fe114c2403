"""Configurations that misbehave, a device that can fall ill, a landing that stops: wrappers around what a worker uses.

Production code has no hooks for this. `farm-worker` is started as `python -m chaos.worker`, which starts the Celery
worker of a device as `python -m chaos.process` instead of `python -m workers.process`; that module replaces the one
function by which a worker makes its device, `workers.tasks.open_device`. Celery's `spawn` imports the main module of
the parent in the child, so the child has the replacement too. All else is production code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
from sqlalchemy import Engine, event

from farm.db.batches import working
from farm.devices import DeviceIdentity
from farm.errors import DevicePoisoned, MeasurementFailed
from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.variables import WORKER_DEVICE_ID
from support.delegating import Delegating
from workers.devices import Device, open_device
from workers.kernels.sources import Kernels
from workers.measure.explain import Explanation

FOLDER = "CHAOS_FOLDER"
"""The environment variable with the folder of `poisons.json` and of the marks of sick devices."""

CLOCK = "CHAOS_CLOCK"
"""The environment variable with the file that says how many seconds the clock of a host is ahead."""

HURRY = "CHAOS_HURRY"
"""The environment variable that shortens what else takes minutes: set where a minute of chaos stands for a day."""

OLDER = "CHAOS_OLDER"
"""The environment variable that makes a worker one of an older version."""

LOOK_S = 0.2
"""Between two looks whether the clock has stepped, and whether a landing may go on."""

STOPPED_S = 3.0
"""How long a landing stops where nothing comes of it."""

LANDS = "worker_land("
"""What the statement of a landing contains, and no other one of a worker."""

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
    """Makes this process open mischievous devices, stop in a landing where it should, and follow its host's clock."""
    patch("workers.tasks.open_device", _open_mischievous).start()
    event.listen(Engine, "after_cursor_execute", stop_in_a_landing)
    if HURRY in os.environ:
        patch("farm.db.devices.UNFIT_SECONDS", UNFIT_S).start()
        patch("workers.runner.LANDING_SECONDS", LANDING_S).start()
        patch("workers.tasks.UNLEASED_SECONDS", UNLEASED_S).start()
    if OLDER in os.environ:
        know_less()
    follow_the_clock()


NOT_KNOWN = "cannot read the kernel: it knows one thread only (chaos)"


def know_less() -> None:
    """Makes this process one of an older version, to which the kernels of blas have one thread, and which says so.

    Its recording is read as ever: it stands for a device, which does not change with the version of its worker.
    """
    read = working._configuration

    def read_less(row: Mapping[str, Any]) -> Configuration | str:
        return read(row) if row["parameters"].get("threads", 1) == 1 else NOT_KNOWN

    patch("farm.db.batches.working._configuration", read_less).start()
    patch("farm.db.worker_versions.vocabulary", lambda: "older").start()


def landing_mark(folder: Path, device_id: int) -> Path:
    """The file that makes a device stop in its next landing: when the server has its rows, and before they are committed.

    Then it is replaced by one with the suffix `.reached` and the process's number. The landing goes on when that is gone,
    or after `STOPPED_S`.
    """
    return folder / f"landing-{device_id}"


def stop_in_a_landing(_: object, __: object, statement: str, *___: object) -> None:
    """For `after_cursor_execute`."""
    if LANDS not in statement:
        return
    mark = landing_mark(Path(os.environ[FOLDER]), int(os.environ[WORKER_DEVICE_ID]))
    reached = mark.with_suffix(".reached")
    with contextlib.suppress(FileNotFoundError):
        mark.unlink()
        reached.write_text(str(os.getpid()))
        end = time.monotonic() + STOPPED_S
        while reached.exists() and time.monotonic() < end:
            time.sleep(LOOK_S)
        reached.unlink()


def follow_the_clock() -> None:
    """`time.time` of this process is ahead by what its host's file says, now and whenever that changes.

    Other ways to read the clock (`datetime`, libraries in C) are not: neither Python nor Linux lets one process have a
    real-time clock of its own.
    """
    file, now, ahead_s = Path(os.environ[CLOCK]), time.time, [0.0]

    def look() -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):  # it is being written
                ahead_s[0] = float(file.read_text())
            time.sleep(LOOK_S)

    ahead_s[0] = float(file.read_text())
    threading.Thread(target=look, name="clock", daemon=True).start()
    patch("time.time", lambda: now() + ahead_s[0]).start()

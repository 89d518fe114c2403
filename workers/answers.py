"""What a process that measures for a command answers: JSON objects on standard output, one a line.

When the device is open, or why it is not:

    {"opened": {"uuid": …, "type": …, "name": …}, "of": how many devices the selection names}
    {"refused": {"exit_code": …, "message": …}}
    {"failure": {"kind": "invalid", "failed", "killed", "corrupted" or "refused", "message": …}}

A `failure` may also be the answer to a measurement. `workers.single`, `workers.arm` and `workers.check` describe their other answers.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from farm.devices import DeviceIdentity
from farm.errors import BadInput, FarmError, NotFound, ServiceUnavailable
from farm.logs import set_up_logging
from farm.settings import settings
from workers.device_lock import DeviceLock, lock_folder
from workers.failure_kinds import kind_of

if TYPE_CHECKING:
    from workers.devices import Device

log = logging.getLogger(__name__)

Answer = dict[str, Any]


def print_answers(command: str, answers: Callable[[], Iterable[Answer]]) -> None:
    """Prints the answers as they become known. What anything else prints meanwhile goes to standard error.

    Args:
        command: the command of the farm that started the process, for its log.
        answers: gives the answers. It is called when nothing else reaches standard output.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    set_up_logging(settings(), command)
    for answer in answers():
        output.write(json.dumps(answer) + "\n")
        output.flush()


class DeviceUnusable(Exception):
    """The device cannot be found, locked or opened. `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


@contextmanager
def _unusable() -> Iterator[None]:
    """Raises `DeviceUnusable` for every error."""
    try:
        yield
    except (BadInput, ServiceUnavailable, NotFound) as error:
        raise DeviceUnusable(refusal_of(error)) from error
    except Exception as error:
        raise DeviceUnusable(failure_of(error)) from error


def find(selection: str) -> Sequence[DeviceIdentity]:
    """The devices of a selection, as in FARM_DEVICES. The first one is used. Raises `DeviceUnusable`."""
    from workers.devices import discover  # imports libraries, which may print

    with _unusable():
        return discover(selection)


def lock(identity: DeviceIdentity, held: ExitStack) -> None:
    """Locks a device until `held` is closed. A recording is not locked. Raises `DeviceUnusable`."""
    if identity.backend.runs_kernels:
        with _unusable():
            held.callback(DeviceLock.take(identity.uuid, lock_folder()).release)


def open_first(found: Sequence[DeviceIdentity]) -> tuple[Device, Answer]:
    """Opens the first device, and returns it with the answer that says so. Raises `DeviceUnusable`."""
    from workers.devices import open_device

    with _unusable():
        device = open_device(found[0])
        device.open()
    here = {name: getattr(device.identity, name) for name in ("uuid", "type", "name")}
    return device, {"opened": here, "of": len(found)}


def refusal_of(error: FarmError) -> Answer:
    """With the exit code of the command."""
    return {"refused": {"exit_code": error.exit_code, "message": str(error)}}


def failure_of(error: Exception) -> Answer:
    """In the classes of a job's errors. What is not an error of the farm is a defect, and its traceback is logged."""
    message = str(error)
    if not isinstance(error, FarmError):
        log.error("the device raised", exc_info=error)
        message = f"{type(error).__name__}: {error}"
    return {"failure": {"kind": kind_of(error).value, "message": message}}

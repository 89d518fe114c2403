"""Which kind of failure an error of a device is: for a job of a campaign and for `farm measure` alike."""

from __future__ import annotations

from farm.db.states import FailureKind
from farm.errors import DevicePoisoned, InvalidOnDevice, KernelRefused, ResultCorrupted

_KINDS: dict[type[Exception], FailureKind] = {
    InvalidOnDevice: FailureKind.INVALID,
    DevicePoisoned: FailureKind.KILLED,
    ResultCorrupted: FailureKind.CORRUPTED,
    KernelRefused: FailureKind.REFUSED,
}


def kind_of(error: Exception) -> FailureKind:
    """The kind of a failure that this error of a device is the cause of."""
    return next((kind for cause, kind in _KINDS.items() if isinstance(error, cause)), FailureKind.FAILED)

"""Translates CUDA's errors: whether a job can be tried again, and whether this process can continue.

CuPy's exceptions are recognised by name, so that this module does not import CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farm.errors import DeviceOutOfMemory, DevicePoisoned, FarmError, MeasurementFailed

# After these errors every call in the process fails (CUDA calls them sticky), or the card may be defective. The names are
# those of cudaError_t and CUresult in lower case, without prefix and underscores.
_STICKY = frozenset(
    {
        *("illegaladdress", "launchfailure", "launchfailed", "launchtimeout", "hardwarestackerror", "assert"),
        *("illegalinstruction", "misalignedaddress", "invalidaddressspace", "invalidpc", "contained"),
        *("eccuncorrectable", "nvlinkuncorrectable", "tensormemoryleak", "externaldevice", "systemdriverfailure"),
        *("devicesunavailable", "deviceunavailable", "devicelost", "nodevice", "unknown"),
        *("deinitialized", "cudartunloading", "contextisdestroyed"),
    }
)


def _ancestors(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def cuda_name(error: BaseException) -> str:
    """`illegaladdress` of both cudaErrorIllegalAddress and CUDA_ERROR_ILLEGAL_ADDRESS: CuPy's messages begin so."""
    word = str(error).split(":", 1)[0].strip().lower().replace("_", "")
    return word.removeprefix("cudaerror")


def translate(error: BaseException) -> FarmError | None:
    """The farm's error for one of CuPy's; None for what did not come from CUDA."""
    names = _ancestors(error)
    message = next(iter(str(error).splitlines()), type(error).__name__)
    if "OutOfMemoryError" in names:
        return DeviceOutOfMemory(why=message)
    if names & {"CUDARuntimeError", "CUDADriverError"}:
        name = cuda_name(error)
        if name in _STICKY:
            return DevicePoisoned(why=message)
        if name in {"memoryallocation", "outofmemory"}:
            return DeviceOutOfMemory(why=message)
        return MeasurementFailed(why=message)
    if names & {"CompileException", "NVRTCError"}:
        return MeasurementFailed(why=f"the kernel does not compile: {message}")
    if "CUBLASError" in names:
        return MeasurementFailed(why=f"the reference product failed: {message}")
    if "cuBLASLtError" in names:
        return MeasurementFailed(why=f"cuBLASLt: {message}")
    return None


@contextmanager
def cuda_errors() -> Iterator[None]:
    """Raises CuPy's exceptions as `MeasurementFailed` or `DevicePoisoned`."""
    try:
        yield
    except FarmError:
        raise
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error

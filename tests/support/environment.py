"""One environment for all tests, whatever shell, folder and account they are started from.

`conftest` imports this before everything else of the farm: some modules of the farm and of rich read the environment when they are imported.
What the tests start inherits it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

FIXED = {
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
    # Threads of a product that is smaller than a test's spin while they wait for a core that other tests have: three times
    # the processor time of the product itself. Kernels of the family `blas` set their own number.
    "OPENBLAS_NUM_THREADS": "1",
    # Nobody speaks for the devices that tests announce, and a busy machine may need longer than 20 s for a test.
    "FARM_SILENT_AFTER_SECONDS": "600",
}

_PREFIXES = ("FARM_", "MLFLOW_", "LC_", "PG", "PROMETHEUS_", "CELERY_")
_NAMES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "TTY_COMPATIBLE",
          "TTY_INTERACTIVE", "LANGUAGE", "TZ", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONUNBUFFERED",
          "PYTHONDONTWRITEBYTECODE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # fmt: skip
_KEPT = "FARM_TEST_"
_MEMORY = Path("/dev/shm")
_NEEDED_BYTES = 2 * 2**30
_KEY = "FARM_TEST_MODEL_KEY"


def settle() -> None:
    """Sets and clears what programs read from their environment."""
    for name in list(os.environ):
        if name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_KEPT)):
            del os.environ[name]
    os.environ.update(FIXED)
    sys.dont_write_bytecode = False  # each process of the tests would compile the farm and the tests again
    os.umask(0o022)
    # A database and several folders for each test are thousands of files, which a disk makes and removes ten times slower.
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY) if _holds_files_of_tests(_MEMORY) else "/tmp"
    home = os.environ.get("HOME", "")
    if not os.path.isdir(home) or not os.access(home, os.W_OK | os.X_OK):  # noqa: PTH112 - "" is no folder
        _make_home()
    # Models that one test registers are asked by programs of other homes.
    os.environ["FARM_MODEL_SIGNING_KEY"] = _signing_key()
    # Tests of several processes serve the same devices at the same time.
    os.environ["FARM_DEVICE_LOCKS"] = _temporary_folder("farm-tests-locks-")
    # A shell that starts the tests in the background has them ignore Ctrl-C, and nohup the end of the terminal. All that they
    # start would inherit that.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def _holds_files_of_tests(folder: Path) -> bool:
    """Whether it has room for them, and lets programs run that tests put there. Containers often have a small /dev/shm."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _NEEDED_BYTES


def _signing_key() -> str:
    """The file of a key that signs models, and whose models are trusted. Worker processes of a test run share it."""
    from farm.signing import Signer

    if _KEY not in os.environ:
        file = os.environ[_KEY] = os.path.join(_temporary_folder("farm-tests-keys-"), "model.pem")  # noqa: PTH118
        Signer.make(Path(file))
    return os.environ[_KEY]


def _make_home() -> None:
    os.environ["HOME"] = _temporary_folder("farm-tests-home-")


def _temporary_folder(prefix: str) -> str:
    """A folder that is removed when this process ends."""
    folder, process = tempfile.mkdtemp(prefix=prefix), os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


settle()

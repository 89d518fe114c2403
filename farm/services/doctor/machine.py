"""What this machine is asked: Python, folders, libraries, the GPU's driver, limits."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from farm.builds import installed_toolchains, versions_of
from farm.installing import INSTALL
from farm.kernels.toolchains import NVCC, TOOLCHAINS
from farm.services.cluster import find_cluster
from farm.services.doctor.check import Check, CheckState
from farm.services.home import Home
from farm.services.server_binaries import output_of
from farm.settings import Settings, unknown_variables
from farm.vendors import NVIDIA

DISK_NEEDED_BYTES, DISK_WARNING_BYTES = 512 * 2**20, 5 * 2**30
"""A new cluster with its tables takes 46 MB, and its log of changes grows to 1 GB (max_wal_size) before it is used again."""
FILES_WARNING = 1024
"""The usual soft limit of open files. Every connection, pipe and log takes one."""


def check_python(_: Settings) -> Check:
    what = f"Python {platform.python_version()}, {platform.platform(terse=True)}"
    if (3, 11) <= sys.version_info[:2] < (3, 13) and sys.platform == "linux":
        return Check("python", CheckState.OK, what)
    return Check("python", CheckState.MISSING, what, "use Python 3.11 or 3.12 on Linux")


def check_settings(settings: Settings) -> Check:
    """Which variables are set; those that are no settings. Wrong values end every command before this."""
    what = ", ".join(f"{name}={value}" for name, value in settings.in_force.items()) or "all at their defaults"
    if unknown := unknown_variables():
        return Check("settings", CheckState.WARNING, what, " ".join(unknown))
    return Check("settings", CheckState.OK, what)


def check_home(settings: Settings) -> Check:
    home = Home.of(settings).path
    nearest = _nearest(home)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check("home", CheckState.OK, str(home) if home.exists() else f"{home}, to be made")
    return Check("home", CheckState.MISSING, f"{nearest} cannot be written", "set FARM_HOME to a folder of your own")


def check_disk(settings: Settings) -> Check:
    cluster = find_cluster(Home.of(settings))
    places = {_nearest(Home.of(settings).path), *([cluster.base] if cluster else [])}
    free, place = min((shutil.disk_usage(p).free, p) for p in places)
    what = f"{free / 2**30:.1f} GiB free at {place}"
    if free < DISK_NEEDED_BYTES:
        return Check("disk", CheckState.MISSING, what, "make room, or set FARM_HOME to another disk")
    if free < DISK_WARNING_BYTES:
        return Check("disk", CheckState.WARNING, what, "make room before a large campaign")
    return Check("disk", CheckState.OK, what)


def check_libraries(_: Settings) -> Check:
    """MLflow and scikit-learn are really imported, in a process of their own: a broken installation has their files."""
    code = "import mlflow, sklearn; print(f'MLflow {mlflow.__version__}, scikit-learn {sklearn.__version__}')"
    install = INSTALL["trainer"]
    absent = [name for name in ("mlflow", "sklearn") if importlib.util.find_spec(name) is None]
    if absent:
        return Check(
            "models", CheckState.WARNING, f"not installed: {', '.join(absent)}; this machine cannot train", install
        )
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(
            "models", CheckState.WARNING, "importing MLflow and scikit-learn takes over two minutes", "use a local disk"
        )
    if done.returncode != 0:
        output = done.stderr.strip().splitlines() or ["import failed"]
        return Check("models", CheckState.WARNING, output[-1], f"install again: {install}")
    return Check("models", CheckState.OK, done.stdout.strip().splitlines()[-1])


def check_gpu(_: Settings) -> Check:
    driver = _nvidia_driver()
    if driver is None:
        return Check("gpu", CheckState.OK, "no NVIDIA driver: this machine measures its CPU")
    extra = NVIDIA.extra_for(driver)
    needed = (("pynvml", "nvidia-ml-py"), ("cupy", f"cupy-{extra}x"))
    absent = [package for module, package in needed if importlib.util.find_spec(module) is None]
    if absent:
        what = f"NVIDIA driver {driver}, but not installed: {', '.join(absent)}"
        return Check("gpu", CheckState.WARNING, what, INSTALL[extra])
    what = f"NVIDIA driver {driver}, CuPy and NVML"
    if not _is_there("nvidia.cusparselt"):
        what += f"; no cuSPARSELt, so that the family cusparselt is invalid here ({INSTALL[extra]})"
    return Check("gpu", CheckState.OK, what)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def check_builder(settings: Settings) -> Check:
    """Only builders need it; a machine without is as healthy."""
    toolchains, versions = installed_toolchains(settings), versions_of(settings)
    if not toolchains:
        extras = ", ".join(INSTALL[toolchain.extra] for toolchain in TOOLCHAINS)
        return Check("builder", CheckState.OK, f"not installed: this machine builds no kernels ({extras})")
    if NVCC in toolchains and shutil.which("g++") is None and shutil.which("c++") is None:
        return Check("builder", CheckState.WARNING, "the extra build is installed, but g++ is not there", "install g++")
    what = "; ".join(toolchain.text(versions) for toolchain in toolchains)
    return Check("builder", CheckState.OK, f"{what}: farm-worker --build builds kernels")


def check_limits(_: Settings) -> Check:
    files, files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    what = f"{'unlimited' if files == resource.RLIM_INFINITY else files} open files"
    if files != resource.RLIM_INFINITY and files < FILES_WARNING:
        return Check("limits", CheckState.WARNING, what, f"ulimit -n {min(files_most, FILES_WARNING)} in the shell")
    if memory != resource.RLIM_INFINITY:
        what += f", {memory / 2**30:.1f} GiB of address space"
        return Check("limits", CheckState.WARNING, what, "ulimit -v unlimited: CUDA reserves far more than it uses")
    return Check("limits", CheckState.OK, what)


def _nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, as in 580.65.06; None where there is none."""
    try:
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    if found is not None:
        return found[1]
    output = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return output.splitlines()[0].strip() if output else None


def _nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(p for p in (path, *path.parents) if p.exists())

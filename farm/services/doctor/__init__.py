"""The checks of `farm doctor`: everything that the farm depends on, whether it works, and how to fix it.

A check starts no service and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from farm.services.doctor import machine, servers, versions
from farm.services.doctor.check import Check, CheckState
from farm.settings import Settings

CHECKS: Sequence[Callable[[Settings], Check]] = (
    machine.check_python, machine.check_settings, machine.check_home, machine.check_disk, servers.check_database,
    versions.check_revision, servers.check_backup, servers.check_broker, servers.check_encryption,
    servers.check_coordinator, servers.check_locks, versions.check_programs, versions.check_workers,
    servers.check_devices, servers.check_sessions, machine.check_libraries, servers.check_registry,
    machine.check_gpu, machine.check_builder, servers.check_clock, machine.check_limits, servers.check_stack,
)  # fmt: skip
"""In the order in which problems are best fixed."""


def examine(settings: Settings) -> list[Check]:
    """Runs every check and returns the results in the order of `CHECKS`."""
    # At once: most of the time goes into waiting for programs, and for MLflow's import in a process of its own.
    with ThreadPoolExecutor(max_workers=len(CHECKS)) as pool:
        return [done.result() for done in [pool.submit(check, settings) for check in CHECKS]]

"""What `farm doctor` looks at: everything the farm depends on, whether it is well, and what would mend it.

A check starts no service and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from farm.services.doctor.check import Check, CheckState
from farm.services.doctor.machine import (
    check_builder,
    check_disk,
    check_gpu,
    check_home,
    check_libraries,
    check_limits,
    check_python,
    check_settings,
)
from farm.services.doctor.servers import (
    check_broker,
    check_clock,
    check_coordinator,
    check_database,
    check_devices,
    check_encryption,
    check_locks,
    check_registry,
    check_revision,
    check_sessions,
    check_stack,
    check_workers,
)
from farm.settings import Settings

__all__ = ["Check", "CheckState", "examine"]


def examine(settings: Settings) -> list[Check]:
    """Every check, in the order in which they are best mended."""
    checks: list[Callable[[Settings], Check]] = [
        check_python,
        check_settings,
        check_home,
        check_disk,
        check_database,
        check_revision,
        check_broker,
        check_encryption,
        check_coordinator,
        check_locks,
        check_workers,
        check_devices,
        check_sessions,
        check_libraries,
        check_registry,
        check_gpu,
        check_builder,
        check_clock,
        check_limits,
        check_stack,
    ]
    # At once: most of the time goes into waiting for programs, and for MLflow's import in a process of its own.
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return [done.result() for done in [pool.submit(check, settings) for check in checks]]

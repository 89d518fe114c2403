"""How much memory a training takes, estimated before its rows are read."""

from __future__ import annotations

from farm import host_memory
from farm.errors import TooLittleMemory

ROW_BYTES = 800
"""Of each measurement: its part of the table, of its hash and of the reduction to configurations (`benchmarks/training_tables.py`)."""

CONFIGURATION_BYTES = 8_500
"""Of each of the first `MANY_CONFIGURATIONS`, while models are fitted and evaluated (`benchmarks/training_scale.py`)."""

MORE_CONFIGURATION_BYTES = 3_000
"""Of each further configuration. Trees do not grow any more: see `ForestSettings.max_rows_per_tree`."""

MANY_CONFIGURATIONS = 100_000


def needed_bytes(rows: int, configurations: int) -> int:
    """What a training on a table takes, in addition to what the trainer has without one."""
    more = max(0, configurations - MANY_CONFIGURATIONS)
    return ROW_BYTES * rows + CONFIGURATION_BYTES * (configurations - more) + MORE_CONFIGURATION_BYTES * more


def require_memory(device_type: str, *, rows: int, configurations: int) -> None:
    """Raises `TooLittleMemory` if a training on so many rows and configurations would take more memory than is available."""
    needed, available = needed_bytes(rows, configurations), host_memory.available_bytes()
    if needed > available:
        raise TooLittleMemory(
            device_type=device_type,
            rows=rows,
            configurations=configurations,
            needed_gib=needed / 2**30,
            available_gib=available / 2**30,
        )

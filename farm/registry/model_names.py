"""Names of registered models. It imports nothing, because shell completion of every command needs it."""

from __future__ import annotations

PREFIX = "gemm-forest-"


def model_name(device_type: str) -> str:
    """The registered name of a device type's model; a registered name is returned unchanged."""
    return device_type if device_type.startswith(PREFIX) else PREFIX + device_type

"""GEMM Farm: the core, the coordinator, and the Python API.

What `__all__` names is the public Python API. Nothing in this package imports CUDA, the workers or the trainer. It reaches those
by Celery task name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.client import Campaign, Client, Table, connect
    from farm.errors import BadInput, FarmError, Forbidden, NotFound, ServiceUnavailable, WaitTimedOut

__version__ = "0.1.0"

__all__ = [
    "BadInput",
    "Campaign",
    "Client",
    "FarmError",
    "Forbidden",
    "NotFound",
    "ServiceUnavailable",
    "Table",
    "WaitTimedOut",
    "__version__",
    "connect",
]

__getattr__ = names_of(__name__)

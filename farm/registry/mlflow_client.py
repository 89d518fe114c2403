"""MLflow: imports it without noise, connects to a registry, and translates its errors."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from farm.errors import MlflowMissing, RegistryUnreachable
from farm.registry.local_registry import sqlite_file

CONNECT_SECONDS = 5.0
"""How long a registry server may take to accept a connection."""

_QUIET = {
    # No telemetry.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # No spans of its own for the collector of the farm.
    "MLFLOW_ENABLE_OTLP_EXPORTER": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

_LOG_LEVELS = {
    "mlflow": logging.WARNING,
    # It warns about environments without pip, such as those of uv.
    "mlflow.utils.environment": logging.ERROR,
    "alembic": logging.WARNING,
}


def load_mlflow() -> Any:
    """MLflow without usage telemetry, progress bars and informational lines. Raises `MlflowMissing`."""
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        import mlflow
    except ModuleNotFoundError:
        raise MlflowMissing from None
    for name, level in _LOG_LEVELS.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, level))
    return mlflow


@contextmanager
def mlflow_warnings_ignored() -> Iterator[None]:
    """Suppresses MLflow's warnings about its own code: type hints, and deprecations of SQLAlchemy 2.1 and pandas 3.

    Python has one list of filters for all threads. The first thread inside changes it, and the last one to leave restores it.
    Otherwise a thread that leaves first would turn the warnings of the others on, and the last one would leave them off.
    """
    _ignoring.enter()
    try:
        yield
    finally:
        _ignoring.leave()


class _Ignoring:
    """Warnings are ignored while at least one thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._restore = ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._restore.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._restore.close()


_ignoring = _Ignoring()


def load_pyfunc() -> Any:
    """The module `mlflow.pyfunc`. Raises `MlflowMissing`."""
    load_mlflow()
    with mlflow_warnings_ignored():
        return importlib.import_module("mlflow.pyfunc")


@contextmanager
def registry_client(uri: str) -> Iterator[Any]:
    """An `MlflowClient` of that tracking and registry URI. Errors inside become `RegistryUnreachable`."""
    _check_answers(uri)
    mlflow = load_mlflow()
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with mlflow_warnings_ignored():
            client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        yield client
    except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
        raise RegistryUnreachable(url=uri, why=first_line(error)) from error


def has_been_used(uri: str) -> bool:
    """False for a local store that does not exist yet: reading it would create it, which takes seconds."""
    file = sqlite_file(uri)
    return file is None or file.exists()


def _check_answers(uri: str) -> None:
    """Detects a missing server within `CONNECT_SECONDS`; MLflow itself retries for minutes."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise RegistryUnreachable(url=uri, why=first_line(error)) from None


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

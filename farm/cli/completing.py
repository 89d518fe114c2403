"""Shell completion: names of campaigns, devices, types, models, kernel families and recordings.

Completion must be fast. Names come from the file that earlier commands wrote (`farm.completion_names`), or from the API of
FARM_API_URL within `SECONDS`. It starts no service, and an error completes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer import core

from farm.completion_names import default_home, recall
from farm.ownership import why_untrusted

SECONDS = 1.0
"""Time limit for the API."""

COMPLETED = {
    "campaign": "campaigns",
    "device": "devices",
    "which": "devices",
    "type": "types",
    "device_type": "types",
    "device_types": "types",
    "side": "types",
    "family": "families",
    "families": "families",
    "models name": "models",
    "open name": "campaigns",
    "delete name": "{kind}s",
    "replay name": "recordings",
}
"""The kind of names by parameter, after the group or command if the parameter has another meaning elsewhere.

`{kind}` is the value of another parameter."""


def add_completion(command: Any, words: Sequence[str]) -> None:
    """Adds completions to the parameters of a command. Typer completes enumerations."""
    for parameter in command.params:
        places = (f"{' '.join(words)} ", f"{words[0]} ", "")
        kind = next(
            (COMPLETED[place + parameter.name] for place in places if place + parameter.name in COMPLETED), None
        )
        if kind is not None:
            parameter.shell_complete = _completion(kind)


def _completion(kind: str) -> Callable[[Any, str], list[Any]]:
    def complete(context: Any, incomplete: str) -> list[Any]:
        typer_core: Any = core  # it imports the class without exporting it
        return [
            typer_core.CompletionItem(name)
            for name in names_of(kind.format(**context.params))
            if name.startswith(incomplete)
        ]

    return complete


def names_of(kind: str) -> Sequence[str]:
    """The names of a kind. Never raises, and prints nothing."""
    try:
        if kind == "families":
            from farm.kernels.families import FAMILIES

            return list(FAMILIES)
        if kind == "recordings":
            return _recordings()
        if url := os.environ.get("FARM_API_URL"):
            with _in_time(SECONDS):
                return _of_api(url, kind)
        home = Path(os.environ.get("FARM_HOME") or default_home())
        if why_untrusted(home) is not None:
            return []
        return recall(home, os.environ.get("FARM_DATABASE_URL") or None).get(kind, [])
    except Exception:
        return []


def _recordings() -> list[str]:
    """The recordings that are shipped with the farm, without recordings of sentinels."""
    from farm.shipped import folder

    found = folder("datasets")
    files = [] if found is None else found.glob("*.parquet")
    return sorted(path.stem for path in files if not path.stem.endswith("-sentinels"))


def _of_api(url: str, kind: str) -> list[str]:
    path, field = {
        "campaigns": ("campaigns?limit=500", "name"),
        "devices": ("devices/names", "uuids"),
        "types": ("devices/names", "types"),
        "models": ("models", "name"),
    }[kind]
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        return []
    request = Request(f"{url.rstrip('/')}/api/v1/{path}", headers={"Accept": "application/json"})
    if token := os.environ.get("FARM_API_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=SECONDS) as answer:
        found = json.load(answer)
    names = found[field] if isinstance(found, dict) else [row[field] for row in found]
    return list(dict.fromkeys(str(name) for name in names))


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in the block after that time. The timeout of a socket applies to each read, not to the request."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def silent() -> Iterator[None]:
    """Discards standard error in the block. An error ends the process with no completions."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        try:
            yield
        except Exception:
            sys.exit(0)

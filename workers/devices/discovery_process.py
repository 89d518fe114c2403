"""Discovery in a separate process. It needs NumPy and Arrow, which would add 90 MB to a process that only hosts workers.

python -m workers.devices.discovery_process WORD…
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farm import errors, python_program
from farm.devices import DeviceIdentity
from farm.errors import FarmError
from farm.vendors import CPU, RECORDED

Found = list[DeviceIdentity] | FarmError
"""What a word names, or why that cannot be found."""

_Response = tuple[list[DeviceIdentity] | None, str, dict[str, Any]]
"""The devices; or None, the class of an error, and its fields."""


class DiscoveryProcess:
    """The results of `workers.devices.discover` for single words. A device that cannot have changed is not looked for again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Found]] = {}

    def find(self, words: Sequence[str]) -> dict[str, Found]:
        """By word: its devices, or the error of `discover`. One process looks for all words that need it."""
        states = {word: _state(word) for word in words}
        changed = [word for word, state in states.items() if state is None or self._known.get(word, ())[:1] != (state,)]
        responses = dict(zip(changed, _discover(changed), strict=True)) if changed else {}
        self._known.update(
            (word, (states[word], found)) for word, found in responses.items() if isinstance(found, list)
        )
        return {word: responses[word] if word in responses else self._known[word][1] for word in words}


def _state(word: str) -> object:
    """What the devices of a word depend on. None if that is not known; then they are looked for each time."""
    if RECORDED.is_named_by(word):
        file = Path(word.removeprefix(RECORDED.word).partition("?")[0])
        return tuple(_version(path) for path in (file, file.with_name(f"{file.name}.json")))
    return word if CPU.is_named_by(word) else None


def _version(path: Path) -> tuple[int, ...] | str:
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _discover(words: Sequence[str]) -> list[Found]:
    done = subprocess.run(python_program.program(__name__, *words), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return [FarmError(detail=f"the discovery process ended with status {done.returncode}") for _ in words]
    return _read(done.stdout)


def _written(find: Callable[[str], list[DeviceIdentity]], words: Sequence[str]) -> bytes:
    return pickle.dumps([_response(find, word) for word in words])


def _read(written: bytes) -> list[Found]:
    responses: list[_Response] = pickle.loads(written)
    return [getattr(errors, error)(**fields) if found is None else found for found, error, fields in responses]


def _response(find: Callable[[str], list[DeviceIdentity]], word: str) -> _Response:
    try:
        return find(word), "", {}
    except FarmError as error:
        return None, type(error).__name__, error.fields
    except Exception as error:  # an error of the disk
        return None, FarmError.__name__, {"detail": str(error)}


def main(words: Sequence[str]) -> None:
    from farm.logs import set_up_logging
    from farm.settings import settings
    from workers.devices.discovery import discover

    set_up_logging(settings(), "farm-worker")
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # libraries may print
    out.write(_written(discover, words))


if __name__ == "__main__":
    main(sys.argv[1:])

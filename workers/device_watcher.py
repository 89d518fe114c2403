"""Device discovery while a host serves: which of the selected devices are present now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.devices import DeviceIdentity
from farm.errors import BadRecording, CudaUnavailable, FarmError, MissingColumns, UnknownDeviceSelection
from farm.vendors import CPU, NVIDIA
from workers.devices import cards, discover
from workers.devices.discovery import warn_of_unused_cards
from workers.devices.discovery_process import DiscoveryProcess, Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of one scan of the host."""

    # Each device once, in the order of the selection.
    found: Sequence[DeviceIdentity]
    # UUIDs of known devices that this scan could not look for. They are neither present nor gone.
    unknown: frozenset[str] = frozenset()
    # Whether the driver listed its cards.
    cards_known: bool = True
    # By word of the selection: why it selects no device.
    problems: Mapping[str, str]


class DeviceWatcher:
    """Looks for the devices of a selection (see `workers.devices.discover`), word by word, so that a missing device hides no other.

    A scan raises `UnknownDeviceSelection` if the selection cannot be read. All other problems are in the `Scan`.
    """

    def __init__(self, selection: str) -> None:
        self._selection = selection
        self._words = [word.strip() for word in selection.split(",") if word.strip()]
        self._cards = _Cards()
        self._others = DiscoveryProcess()
        # By word: the UUIDs of every device that it ever gave.
        self._given: dict[str, set[str]] = {}

    def first(self) -> Scan:
        """A scan that finds at least one device. Raises the error of `discover` if there is none."""
        scan = self.scan()
        if not scan.found:
            discover(self._selection)
            scan = self.scan()  # it has just come
        return scan

    def scan(self) -> Scan:
        """The devices that are present now. Opens a new session with the driver, because an older session shows the old state."""
        visible = self._look_at_cards()
        others = self._others.find([word for word in self._words if not _names_cards(word)])
        found, problems, unknown = dict[str, DeviceIdentity](), dict[str, str](), set[str]()
        for word in self._words:
            try:
                given = self._find(word, visible, others)
            except UnknownDeviceSelection:
                raise
            except (BadRecording, MissingColumns) as error:
                given, problems[word] = [], str(error)
            except Exception as error:  # an error of the driver or the disk: the devices may still be present
                problems[word] = str(error)
                unknown |= self._given.get(word, set())
                continue
            if not given:
                problems.setdefault(word, "this host shows no such device")
            self._given.setdefault(word, set()).update(identity.uuid for identity in given)
            for identity in given:
                found.setdefault(identity.uuid, identity)
        return Scan(
            found=list(found.values()),
            unknown=frozenset(unknown - found.keys()),
            cards_known=not isinstance(visible, Exception),
            problems=problems,
        )

    def asks_for(self, uuid: str, backend: str) -> bool:
        """Whether the selection names a device that this host once had."""
        words = {word.lower() for word in self._words}
        return uuid.lower() in words or (backend == NVIDIA.backend and not words.isdisjoint({"auto", NVIDIA.word}))

    def _look_at_cards(self) -> list[DeviceIdentity] | Exception:
        if not any(_names_cards(word) for word in self._words):
            return []
        try:
            return self._cards.find()
        except Exception as error:  # only words that name cards report it
            return error

    def _find(
        self, word: str, visible: list[DeviceIdentity] | Exception, others: Mapping[str, Found]
    ) -> list[DeviceIdentity]:
        if not _names_cards(word):
            return _devices(others[word])
        if word == "auto" and not self._cards.ever_seen:
            # The CPU replaces cards that were never present. It does not replace a card that is lost.
            if word not in self._given and isinstance(visible, Exception):
                if not isinstance(visible, CudaUnavailable):
                    raise visible
                warn_of_unused_cards(visible)
            return _devices(self._others.find([CPU.word])[CPU.word])
        if isinstance(visible, Exception):
            raise visible
        if word in ("auto", NVIDIA.word):
            return visible
        return [identity for identity in visible if identity.uuid.lower() == word.lower()]


def _devices(found: Found) -> list[DeviceIdentity]:
    if isinstance(found, FarmError):
        raise found
    return found


def _names_cards(word: str) -> bool:
    return word == "auto" or NVIDIA.is_named_by(word)


class _Cards:
    """The cards that CUDA_VISIBLE_DEVICES leaves to this process, without lost cards.

    Numbers in the variable are resolved once. After a card is lost, the same number means another card, perhaps of another user.
    Unlike in CUDA, a lost card does not end the list.
    """

    def __init__(self) -> None:
        self.ever_seen = False
        text = os.environ.get("CUDA_VISIBLE_DEVICES")
        entries = [] if text is None else [entry.strip().lower() for entry in text.split(",") if entry.strip()]
        # How the UUIDs of our cards begin; None while numbers stand for them.
        self._ours: tuple[str, ...] | None = ("",) if text is None else tuple(entries)
        if any(entry.isdecimal() for entry in entries):
            self._ours = None

    def find(self) -> list[DeviceIdentity]:
        """Raises `CudaUnavailable`, `MeasurementFailed` or `DevicePoisoned`, depending on the error of the driver."""
        if self._ours is None:
            found = cards.find_cards()
            if found:
                self._ours = tuple(identity.uuid.lower() for identity in found)
        else:
            found = [card for card in cards.find_cards({}) if card.uuid.lower().startswith(self._ours)]
        self.ever_seen = self.ever_seen or bool(found)
        return found

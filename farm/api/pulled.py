"""Models that were pulled, kept for the next question."""

from __future__ import annotations

import threading
from collections import OrderedDict

from farm import registry
from farm.errors import BadInput, NoSuchModel

MOST = 8
"""Models held at a time. One is some megabytes on disk, and some tens of them in memory."""


class PulledModels:
    """Registered models by version, which never change. Safe to share between threads."""

    def __init__(self, uri: str, trust: registry.Trust) -> None:
        self._uri = uri
        self.trust = trust
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], registry.Model] = OrderedDict()

    def pull(self, device_type: str | None, version: str | None) -> tuple[registry.ModelInfo, registry.Model]:
        """The model of a device type, or the only one: the champion, or the newest one, unless a version is given.

        Raises `NoSuchModel`, `BadInput`, `ModelRefused`.
        """
        name = device_type or self._only()
        info = registry.model_info(self._uri, name, version) if version else registry.answering_model(self._uri, name)
        return info, self.loaded(info)

    def loaded(self, info: registry.ModelInfo) -> registry.Model:
        """That version, loaded."""
        key = (info.name, info.version)
        with self._lock:
            if key not in self._held:
                self._held[key] = registry.load(self._uri, info, self.trust)
            self._held.move_to_end(key)
            while len(self._held) > MOST:
                self._held.popitem(last=False)
            return self._held[key]

    def _only(self) -> str:
        found = sorted({model.name for model in registry.list_models(self._uri)})
        if len(found) == 1:
            return found[0]
        if not found:
            raise NoSuchModel(name="model yet", known="none")
        raise BadInput(detail=f"Which one? --type takes a device type. The registry has: {', '.join(found)}")

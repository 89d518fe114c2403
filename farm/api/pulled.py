"""Loaded models, kept for the next prediction."""

from __future__ import annotations

import threading
from collections import OrderedDict

from farm import registry
from farm.errors import BadInput, NoSuchModel

MAX_MODELS = 8
"""Models in memory at a time. A model has a few megabytes on disk, and tens of megabytes in memory."""


class PulledModels:
    """Registered models by version. A version never changes. Safe to share between threads."""

    def __init__(self, uri: str, trust: registry.Trust) -> None:
        self._uri = uri
        self.trust = trust
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], registry.Model] = OrderedDict()

    def pull(self, device_type: str | None, version: str | None) -> tuple[registry.ModelInfo, registry.Model]:
        """Loads the model of a device type, or the only model. Without a version, the champion or, without one, the newest.

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
            while len(self._held) > MAX_MODELS:
                self._held.popitem(last=False)
            return self._held[key]

    def _only(self) -> str:
        found = sorted({model.name for model in registry.list_models(self._uri)})
        if len(found) == 1:
            return found[0]
        if not found:
            raise NoSuchModel(name="model yet", known="none")
        raise BadInput(detail=f"Which one? Name a device type. The registry has: {', '.join(found)}")

"""A device whose measurements a test writes."""

from __future__ import annotations

from collections.abc import Callable

from farm.kernels import Configuration
from farm.measurement import Measurement, MeasuringRules
from support.samples import cpu

Measure = Callable[[int, Configuration], Measurement]


class Scripted:
    """A device whose n-th measurement is what the script says, and its sentinel's what `sentinels` says."""

    SENTINEL = Configuration.parse("blas(threads=1) 96x96x96 f32")

    def __init__(
        self,
        script: Measure,
        *,
        prepare: Callable[[Configuration], None] = lambda _: None,
        sentinels: Measure | None = None,
    ) -> None:
        self.identity = cpu()
        self._script = script
        self._prepare = prepare
        self._sentinels = sentinels
        self.asked: list[Configuration] = []
        self.prepared: list[Configuration] = []
        self.watched: list[Configuration] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def prepare(self, configuration: Configuration) -> None:
        self.prepared.append(configuration)
        self._prepare(configuration)

    def sentinel(self) -> Configuration | None:
        return None if self._sentinels is None else self.SENTINEL

    def measure(self, configuration: Configuration, rules: MeasuringRules) -> Measurement:
        if configuration is self.SENTINEL and self._sentinels is not None:
            self.watched.append(configuration)
            return self._sentinels(len(self.watched) - 1, configuration)
        self.asked.append(configuration)
        return self._script(len(self.asked) - 1, configuration)

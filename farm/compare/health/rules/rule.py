"""The interface of health rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from farm.compare.health.assessment import Finding
from farm.compare.health.samples import Sample
from farm.compare.health.window import Window, WindowDevice


class HealthRule(ABC):
    """A rule for one kind of fault: the compared figures, the condition of an alarm, and its text.

    The samples of all rules are collected first: the more samples, the stricter each test.
    """

    def samples(self, window: Window) -> Iterable[Sample]:
        """The figures of each wanted device that the rule tests; none without a statistical test."""
        return ()

    @abstractmethod
    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        """The faults of a device."""

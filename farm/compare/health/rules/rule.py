"""What a health rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from farm.compare.health.assessment import Finding
from farm.compare.health.samples import Sample
from farm.compare.health.window import Window, WindowDevice


class HealthRule(ABC):
    """One thing that may be wrong with a device: what is compared, when it is an alarm, and what the alarm says.

    All samples of all rules are known before any rule judges: the more there are, the stricter each test is.
    """

    def samples(self, window: Window) -> Iterable[Sample]:
        """The figures that the rule tests, of each wanted device; none where it tests no figures."""
        return ()

    @abstractmethod
    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        """What is wrong with a device."""

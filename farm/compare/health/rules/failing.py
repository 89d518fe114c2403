"""Jobs that fail on a device and succeed on another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from farm.compare.health.assessment import Finding, HealthVerdict
from farm.compare.health.finding_messages import DRAIN
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.samples import TOLERATED_SHARE, AlphaShare, Comparison, Sample, binomial_tail
from farm.compare.health.window import Window, WindowDevice

FAILURES = Comparison("failures", AlphaShare.CONDITION, factor=False)


class Failing(HealthRule):
    """Finds devices that fail more than a few jobs which other devices measure."""

    def samples(self, window: Window) -> Iterable[Sample]:
        for number, member in enumerate(window.members):
            jobs = member.done + member.refuted
            if window.wanted[number] and jobs:
                yield Sample(
                    comparison=FAILURES,
                    device=number,
                    by_shape=np.array([float(member.refuted)]),
                    rows=jobs,
                    against="other devices",
                    tries=jobs,
                )

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member = device.member
        for sample in device.samples(FAILURES):
            if binomial_tail(member.refuted, sample.tries, TOLERATED_SHARE) <= device.level[FAILURES]:
                yield Finding(
                    verdict=HealthVerdict.FAILING,
                    evidence=f"{member.refuted} jobs failed on it that other devices then measured, and {member.done} were measured; "
                    f"the last: {member.last_failure or 'no message'}",
                    advice=f"farm doctor on {member.host}; " + DRAIN.format(uuid=member.uuid),
                )

"""Results that change between launches, or have other bits than the same work on other devices."""

from __future__ import annotations

from collections.abc import Iterator

from farm.compare.health.assessment import Finding, HealthVerdict, Since
from farm.compare.health.finding_messages import DRAIN
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.window import WindowDevice
from farm.formatting import counted, some_of

MAX_LISTED = 3


class Corrupting(HealthRule):
    """Finds devices that corrupt results, and devices that disagree without a majority. One event is enough: equal bits need no test."""

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member, found = device.member, device.member.corruption
        if found is not None and found.configurations:
            since = device.window.since
            rows = int((device.rows.when >= since.timestamp()).sum())
            affected = (
                f"{counted(rows, 'row')} of it since {since:%Y-%m-%d %H:%M} UTC may be affected: "
                f"farm results --where \"device_uuid == '{member.uuid}'\" --since {since:%Y-%m-%dT%H:%M} shows them."
                if rows
                else ""
            )
            drain = "" if member.state == "quarantined" else DRAIN.format(uuid=member.uuid)
            yield Finding(
                verdict=HealthVerdict.CORRUPTING,
                evidence=str(found),
                advice=" ".join(filter(None, (affected, drain))),
                since=Since(at=found.first_at),
            )
        if found is not None and found.disagreeing:
            yield Finding(
                verdict=HealthVerdict.DIFFERS,
                evidence=_disagreement(device, len(found.disagreeing), set().union(*found.disagreeing.values())),
                advice="No majority shows which one is right: measure these configurations on a third device of the type, "
                f"farm submit FILE --again with the target `each: {member.type}`.",
            )


def _disagreement(device: WindowDevice, configurations: int, others: set[int]) -> str:
    of = counted(configurations, "configuration")
    if not others:
        return f"its rows of {of} have different bits from one to another, and no other device has them"
    names = sorted(member.uuid for member in device.window.members if member.id in others)
    return f"{len(others) + 1} devices disagree about the bits of {of}: it and {some_of(names, limit=MAX_LISTED)}"

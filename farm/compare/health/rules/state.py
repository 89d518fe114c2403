"""States of a device that need no measurement: quarantined, gone or silent."""

from __future__ import annotations

from collections.abc import Iterator

from farm.compare.health.assessment import Finding, HealthVerdict, Since
from farm.compare.health.rules.rule import HealthRule
from farm.compare.health.window import WindowDevice
from farm.vendors import vendor_of_type


class State(HealthRule):
    """Finds quarantined, vanished and silent devices. Devices that vanished before the window are ignored."""

    def findings(self, device: WindowDevice) -> Iterator[Finding]:
        member, since = device.member, device.window.since
        if member.state == "quarantined":
            at = None if member.state_changed_at is None else Since(at=member.state_changed_at)
            yield Finding(
                verdict=HealthVerdict.QUARANTINED,
                evidence=f"quarantined: {member.state_reason or 'no reason given'}",
                advice=f"farm devices resume {member.uuid} once it is repaired.",
                since=at,
            )
        if member.vanished_at is not None and member.vanished_at >= since:
            yield Finding(
                verdict=HealthVerdict.GONE,
                evidence=f"{member.host} no longer shows it",
                advice=vendor_of_type(member.type).advice_if_gone(member.host),
                since=Since(at=member.vanished_at),
            )
        elif member.silent and member.last_seen_at is not None and member.last_seen_at >= since:
            yield Finding(
                verdict=HealthVerdict.SILENT,
                evidence="its worker disconnected without deregistering",
                advice=f"Check that {member.host} is up and that farm-worker runs there.",
                since=Since(at=member.last_seen_at),
            )

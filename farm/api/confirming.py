"""Measuring recommendations: the kernels that a model ranks first, on a card of its device type."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from farm.api.access import Access
from farm.api.campaigns import planned
from farm.api.operation import Document, operation
from farm.api.submitting import store
from farm.db import configurations, devices, kernels
from farm.db.states import Role
from farm.errors import BadInput
from farm.kernels import Configuration
from farm.kernels.toolchains import extras_of
from farm.measurement import MeasuringRules

if TYPE_CHECKING:
    from farm.campaign import Campaign


class CannotConfirm(BadInput):
    """{device_type} cannot be measured now: {why}."""

    exit_code = 3


class Candidates(Document):
    """Kernels to be measured on a device type under the default rules, without or with power."""

    device_type: str = Field(description="The device type.")
    configurations: list[str] = Field(
        min_length=1, max_length=20, description='Configurations, as in "tiled(tile=16) 512x512x512 f32".'
    )
    power: bool = Field(default=False, description="Measure the power too.")

    @property
    def rules(self) -> MeasuringRules:
        return MeasuringRules(power="all") if self.power else MeasuringRules()


class Confirmation(Document):
    """Measured candidates, and the campaign that measures the others."""

    measured_ms: dict[str, float] = Field(description="by configuration; the median if there are several rows")
    campaign: str | None = Field(description="null if every candidate was measured already")
    digest: str | None


@operation("POST", "/recommend/measured")
def measured(access: Access, candidates: Candidates) -> Confirmation:
    """Times of kernels that were measured on a device type under the default rules. Submits nothing."""
    found = _runtimes(access, candidates, list(map(Configuration.parse, candidates.configurations)))
    return Confirmation(measured_ms=found, campaign=None, digest=None)


@operation("POST", "/recommend/confirm", role=Role.SUBMIT)
def confirm(access: Access, candidates: Candidates) -> Confirmation:
    """Submit the kernels that were not measured on a device type under the default rules, as a campaign of their own."""
    chosen = list(map(Configuration.parse, candidates.configurations))
    found = _runtimes(access, candidates, chosen)
    left = [one for one in chosen if one.canonical not in found]
    if not left:
        return Confirmation(measured_ms=found, campaign=None, digest=None)
    with access.connect() as connection:
        live = {kind for _, _, kind in devices.live(connection, silent_after=access.silent_after)}
    if candidates.device_type not in live:
        raise CannotConfirm(
            device_type=candidates.device_type,
            why="no device of the type takes work"
            + (f"; devices of {', '.join(sorted(live))} do" if live else ", and no other device does")
            + " (farm devices)",
        )
    campaign = _campaign(candidates, left, owner=access.who)
    made = planned(access, campaign, allow_missing=False)
    with access.change(confirm) as change:
        connection = change.connection
        stored = store(change, made, access.settings)
        awaited = kernels.awaited(connection, stored.campaign_id, silent_after=access.silent_after)
        if awaited.without_builder:
            # Raised inside the transaction: nothing is stored.
            raise CannotConfirm(
                device_type=candidates.device_type,
                why=f"{awaited.kernels} of the kernels are not built, and no builder has "
                f"{' or '.join(awaited.without_builder)}; farm-worker --build on a host with "
                f"the extra {' or '.join(extras_of(awaited.without_builder))} is one",
            )
    return Confirmation(measured_ms=found, campaign=campaign.name, digest=campaign.digest)


def _runtimes(access: Access, candidates: Candidates, chosen: Sequence[Configuration]) -> dict[str, float]:
    by_id = {one.id: one.canonical for one in chosen}
    with access.connect() as connection:
        found = configurations.runtimes(
            connection, list(by_id), device_type=candidates.device_type, rules=candidates.rules.model_dump_json()
        )
    return {by_id[one]: runtime_ms for one, runtime_ms in found.items()}


def _campaign(candidates: Candidates, listed: Sequence[Configuration], *, owner: str) -> Campaign:
    from farm.campaign import Campaign, Target, TargetKind
    from farm.campaign.campaign import in_order

    ordered, device_type = in_order(listed), candidates.device_type
    measured = ["power"] if candidates.power else []
    digest = hashlib.sha256(
        "\n".join([device_type, *(one.canonical for one in ordered), *measured]).encode()
    ).hexdigest()
    return Campaign(
        name=f"confirm-{device_type}-{digest[:8]}", owner=owner, targets=(Target(TargetKind.TYPE, device_type),),
        configurations=ordered, measure=candidates.rules, description="kernels that a model recommended",
    )  # fmt: skip

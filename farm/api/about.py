"""The farm that answers: its version, and who asks."""

from __future__ import annotations

import farm
from farm.api.access import Access
from farm.api.operation import Document, operation
from farm.db import campaigns, liveness
from farm.db.liveness import Presence
from farm.db.states import CampaignState


class About(Document):
    """What one wants to know of a farm before anything else."""

    version: str
    who: str
    devices_live: int
    campaigns_open: int


@operation("GET", "/about")
def show(access: Access) -> About:
    """The version of the farm that answers, whom it takes the caller for, and what is going on."""
    with access.connect() as connection:
        devices = liveness.devices(connection, silent_after=access.silent_after)
        return About(
            version=farm.__version__,
            who=access.who,
            devices_live=sum(device.presence is Presence.LIVE for device in devices),
            campaigns_open=campaigns.count(connection, [CampaignState.ACTIVE, CampaignState.PAUSED]),
        )

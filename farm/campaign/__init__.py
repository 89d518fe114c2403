"""Campaigns: the keys of their files, and the jobs that they have on the known devices.

>>> campaign = load(Path("examples/campaigns/quickstart.yaml"), limit=1_000_000)  # doctest: +SKIP
>>> plan(campaign, devices, allow_missing=False).summary()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.campaign.campaign import Campaign
    from farm.campaign.loading import load, loads, texts_named
    from farm.campaign.named_shapes import shape_sets
    from farm.campaign.planning import Destination, KnownDevice, Plan, PlannedJob, PoolSpec, plan
    from farm.campaign.strategies import Search
    from farm.campaign.targets import Target, TargetKind

__getattr__ = names_of(__name__)

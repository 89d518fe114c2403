"""Campaign files: reading them, what they ask for, and which jobs that makes on the devices there are.

>>> campaign = load(Path("examples/campaigns/quickstart.yaml"), limit=1_000_000)  # doctest: +SKIP
>>> plan(campaign, devices, allow_missing=False).summary()  # doctest: +SKIP
"""

from farm.campaign.blocks import KernelBlock, ProblemBlock
from farm.campaign.campaign import Campaign
from farm.campaign.loading import load, loads
from farm.campaign.plan import Destination, KnownDevice, Plan, PlannedJob, PoolSpec, plan
from farm.campaign.search import Search, Strategy
from farm.campaign.shape_sets import shape_sets
from farm.campaign.summary import InvalidGroup, NotApplicable, PlanCount, PlanSummary
from farm.campaign.targets import Target, TargetKind

__all__ = [
    "Campaign",
    "Destination",
    "InvalidGroup",
    "KernelBlock",
    "KnownDevice",
    "NotApplicable",
    "Plan",
    "PlanCount",
    "PlanSummary",
    "PlannedJob",
    "PoolSpec",
    "ProblemBlock",
    "Search",
    "Strategy",
    "Target",
    "TargetKind",
    "load",
    "loads",
    "plan",
    "shape_sets",
]

"""What the farm can be asked, by the command line, over HTTP and by the pages: the same operations, the same documents.

>>> with farm_of(settings()) as farm:  # doctest: +SKIP
...     farm.ask(campaigns.list_, limit=10)
"""

from farm.api import about, campaigns, comparing, devices, health, jobs, models, reports, results, sentinels
from farm.api.connecting import Direct, Farm, farm_of
from farm.api.operation import OPERATIONS, PREFIX, Document, Download, Operation, operation
from farm.api.remote import Remote

__all__ = [
    "OPERATIONS",
    "PREFIX",
    "Direct",
    "Document",
    "Download",
    "Farm",
    "Operation",
    "Remote",
    "about",
    "campaigns",
    "comparing",
    "devices",
    "farm_of",
    "health",
    "jobs",
    "models",
    "operation",
    "reports",
    "results",
    "sentinels",
]

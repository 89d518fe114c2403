"""What the farm can be asked, by the command line, over HTTP and by the pages: the same operations, the same documents.

>>> with farm_of(settings()) as farm:  # doctest: +SKIP
...     farm.ask(campaigns.list_, limit=10)
"""

from farm.api import campaigns, comparing, devices, jobs, models, results, sentinels
from farm.api.connecting import Direct, Farm, farm_of
from farm.api.operation import OPERATIONS, PREFIX, Document, Operation, operation
from farm.api.remote import Remote

__all__ = [
    "OPERATIONS",
    "PREFIX",
    "Direct",
    "Document",
    "Farm",
    "Operation",
    "Remote",
    "campaigns",
    "comparing",
    "devices",
    "farm_of",
    "jobs",
    "models",
    "operation",
    "results",
    "sentinels",
]

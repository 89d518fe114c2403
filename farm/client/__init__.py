"""The Python API: submit campaigns, wait for them, read their rows, compare, predict, recommend and plan.

>>> import farm  # doctest: +SKIP
>>> with farm.connect() as client:
...     campaign = client.submit("sweep.yaml")
...     campaign.wait(progress=True)
...     frame = campaign.results().to_pandas()

A client answers alike over the farm's database and over its HTTP API: the same results, and the same errors. Every error is a
`FarmError`, whose message says what to do.
"""

from farm.client.campaign import Campaign
from farm.client.client import Client
from farm.client.connection import connect
from farm.client.table import Table

__all__ = ["Campaign", "Client", "Table", "connect"]

"""What the farm can be asked, by the command line, over HTTP and by the pages: the same operations, the same documents.

>>> with farm_of(settings()) as farm:  # doctest: +SKIP
...     farm.ask(campaigns.list_, limit=10)

A module of operations is imported when it is used. Who asks for `OPERATIONS` here imports them all.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.api.connecting import Direct, Farm, farm_of
    from farm.api.operation import OPERATIONS, PREFIX, Document, Download, Operation
    from farm.api.remote import Remote

_name = names_of(__name__)


def __getattr__(name: str) -> Any:
    if name == "OPERATIONS":
        for module in pkgutil.iter_modules(__path__):
            import_module(f"{__name__}.{module.name}")
    return _name(name)

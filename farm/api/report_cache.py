"""Cache of rendered report pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_PAGES = 8
"""Pages in the cache. A page has up to 6 MB."""


class ReportCache:
    """The most recently used pages, by the versions of their data. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, str] = OrderedDict()

    def page(self, key: Hashable, draw: Callable[[], str]) -> str:
        """The page of that key: from the cache, or the result of `draw`."""
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
                return self._pages[key]
        # Two visitors of a new page may both draw it; others do not wait for it.
        found = draw()
        with self._lock:
            self._pages[key] = found
            while len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
        return found

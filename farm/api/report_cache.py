"""Pages of reports that were drawn before, for those who visit them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_PAGES = 8
"""Pages that are kept at a time. One has up to some 6 MB."""


class ReportCache:
    """The pages that were asked for last, by all that they are made of. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, str] = OrderedDict()

    def page(self, key: Hashable, draw: Callable[[], str]) -> str:
        """The page with that key: the one that is kept, or what `draw` returns."""
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

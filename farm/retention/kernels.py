"""Built kernels that nothing uses: no row, no deleted campaign, no job that waits, and no open job of their family."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, text

from farm.builds.stores import store_of
from farm.db import deletions
from farm.retention.rule import BATCH, Old, Place

_OLD = text("""
SELECT hash FROM kernels
WHERE state IN ('built', 'failed') AND finished_at < clock_timestamp() - CAST(:age AS interval) ORDER BY id
""")
_SIZE = text("SELECT coalesce(sum(CAST(record ->> 'bytes' AS bigint)), 0) FROM kernels WHERE hash = ANY(:hashes)")


class UnusedKernels:
    name = "kernels"
    what = "built kernels of the farm that nothing uses"

    def find(self, place: Place, age: timedelta) -> Old:
        with place.engine.connect() as connection:
            return self._size(connection, self._unused(connection, age))

    def remove(self, place: Place, age: timedelta) -> Old:
        with place.engine.begin() as connection:
            deletions.lock_kernels(connection)
            unused = self._unused(connection, age)[:BATCH]
            removed = self._size(connection, unused)
            deletions.remove_kernels(connection, unused)
        # The rows go first: code that is left by an interruption is replaced when the kernel is built again.
        store = store_of(place.settings, place.engine)
        for hash_ in unused:
            store.remove(hash_)
        return removed

    def _unused(self, connection: Connection, age: timedelta) -> list[str]:
        old = list(connection.execute(_OLD, {"age": age}).scalars())
        return deletions.unused_kernels(connection, old)

    def _size(self, connection: Connection, hashes: list[str]) -> Old:
        return Old(len(hashes), int(connection.execute(_SIZE, {"hashes": hashes}).scalar_one()))

"""Deleted campaigns, imports and models, which could be restored until then. `farm vacuum` does the same."""

from __future__ import annotations

from datetime import timedelta

from farm.builds.stores import store_of
from farm.db import deletions
from farm.registry import deletions as models
from farm.retention.rule import Old, Place


class DeletedData:
    name = "deleted"
    what = "deleted campaigns, imports and models, with their rows"

    def find(self, place: Place, age: timedelta) -> Old:
        with place.engine.connect() as connection:
            found = deletions.vacuum(connection, older_than=age, dry_run=True).deletions
        versions = models.vacuum(place.settings.tracking_uri, older_than=age, dry_run=True)
        return Old(len(found), sum(one.bytes for one in found)) + Old(len(versions), sum(one.bytes for one in versions))

    def remove(self, place: Place, age: timedelta) -> Old:
        with place.engine.begin() as connection:
            done = deletions.vacuum(connection, older_than=age)
        store = store_of(place.settings, place.engine)
        for hash_ in done.kernels:
            store.remove(hash_)
        versions = models.vacuum(place.settings.tracking_uri, older_than=age)
        campaigns = Old(len(done.deletions), sum(one.bytes for one in done.deletions))
        return campaigns + Old(len(versions), sum(one.bytes for one in versions))

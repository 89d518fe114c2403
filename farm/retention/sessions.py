"""Sessions of browsers that ended or expired."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from farm.retention.rule import BATCH, Old, Place

_OLD = "least(ended_at, expires_at, last_used_at + idle_limit) < clock_timestamp() - CAST(:age AS interval)"
_FIND = text(f"SELECT count(*) FROM web_sessions WHERE {_OLD}")
_REMOVE = text(f"""
DELETE FROM web_sessions WHERE id IN (
    SELECT id FROM web_sessions WHERE {_OLD} ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
)
""")


class Sessions:
    name = "sessions"
    what = "sessions of browsers that ended or expired"

    def find(self, place: Place, age: timedelta) -> Old:
        with place.engine.connect() as connection:
            return Old(connection.execute(_FIND, {"age": age}).scalar_one())

    def remove(self, place: Place, age: timedelta) -> Old:
        with place.engine.begin() as connection:
            return Old(connection.execute(_REMOVE, {"age": age}).rowcount)

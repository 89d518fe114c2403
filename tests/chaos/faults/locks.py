"""Rows that somebody else's session holds."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
from sqlalchemy import make_url

from chaos.faults.base import FaultsOfOneFarm, Mend, NotNow, does
from chaos.plan import Kind


class ForeignLocks(FaultsOfOneFarm):
    """Somebody else's session changed a row, and stands still in its transaction."""

    def _hold(self, statement: str) -> Mend:
        """A session of somebody else's, which changed a row and stands still in its transaction."""
        url = make_url(self.farm.urls.database_url).set(drivername="postgresql")
        with ExitStack() as held:
            try:
                session = psycopg.connect(url.render_as_string(hide_password=False), application_name="psql")
                held.callback(session.close)
                session.execute("SET lock_timeout = '2s'")
                changed = session.execute(statement).rowcount
            except psycopg.Error as error:
                raise NotNow(f"the row cannot be held: {error}") from None
            if not changed:
                raise NotNow("there is no such row now")
            held.pop_all()
        return session.close

    @does(Kind.HOLD_DEVICE)
    def _hold_device(self, device: int) -> Mend:
        return self._hold(f"UPDATE devices SET state = state WHERE id = {self.farm.device_ids[device]}")

    @does(Kind.HOLD_BATCH)
    def _hold_batch(self, device: int) -> Mend:
        in_hand = f"device_id = {self.farm.device_ids[device]} AND state = 'leased'"
        return self._hold(f"UPDATE batches SET state = state WHERE {in_hand}")

    @does(Kind.HOLD_LANE)
    def _hold_lane(self, _: int) -> Mend:
        return self._hold(f"UPDATE lanes SET jobs = jobs WHERE campaign_id = {self.steered()}")

    @does(Kind.HOLD_CAMPAIGN)
    def _hold_campaign(self, _: int) -> Mend:
        return self._hold(f"UPDATE campaigns SET priority = priority WHERE id = {self.steered()}")

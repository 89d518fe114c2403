"""Leadership of coordinators: one row with a term and an expiry time of the database's clock.

The leader renews the row. A waiting coordinator takes it, with the next term, when it has expired. Writes of a leader are fenced: its
transactions hold a share lock on the row, and a new term waits for them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from farm.formatting import seconds_text


@dataclass(frozen=True, slots=True)
class Term:
    """The right of a coordinator to lead, until it expires or is taken."""

    number: int
    token: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingStep:
    """A step of the leader's turns that has failed, or has not ended, for `for_s` seconds."""

    step: str
    error: str
    for_s: float

    @property
    def text(self) -> str:
        return f"its step {self.step} has failed for {seconds_text(self.for_s)}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The present leader, or the last one. Term 0: there was none."""

    leads: bool
    term: int
    host: str | None
    pid: int | None
    since: datetime | None
    expires_at: datetime
    # As of its last renewal; empty if nobody leads.
    failing: tuple[FailingStep, ...] = ()

    def text(self, obstacle: str | None) -> str:
        """Which coordinator leads, or that none does, and what to do. `obstacle`: what keeps all of them from leading."""
        hint = obstacle or "farm up starts one"
        if self.host is None or self.since is None:
            return f"no coordinator leads, and none ever did; {hint}"
        who = f"{self.host}, process {self.pid}"
        if self.leads:
            return f"{who} leads since {self.since:%Y-%m-%d %H:%M:%S} UTC (term {self.term})"
        return f"no coordinator leads; the last one, {who}, did until {self.expires_at:%Y-%m-%d %H:%M:%S} UTC; {hint}"


# A term that ends later than a whole term from now began before the database's clock stepped back. It is taken too: otherwise no
# coordinator could lead until the clock has caught up. FOR UPDATE conflicts with fenced transactions of the former term: then the row is
# skipped and tried again. The commit must survive a power cut, because the same term twice would mean two leaders.
_TAKE = text("""
WITH free AS MATERIALIZED (
    SELECT name FROM leadership
    WHERE name = 'coordinator'
      AND (expires_at <= clock_timestamp() OR expires_at > clock_timestamp() + make_interval(secs => :seconds))
    FOR UPDATE SKIP LOCKED
)
UPDATE leadership l
SET term = l.term + 1, token = gen_random_uuid(), host = :host, pid = :pid, since = clock_timestamp(), failing = '[]',
    expires_at = clock_timestamp() + make_interval(secs => :seconds)
FROM free WHERE l.name = free.name
RETURNING l.term, l.token, set_config('synchronous_commit', 'on', true)
""")


def take(connection: Connection, *, host: str, pid: int, seconds: float) -> Term | None:
    """Begins a term of `seconds`. Returns None while the term of another coordinator lasts.

    A term that ends later than `seconds` from now does not count: the database's clock has stepped back.
    """
    row = connection.execute(_TAKE, {"host": host, "pid": pid, "seconds": seconds}).one_or_none()
    return None if row is None else Term(row.term, row.token)


_RENEW = text("""
UPDATE leadership SET expires_at = clock_timestamp() + make_interval(secs => :seconds), failing = (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
        'step', f.step, 'error', f.error, 'since', clock_timestamp() - make_interval(secs => f.for_s)
    ) ORDER BY f.for_s DESC), '[]')
    FROM jsonb_to_recordset(CAST(:failing AS jsonb)) AS f(step text, error text, for_s float8)
)
WHERE name = 'coordinator' AND term = :term AND token = :token AND expires_at > clock_timestamp()
""")


def renew(connection: Connection, term: Term, *, seconds: float, failing: Sequence[FailingStep] = ()) -> bool:
    """Extends the term to `seconds` from now, and stores the failing steps. Returns False if the term is over."""
    parameters = {
        "term": term.number,
        "token": term.token,
        "seconds": seconds,
        "failing": json.dumps([asdict(one) for one in failing]),
    }
    return connection.execute(_RENEW, parameters).rowcount == 1


_END = text("""
UPDATE leadership SET expires_at = clock_timestamp()
WHERE name = 'coordinator' AND term = :term AND token = :token AND expires_at > clock_timestamp()
""")


def end(connection: Connection, term: Term) -> None:
    """Ends the term, so that a waiting coordinator can lead at once."""
    connection.execute(_END, {"term": term.number, "token": term.token})


# A transaction that wrote nothing has no id. Locking the row would assign one and cause a write.
_FENCE = text("""
WITH held AS MATERIALIZED (
    SELECT term FROM leadership
    WHERE pg_current_xact_id_if_assigned() IS NOT NULL
      AND name = 'coordinator' AND term = :term AND token = :token AND expires_at > clock_timestamp()
    FOR KEY SHARE
)
SELECT pg_current_xact_id_if_assigned() IS NULL OR EXISTS (SELECT FROM held)
""")


def may_commit(connection: Connection, term: Term) -> bool:
    """Whether the transaction may commit: it wrote nothing, or the term lasts and cannot end before the commit."""
    may: bool = connection.execute(_FENCE, {"term": term.number, "token": term.token}).scalar_one()
    return may


_READ = text("""
SELECT expires_at > clock_timestamp() AS leads, term, host, pid, since, expires_at, (
    SELECT jsonb_agg(jsonb_build_object('step', f ->> 'step', 'error', f ->> 'error', 'for_s',
        extract(epoch FROM clock_timestamp() - CAST(f ->> 'since' AS timestamptz))
    ))
    FROM jsonb_array_elements(failing) f WHERE expires_at > clock_timestamp()
) AS failing
FROM leadership WHERE name = 'coordinator'
""")


def read(connection: Connection) -> Leader:
    """Reads the present or last leader."""
    row = dict(connection.execute(_READ).mappings().one())
    return Leader(**{**row, "failing": tuple(FailingStep(**one) for one in row["failing"] or ())})

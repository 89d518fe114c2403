"""Which coordinator leads: one row with a term and an expiry on the database's clock.

Who leads renews the row. Who waits takes it, with the next term, once it has expired. What a leader writes is fenced: its
transactions hold a share of the row until they end, and a new term waits for them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Term:
    """A coordinator's right to lead, until it expires or is taken."""

    number: int
    token: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingStep:
    """A step of the leader's turns that has failed, or not ended, for that many seconds."""

    step: str
    error: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who leads, or who led last; term 0 where nobody ever did."""

    leads: bool
    term: int
    host: str | None
    pid: int | None
    since: datetime | None
    expires_at: datetime
    # As of its last renewal; none where nobody leads.
    failing: tuple[FailingStep, ...] = ()


# A term that ends later than a whole term from now is of before the database's clock stepped back. Nobody may renew it for as
# long as that step, so it is taken too: a leader that lives is fenced out, and the next one writes by the clock that runs now.
# FOR UPDATE waits for fenced transactions of the term before, which renewing does not: those are skipped, and tried again.
# A power cut must not undo it: the same term twice would be two leaders.
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
    """Begins a term of that many seconds. Returns None while another coordinator's term lasts.

    A term that would last longer than that from now does not count: the database's clock stepped back since it was renewed.
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
    """Extends the term to that many seconds from now, and notes which steps of the leader's turns fail.

    Returns False if it is over.
    """
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
    """Ends the term now, so that whoever waits leads at once."""
    connection.execute(_END, {"term": term.number, "token": term.token})


# A transaction that wrote nothing has no id. The lock itself would give it one, and the server something to write.
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
    """Whether the transaction may be committed: it wrote nothing, or the term goes on and cannot end before it does."""
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
    """Who leads now, or who led last."""
    row = dict(connection.execute(_READ).mappings().one())
    return Leader(**{**row, "failing": tuple(FailingStep(**one) for one in row["failing"] or ())})

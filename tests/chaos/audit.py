"""Did the farm keep its promises? Looks at what is in Postgres and in the logs after chaos, and names what is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, text

from chaos.faults import Closed
from chaos.mischief import NOT_KNOWN, SICK, Poison
from chaos.workload import MAX_ATTEMPTS, SEARCH, SEARCHED_KERNELS, Workload
from farm.db.states import FailureKind, JobRecord

# What each poison's failures are, and what they say.
EXPECTED = {
    Poison.KILLS: (FailureKind.KILLED, r"its process was killed by signal SIGKILL"),
    Poison.EXITS: (FailureKind.KILLED, r"its process ended with status 3"),
    Poison.HANGS: (FailureKind.KILLED, r"its process was ended because the job outlived its time \(job_seconds\)"),
    Poison.HOLDS: (FailureKind.KILLED, r"its process was ended because (it hung|the job outlived its time)"),
    Poison.POISONS: (FailureKind.KILLED, r"chaos poisoned the context"),
    Poison.RAISES: (FailureKind.FAILED, r"RuntimeError: chaos raised"),
    Poison.FAILS: (FailureKind.FAILED, r"The measurement failed: chaos made it fail"),
    Poison.EXHAUSTS: (FailureKind.FAILED, r"Unable to allocate"),
    Poison.IMPOSSIBLE: (FailureKind.FAILED, r"its row cannot be stored: .*ck_measurements_samples_positive"),
    Poison.MALFORMED: (FailureKind.FAILED, r"chaos wrote a zero byte: \\0"),
    Poison.UNKNOWN: (FailureKind.INVALID, r"not in the recording"),
}

# What may happen to any job, because of a fault.
INTERRUPTED = re.compile(
    r"it was being measured when ("
    r"its process (was killed by signal (SIGKILL|SIGTERM)|was ended because (the job outlived its time \(job_seconds\)|it hung))"
    r"|the lease passed without being renewed|its worker ended and was started again)"
)

# The last lines of tracebacks that chaos provokes.
EXPECTED_TRACEBACKS = re.compile(
    r"farm\.errors\.DevicePoisoned: .*chaos poisoned the context"
    r"|RuntimeError: chaos raised"
    r"|numpy.*ArrayMemoryError: Unable to allocate"
    r"|billiard\.exceptions\.WorkerLostError: Worker exited prematurely: (signal 9 \(SIGKILL\)|exitcode \d+)"
    # Redis went away between a delivery and its acknowledgement: Celery says so, and goes on.
    r"|redis\.exceptions\.(ConnectionError|TimeoutError):|TimeoutError: timed out"
    r"|(FileNotFoundError: \[Errno 2\]|ConnectionRefusedError: \[Errno 111\]|ConnectionResetError: \[Errno 104\])"
    r"|BrokenPipeError: \[Errno 32\]"
    # Celery adds what it was doing when a child was lost.
    r"|celery\.exceptions\.WorkerShutdown"
    # The child was killed before its parent had its first connection to Redis.
    r"|billiard\.exceptions\.WorkerLostError: Could not start worker processes"
    r"|billiard\.einfo\.ExceptionWithTraceback:"  # wraps one of these
)

CLAIM_S = 1.0
"""A claim that began before a campaign was stopped may be committed this much later; its jobs do not start."""


@dataclass(slots=True)
class Audit:
    """What is wrong, and what the run came to."""

    findings: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    harm: dict[str, int] = field(default_factory=dict)
    """Of healthy jobs: how many were lost, were stored twice, and are dead."""

    def expect(self, holds: bool, finding: str) -> None:
        if not holds:
            self.findings.append(finding)


def audit_database(engine: Engine, workload: Workload, *, sick_uuid: str | None, closed: Sequence[Closed]) -> Audit:
    """Checks every promise that the tables can show to be broken. `sick_uuid` is the device that fell ill for good."""
    audit = Audit()
    with engine.connect() as connection:
        _nothing_is_open(audit, connection)
        _counters_tell_the_truth(audit, connection)
        _every_job_has_its_end(audit, connection, workload)
        _failures_explain_themselves(audit, connection, workload, sick_uuid)
        _devices_are_judged_rightly(audit, connection, sick_uuid)
        _nothing_was_claimed_while_closed(audit, connection, closed)
        if workload.campaigns:
            _the_best_went_on(audit, connection)
        audit.harm = harm_to_healthy_jobs(connection, workload)
        audit.summary = _summary(connection)
    return audit


def _rows(connection: Connection, statement: str, **parameters: Any) -> list[Any]:
    return list(connection.execute(text(statement), parameters))


def _nothing_is_open(audit: Audit, connection: Connection) -> None:
    checks = {
        "campaigns are not done": "SELECT name, state FROM campaigns WHERE state <> 'done'",
        "jobs are open": "SELECT id FROM jobs WHERE state = 'open'",
        "jobs still wait": "SELECT job_id FROM returned_jobs",
        "batches are open": "SELECT id, state FROM batches WHERE state IN ('queued', 'leased')",
        "batches are not counted": "SELECT id FROM batches WHERE NOT folded",
        "leases are left": "SELECT id FROM batches WHERE lease_token IS NOT NULL OR lease_expires_at IS NOT NULL",
    }
    for what, statement in checks.items():
        found = _rows(connection, statement)
        audit.expect(not found, f"{what}: {len(found)}, among them {found[:3]}")


def _counters_tell_the_truth(audit: Audit, connection: Connection) -> None:
    lanes = _rows(
        connection,
        """
        SELECT l.id, l.jobs, l.done, l.invalid, l.dead, j.jobs, j.done, j.invalid, j.dead
        FROM lanes l CROSS JOIN LATERAL (
            SELECT count(*) AS jobs, count(*) FILTER (WHERE state = 'done') AS done,
                count(*) FILTER (WHERE state = 'invalid') AS invalid, count(*) FILTER (WHERE state = 'dead') AS dead
            FROM jobs WHERE lane_id = l.id
        ) j
        """,
    )
    for lane_id, *counts in lanes:
        audit.expect(counts[:4] == counts[4:], f"lane {lane_id} counts {counts[:4]}, and has {counts[4:]} jobs")
    devices = _rows(
        connection,
        """
        SELECT d.id, d.measured, (SELECT count(*) FROM measurements WHERE device_id = d.id AND source <> 'sentinel') AS rows FROM devices d
        """,
    )
    for device_id, measured, rows in devices:
        audit.expect(measured == rows, f"device {device_id} counts {measured} measurements, and has {rows}")


def _every_job_has_its_end(audit: Audit, connection: Connection, workload: Workload) -> None:
    """One result each where it is done, and that of its configuration on its device; none where it is not."""
    results = defaultdict(list)
    for row in _rows(
        connection,
        """
        SELECT r.job_id, r.configuration_id, r.runtime_ms, r.campaign_id, d.uuid, p.device_uuid AS wanted, l.campaign_id AS of
        FROM measurements r JOIN devices d ON d.id = r.device_id
        JOIN jobs j ON j.id = r.job_id JOIN lanes l ON l.id = j.lane_id JOIN pools p ON p.id = l.pool_id
        """,
    ):
        results[row.job_id].append(row)
    jobs = _rows(connection, "SELECT id, configuration_id, state, attempts, solo FROM jobs")
    tried = defaultdict[int, list[int]](list)
    for row in _rows(connection, "SELECT job_id, device_id FROM failures WHERE kind <> 'unsupported' ORDER BY id"):
        tried[row.job_id].append(row.device_id)
    stored = _rows(connection, "SELECT count(*) FROM measurements WHERE source <> 'sentinel'")[0][0]
    audit.expect(stored == sum(map(len, results.values())), "there are measurements of no job")
    for job in jobs:
        found, poison = results[job.id], workload.poisons.get(job.configuration_id)
        name = f"job {job.id} ({'healthy' if poison is None else poison})"
        end = JobRecord.DONE if poison is None else JobRecord.INVALID if poison is Poison.UNKNOWN else JobRecord.DEAD
        # What all others refuse may fail on the sick device until its attempts are used up, before that is quarantined.
        failed_there = poison is Poison.UNKNOWN and job.state == JobRecord.DEAD and job.attempts == MAX_ATTEMPTS
        audit.expect(job.state == end or failed_there, f"{name} is {job.state} after {job.attempts} attempts")
        audit.expect(len(found) == (end is JobRecord.DONE), f"{name} has {len(found)} results")
        if end is JobRecord.DEAD:
            audit.expect(used_up(job.attempts, tried[job.id]), f"{name} had {job.attempts} attempts")
        for row in found:
            answer = workload.answers[row.uuid].get(job.configuration_id)
            right = row.configuration_id == job.configuration_id and row.runtime_ms == answer
            audit.expect(right, f"{name} has {row.runtime_ms} ms of {row.configuration_id}, and {answer} was measured")
            audit.expect(row.campaign_id == row.of, f"{name} has a result of campaign {row.campaign_id}")
            audit.expect(row.wanted in (None, row.uuid), f"{name} was measured on {row.uuid}, and is for {row.wanted}")


def used_up(attempts: int, tried: Sequence[int]) -> bool:
    """Whether a dead job had its attempts: one more where a single device had all of them, since another one tries it then.

    `tried` has the devices on which the job failed, in that order; attempts before it was opened again come first.
    """
    if attempts == MAX_ATTEMPTS:
        return True
    *first, last = tried[-attempts:]
    return attempts == MAX_ATTEMPTS + 1 and len(set(first)) == 1 and last not in first


def _failures_explain_themselves(
    audit: Audit, connection: Connection, workload: Workload, sick_uuid: str | None
) -> None:
    failures = _rows(
        connection,
        """
        SELECT f.id, f.job_id, j.configuration_id, j.attempts, f.kind, f.message, f.batch_id, d.uuid, b.jobs AS batch_jobs
        FROM failures f JOIN jobs j ON j.id = f.job_id
        LEFT JOIN devices d ON d.id = f.device_id LEFT JOIN batches b ON b.id = f.batch_id ORDER BY f.id
        """,
    )
    of_job: defaultdict[int, list[Any]] = defaultdict(list)
    for row in failures:
        poison = workload.poisons.get(row.configuration_id)
        name = f"failure {row.id} of job {row.job_id} ({'healthy' if poison is None else poison})"
        audit.expect(row.uuid is not None and row.batch_id is not None, f"{name} names no device or no batch")
        audit.expect(_explained(row, poison, sick_uuid), f"{name} is {row.kind}: {row.message!r} on {row.uuid}")
        suspected = any(earlier.kind == FailureKind.KILLED for earlier in of_job[row.job_id])
        audit.expect(not suspected or row.batch_jobs == 1, f"{name}: a suspect was one of {row.batch_jobs} in a batch")
        of_job[row.job_id].append(row)
    for job_id, rows in of_job.items():
        poison = workload.poisons.get(rows[0].configuration_id)
        audit.expect(len(rows) >= rows[0].attempts, f"job {job_id}: {rows[0].attempts} attempts, {len(rows)} failures")
        if poison is not None:
            kind, says = EXPECTED[poison]
            own = [row for row in rows if row.kind == kind and re.search(says, row.message)]
            audit.expect(bool(own), f"job {job_id} ({poison}) does not say why: {[row.message for row in rows]}")
    blamed = Counter(row.batch_id for row in failures if row.kind == FailureKind.KILLED)
    for batch_id, count in blamed.items():
        audit.expect(count == 1, f"batch {batch_id}: {count} jobs are blamed for the death of one process")


def _explained(row: Any, poison: Poison | None, sick_uuid: str | None) -> bool:
    kind, says = EXPECTED[poison] if poison else (None, "")
    return (
        (row.kind == kind and re.search(says, row.message) is not None)
        or (row.kind == FailureKind.KILLED and INTERRUPTED.fullmatch(row.message) is not None)
        or (row.kind == FailureKind.FAILED and SICK in row.message and sick_uuid in (None, row.uuid))
        or (row.kind == FailureKind.UNSUPPORTED and row.message.endswith(NOT_KNOWN))
    )


def harm_to_healthy_jobs(connection: Connection, workload: Workload) -> dict[str, int]:
    """How many healthy jobs have no result or are still open, how many rows are one too many, and how many healthy jobs are dead."""
    jobs = _rows(
        connection,
        """
        SELECT j.configuration_id, j.state, (SELECT count(*) FROM measurements WHERE job_id = j.id) AS rows FROM jobs j
        """,
    )
    healthy = [job for job in jobs if job.configuration_id not in workload.poisons]
    return {
        "jobs_lost": sum(
            (job.state == JobRecord.DONE and not job.rows) or job.state == JobRecord.OPEN for job in healthy
        ),
        "rows_doubled": sum(max(0, job.rows - 1) for job in jobs),
        "healthy_jobs_dead": sum(job.state in (JobRecord.DEAD, JobRecord.INVALID) for job in healthy),
    }


def _devices_are_judged_rightly(audit: Audit, connection: Connection, sick_uuid: str | None) -> None:
    for row in _rows(connection, "SELECT uuid, state, state_reason FROM devices"):
        if row.uuid == sick_uuid:
            said = row.state_reason or ""
            good = row.state == "probation" and "a trial: " in said and SICK in said
            audit.expect(good, f"the sick device is {row.state}: {said}")
        else:
            audit.expect(row.state == "active", f"{row.uuid}, which is well, is {row.state}: {row.state_reason}")


def _nothing_was_claimed_while_closed(audit: Audit, connection: Connection, closed: Sequence[Closed]) -> None:
    for one in closed:
        found = _rows(
            connection,
            """
            SELECT b.id, b.claimed_at FROM batches b JOIN lanes l ON l.id = b.lane_id
            WHERE (l.campaign_id = :campaign_id OR b.device_id = :device_id)
                AND b.claimed_at BETWEEN CAST(:since AS timestamptz) + make_interval(secs => :claim) AND :until
            """,
            campaign_id=one.campaign_id,
            device_id=one.device_id,
            since=one.since,
            until=one.until,
            claim=CLAIM_S,
        )
        audit.expect(not found, f"claimed while it was stopped ({one}): {found[:3]}")


def _the_best_went_on(audit: Audit, connection: Connection) -> None:
    """Each round of the search had as many kernels of each problem as it should, once, and they were the fastest."""
    tried: defaultdict[str, defaultdict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(
        connection,
        """
        SELECT concat_ws('x', c.m, c.n, c.k) AS problem, l.round, j.configuration_id, r.runtime_ms
        FROM jobs j JOIN lanes l ON l.id = j.lane_id JOIN campaigns s ON s.id = l.campaign_id AND s.name = 'search'
        JOIN configurations c ON c.id = j.configuration_id JOIN measurements r ON r.job_id = j.id
        ORDER BY r.runtime_ms
        """,
    ):
        tried[row.problem][row.round].append(row.configuration_id)
    audit.expect(bool(tried), "nothing was searched")
    sizes = SEARCH.rounds(SEARCHED_KERNELS)
    for problem, by_round in sorted(tried.items()):
        rounds = [kernels for _, kernels in sorted(by_round.items())]
        found = [len(kernels) for kernels in rounds]
        audit.expect(found == sizes, f"the rounds of {problem} had {found} kernels, not {sizes}")
        for number, (before, after) in enumerate(pairwise(rounds)):
            best = set(before[: len(after)])
            audit.expect(set(after) == best, f"round {number} of {problem} let go {before} and {after} went on")


def _summary(connection: Connection) -> dict[str, Any]:
    def counted(statement: str) -> dict[str, int]:
        return {str(key): int(value) for key, value in _rows(connection, statement)}

    return {
        "jobs": counted("SELECT state, count(*) FROM jobs GROUP BY 1 ORDER BY 2 DESC"),
        "attempts that failed": counted("SELECT kind, count(*) FROM failures GROUP BY 1 ORDER BY 2 DESC"),
        "batches": counted("SELECT state, count(*) FROM batches GROUP BY 1 ORDER BY 2 DESC"),
        "released because": counted(
            "SELECT end_reason, count(*) FROM batches WHERE state = 'released' GROUP BY 1 ORDER BY 2 DESC"
        ),
        "messages": counted("SELECT 'sent', sum(sends) FROM batches"),
    }


# --- logs ----------------------------------------------------------------------------------------


def audit_logs(logs: Path, secrets: Path) -> list[str]:
    """No password in any log, and no traceback that is not expected."""
    passwords = [str(password) for password in json.loads(secrets.read_text()).values()]
    findings = []
    for file in sorted(logs.iterdir()):
        lines = file.read_text(errors="replace").splitlines()
        findings += [f"{file.name}: a password" for line in lines if any(password in line for password in passwords)]
        unexpected = Counter(last for last in tracebacks(lines) if not EXPECTED_TRACEBACKS.search(last))
        findings += [f"{file.name}: {count} tracebacks that end in: {last}" for last, count in unexpected.items()]
    return findings


def tracebacks(lines: Iterable[str]) -> Iterator[str]:
    """The last line of each traceback: the exception. It is as far indented as the first."""
    inside = None
    for line in lines:
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if bare.startswith("Traceback (most recent call last)"):
            inside = indent
        elif indent == inside and re.match(r"[A-Za-z_][\w.]*(:|$)", bare):
            inside = None
            yield bare

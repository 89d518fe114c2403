"""One run: a farm, a plan, the end that the farm must reach by itself, and the audit."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from homes import processes_under
from kombu.exceptions import OperationalError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from chaos.audit import audit_database, audit_logs
from chaos.farm import HOSTS_OF, Farm, wait_until
from chaos.faults import Faults, NotNow
from chaos.plan import Fault, Kind, make_plan
from chaos.workload import make_workload
from farm.services.cluster import remove_cluster
from farm.services.processes import last_lines

log = logging.getLogger("chaos")

DEVICES = sum(HOSTS_OF)
SICK_DEVICE = DEVICES - 1

START_S = 120.0
END_S = 300.0
"""The longest that a farm on a slow machine may take to come up, and to finish once chaos is over."""

AGAIN_S, PATIENCE_S = 0.5, 60.0
"""A fault that cannot strike now is tried again after this, and left out after that."""


MOST_SHOWN = 50
"""Findings that a report lists: where one thing goes wrong for good, every job is one."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    findings: list[str] = field(default_factory=list)
    faults: Counter[Kind] = field(default_factory=Counter)
    summary: dict[str, Any] = field(default_factory=dict)
    chaos_s: float = 0.0
    end_s: float = 0.0


def run(*, seed: int, seconds: float, keep: Path, jobs_a_second: float = 11.0, poisons: int = 2) -> Outcome:
    """Breaks a farm for about that long and audits it.

    `jobs_a_second` of chaos keep the farm busy until its end; `poisons` are the poisonous jobs of each kind.
    Where there are findings, or the run fails, the farm's logs are copied to the folder `keep`.
    """
    plan = make_plan(seed, seconds, hosts=len(HOSTS_OF), devices=DEVICES, sick=SICK_DEVICE)
    outcome = Outcome(seed)
    # Short, for sockets, and open to the account that Postgres runs as.
    folder = Path(tempfile.mkdtemp(prefix="farm-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    workload = make_workload(folder, seed, jobs=round(jobs_a_second * seconds), devices=DEVICES, poisons=poisons)
    farm = Farm(folder, workload)
    try:
        try:
            with farm:
                _break_and_audit(farm, plan, outcome)
        finally:
            findings = outcome.findings
            findings += [f"left running: {process}" for process in processes_under(folder)]
            findings += [f"{name} ended with {code}" for name, code in farm.exit_codes if code]
            findings += audit_logs(farm.home.logs, farm.home.path / "secrets.json")
    finally:
        if outcome.findings or not outcome.summary:
            shutil.copytree(farm.home.logs, keep, dirs_exist_ok=True)
        remove_cluster(farm.home)
        shutil.rmtree(folder)
    return outcome


def _break_and_audit(farm: Farm, plan: list[Fault], outcome: Outcome) -> None:
    wait_until(lambda: farm.live_devices() == DEVICES, START_S, "that every device lives")
    farm.learn_device_ids()
    steady, steered, _ = (farm.submit(campaign).campaign_id for campaign in farm.workload.campaigns)
    faults = Faults(farm, (steady, steered))
    began = time.monotonic()
    outcome.faults = Schedule(farm, faults, plan).carry_out()
    outcome.chaos_s = time.monotonic() - began
    faults.send_all_messages()
    log.info("chaos is over after %.0f s; the farm must come to its end by itself", outcome.chaos_s)
    reached = _wait_for_the_end(farm)
    if reached and not outcome.faults[Kind.RETRY_DEAD]:
        # On a slow machine no job was dead yet. Now the poisonous ones are.
        faults.strike(Fault(0.0, Kind.RETRY_DEAD, 0, 0.0))
        outcome.faults[Kind.RETRY_DEAD] += 1
        reached = _wait_for_the_end(farm)
    outcome.end_s = time.monotonic() - began - outcome.chaos_s
    sick = farm.workload.devices[SICK_DEVICE].uuid
    audit = audit_database(farm.engine, farm.workload, sick_uuid=sick, closed=faults.closed)
    outcome.summary, outcome.findings = audit.summary, audit.findings
    if not reached:
        outcome.findings.insert(0, f"the farm did not come to its end in {END_S:.0f} s; {_what_it_does(farm)}")
    outcome.findings += [f"never struck: {kind}" for kind in Kind if not outcome.faults[kind]]
    outcome.findings += [f"farm-worker ended with {code} when it was stopped" for code in faults.stop_codes if code]
    if (farm.folder / "unpickled").exists():
        outcome.findings.append("a worker unpickled a message")


def _wait_for_the_end(farm: Farm) -> bool:
    unfinished = text(
        """
        SELECT (SELECT count(*) FROM campaigns WHERE state <> 'done') + (SELECT count(*) FROM batches WHERE NOT folded)
            + (SELECT count(*) FROM devices WHERE unopened)
        """
    )
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        with farm.engine.connect() as connection:
            if not connection.execute(unfinished).scalar_one():
                return True
        farm.tend()
        time.sleep(0.5)
    return False


def _what_it_does(farm: Farm) -> str:
    """The last words of every program, for one who must find out why it stands still."""
    programs = [*farm.coordinators, *farm.hosts.values()]
    return "; ".join(f"{program.name}: {last_lines(program.log)}" for program in programs)


class Schedule:
    """Carries out a plan, one thing after another. What comes late shifts all that follows."""

    def __init__(self, farm: Farm, faults: Faults, plan: list[Fault]) -> None:
        self._farm = farm
        self._faults = faults
        self._order = itertools.count()
        # When it is due, when it is left out, and what to do.
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._struck: Counter[Kind] = Counter()
        self._began = time.monotonic()
        self._late_s = 0.0
        self._longest_s = 10 * plan[-1].at_s + 300.0  # however slow the machine is
        for fault in plan:
            self._put(fault.at_s, lambda fault=fault: self._strike(fault), patience_s=PATIENCE_S)  # type: ignore[misc]

    def _put(self, at_s: float, action: Callable[[], None], *, patience_s: float = float("inf")) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), at_s + patience_s, action))

    def _now_s(self) -> float:
        """Seconds of the plan's clock, which stands while one thing takes longer than planned."""
        return time.monotonic() - self._began - self._late_s

    def carry_out(self) -> Counter[Kind]:
        """Returns how often each kind struck, when all is made good again."""
        while self._due:
            at_s, _, until_s, action = heapq.heappop(self._due)
            self._wait_until(at_s)
            self._late_s += max(0.0, self._now_s() - at_s - AGAIN_S)
            try:
                action()
            except (NotNow, DBAPIError, OperationalError, redis.RedisError) as error:
                again_s = at_s + AGAIN_S
                if again_s < until_s:
                    heapq.heappush(self._due, (again_s, next(self._order), until_s, action))
                else:
                    log.info("left out: %s", error)
            if time.monotonic() - self._began > self._longest_s:
                raise AssertionError(
                    f"chaos does not come to its end: {len(self._due)} things are to be done or mended"
                )
        return self._struck

    def _wait_until(self, at_s: float) -> None:
        self._farm.tend()
        while (left_s := at_s - self._now_s()) > 0:
            time.sleep(min(left_s, 0.25))
            self._farm.tend()

    def _strike(self, fault: Fault) -> None:
        mend = self._faults.strike(fault)
        self._struck[fault.kind] += 1
        at_s = self._now_s()
        log.info("%6.1f s  %s (%d)%s", at_s, fault.kind, fault.target, f" for {fault.lasts_s:g} s" if mend else "")
        if mend is not None:
            self._put(at_s + fault.lasts_s, mend)


def report(outcome: Outcome) -> str:
    """The outcome for people."""
    lines = [f"seed {outcome.seed}: {outcome.chaos_s:.0f} s of chaos, {outcome.end_s:.0f} s until the end", "faults:"]
    lines += [f"  {count:4d}  {kind}" for kind, count in outcome.faults.most_common()]
    lines += [f"{what}: {json.dumps(counts)}" for what, counts in outcome.summary.items()]
    lines += [f"{len(outcome.findings)} findings", *(f"  {finding}" for finding in outcome.findings[:MOST_SHOWN])]
    return "\n".join(lines)

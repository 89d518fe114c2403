"""Runs: a farm, faults by a plan or one at a time, the end that the farm must reach by itself, and the audit."""

from __future__ import annotations

import json
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from chaos.alone import Alone, StandsStill, Strike, findings_of
from chaos.audit import audit_database, audit_logs
from chaos.between_hosts import FaultsBetweenHosts
from chaos.demand import demand
from chaos.farm import HOSTS_OF, OWN_TIMES, TIMES, Farm, wait_until
from chaos.faults import Faults
from chaos.hosts import DEVICES_OF, FarmOfHosts
from chaos.plan import ON_ONE_MACHINE, Fault, Kind, make_plan
from chaos.recovery import histogram, read_landings, recovered_among_others, too_slow
from chaos.schedule import Schedule
from chaos.workload import make_workload
from farm.services.cluster import remove_cluster
from support.homes import processes_under

log = logging.getLogger("chaos")

DEVICES = sum(HOSTS_OF)
SICK_DEVICE = DEVICES - 1

START_S = 120.0
END_S = 300.0
"""The longest that a farm on a slow machine may take to come up, and to finish once chaos is over."""

MOST_SHOWN = 50
"""Findings that a report lists: where one thing goes wrong for good, every job is one."""

LONGEST_WORK_S = 300.0
"""Campaigns with poisonous jobs are sized to this much of a longer run."""

SOAK_DEVICES_OF = (2, 2, 2, 2)
"""Devices of the four hosts of a farm on hosts of its own that many faults strike at once."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    findings: list[str] = field(default_factory=list)
    faults: Counter[Kind] = field(default_factory=Counter)
    summary: dict[str, Any] = field(default_factory=dict)
    harm: dict[str, int] = field(default_factory=dict)
    recovered: dict[Kind, list[float]] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    chaos_s: float = 0.0
    end_s: float = 0.0


def run(
    *,
    seed: int,
    seconds: float,
    keep: Path,
    jobs_a_second: float = 5.0,
    poisons: int = 2,
    owners: int = 2,
    kinds: Sequence[Kind] = ON_ONE_MACHINE,
    on_hosts: bool = False,
    devices_of: Sequence[int] | None = None,
) -> Outcome:
    """Breaks a farm for about that long and audits it: on one machine, or with `on_hosts` on hosts of its own.

    `devices_of` says how many devices each `farm-worker` has: by default two.
    Beside `jobs_a_second` of campaigns with `poisons` poisonous jobs of each kind, `owners` keep it busy until the end.
    Where there are findings, or the run fails, the farm's logs are copied to the folder `keep`. Raises `Unavailable`.
    """
    devices_of = devices_of or (SOAK_DEVICES_OF if on_hosts else HOSTS_OF)
    sick = sum(devices_of) - 1
    plan = make_plan(seed, seconds, hosts=len(devices_of), devices=sick + 1, sick=sick, kinds=kinds)
    outcome = Outcome(seed)

    def chaos(farm: Farm) -> None:
        _break_and_audit(farm, plan, outcome, owners=owners, sick=sick, kinds=kinds)

    jobs = round(jobs_a_second * min(seconds, LONGEST_WORK_S))
    workload = _Workload(jobs=jobs, devices_of=devices_of, poisons=poisons, times=TIMES)
    _with_farm(outcome, keep, workload, chaos, on_hosts=on_hosts)
    outcome.findings += [f"never struck: {kind}" for kind in kinds if not outcome.faults[kind]]
    return outcome


def strike_alone(
    *, seed: int, keep: Path, kinds: Sequence[Kind], strikes: int = 1, owners: int = 10, on_hosts: bool = True
) -> Outcome:
    """Lets each of the faults strike that often, one when all is well again after the other, with the farm's own times.

    Says how long healthy devices took to measure again. `keep` and `Unavailable` as for `run`.
    """
    outcome = Outcome(seed)
    workload = _Workload(jobs=0, devices_of=DEVICES_OF if on_hosts else HOSTS_OF, poisons=0, times=OWN_TIMES)
    order = random.Random(seed)
    turns = [kind for _ in range(strikes) for kind in order.sample(kinds, len(kinds))]

    def strike(farm: Farm) -> None:
        alone = Alone(farm, _faults(farm), order)
        began = time.monotonic()
        try:
            with demand(farm, owners):
                for kind in turns:
                    outcome.strikes.append(alone.strike(kind))
                    outcome.faults[kind] += 1
        except StandsStill as why:
            outcome.findings.append(str(why))
        outcome.chaos_s = time.monotonic() - began
        _end_and_audit(farm, outcome, alone.faults, sick=None)

    _with_farm(outcome, keep, workload, strike, on_hosts=on_hosts)
    for one in outcome.strikes:
        outcome.findings += findings_of(one)
    return outcome


@dataclass(frozen=True, slots=True)
class _Workload:
    """What a farm is to measure, where, and with which times."""

    jobs: int
    devices_of: Sequence[int]
    poisons: int
    times: Mapping[str, str]


def _with_farm(
    outcome: Outcome, keep: Path, wanted: _Workload, work: Callable[[Farm], None], *, on_hosts: bool
) -> None:
    """Makes a farm, works with it when all of it is up, and adds to the findings what it left behind."""
    # Short, for sockets, and open to the account that Postgres runs as.
    folder = Path(tempfile.mkdtemp(prefix="farm-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    devices = sum(wanted.devices_of)
    workload = make_workload(folder, outcome.seed, jobs=wanted.jobs, devices=devices, poisons=wanted.poisons)
    farm = (FarmOfHosts if on_hosts else Farm)(folder, workload, devices_of=wanted.devices_of, times=wanted.times)
    try:
        try:
            with farm:
                wait_until(lambda: farm.live_devices() == devices, START_S, "every device is announced")
                farm.learn_device_ids()
                work(farm)
        finally:
            findings = outcome.findings
            findings += [f"left running: {process}" for process in processes_under(folder)]
            findings += [f"{name} ended with {code}" for name, code in farm.exit_codes if code]
            if farm.home.logs.is_dir():
                findings += audit_logs(farm.home.logs, farm.home.path / "secrets.json")
    finally:
        if (outcome.findings or not outcome.summary) and farm.home.logs.is_dir():
            shutil.copytree(farm.home.logs, keep, dirs_exist_ok=True)
        remove_cluster(farm.home)
        shutil.rmtree(folder)


def _faults(farm: Farm) -> Faults:
    return FaultsBetweenHosts(farm) if isinstance(farm, FarmOfHosts) else Faults(farm)


def _break_and_audit(
    farm: Farm, plan: list[Fault], outcome: Outcome, *, owners: int, sick: int, kinds: Collection[Kind]
) -> None:
    for campaign in farm.workload.campaigns:
        farm.submit(campaign)
    faults = _faults(farm)
    began = time.monotonic()
    schedule = Schedule(farm, faults, plan)
    with demand(farm, owners):
        schedule.carry_out()
        until = time.time()
    outcome.faults = Counter(one.kind for one in schedule.struck)
    outcome.chaos_s = time.monotonic() - began
    faults.send_all_messages()
    log.info("chaos is over after %.0f s; the farm must come to its end by itself", outcome.chaos_s)
    _end_and_audit(farm, outcome, faults, sick=sick if Kind.SICKEN_DEVICE in kinds else None, kinds=kinds)
    with farm.engine.connect() as connection:
        landings = read_landings(connection, farm.device_ids, with_rows=not farm.workload.poisons)
    outcome.recovered = recovered_among_others(landings, schedule.struck, farm, until)
    outcome.findings += too_slow(outcome.recovered)


def _end_and_audit(
    farm: Farm, outcome: Outcome, faults: Faults, *, sick: int | None, kinds: Collection[Kind] = ()
) -> None:
    began = time.monotonic()
    sick_uuid = None if sick is None else farm.workload.devices[sick].uuid
    reached = _wait_for_the_end(farm, sick_uuid)
    if reached and Kind.RETRY_DEAD in kinds and not outcome.faults[Kind.RETRY_DEAD]:
        # On a slow machine no job was dead yet. Now the poisonous ones are.
        faults.strike(Fault(0.0, Kind.RETRY_DEAD, 0, 0.0))
        outcome.faults[Kind.RETRY_DEAD] += 1
        reached = _wait_for_the_end(farm, sick_uuid)
    outcome.end_s = time.monotonic() - began
    audit = audit_database(farm.engine, farm.workload, sick_uuid=sick_uuid, closed=faults.closed)
    outcome.summary, outcome.harm = audit.summary, audit.harm
    outcome.findings += audit.findings
    if not reached:
        outcome.findings.insert(0, f"the farm did not come to its end in {END_S:.0f} s; {farm.last_words()}")
    outcome.findings += [f"farm-worker ended with {code} when it was stopped" for code in faults.stop_codes if code]
    if (farm.folder / "unpickled").exists():
        outcome.findings.append("a worker unpickled a message")


def _wait_for_the_end(farm: Farm, sick_uuid: str | None) -> bool:
    """Until nothing is left to do, and every device that is well has passed its trial."""
    unfinished = text(
        """
        SELECT (SELECT count(*) FROM campaigns WHERE state <> 'done') + (SELECT count(*) FROM batches WHERE NOT folded)
            + (SELECT count(*) FROM devices WHERE unopened OR (state = 'probation' AND uuid IS DISTINCT FROM :sick))
        """
    )
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        with farm.engine.connect() as connection:
            if not connection.execute(unfinished, {"sick": sick_uuid}).scalar_one():
                return True
        farm.tend()
        time.sleep(0.5)
    return False


def report(outcome: Outcome) -> str:
    """The outcome for people."""
    lines = [f"seed {outcome.seed}: {outcome.chaos_s:.0f} s of chaos, {outcome.end_s:.0f} s until the end", "faults:"]
    lines += [f"  {count:4d}  {kind}" for kind, count in outcome.faults.most_common()]
    lines += [f"{what}: {json.dumps(counts)}" for what, counts in outcome.summary.items()]
    lines += [f"{what.replace('_', ' ')}: {count}" for what, count in outcome.harm.items()]
    lines += [histogram(outcome.recovered)] if outcome.recovered else []
    lines += [
        f"{'-' if one.seconds is None else format(one.seconds, '.1f'):>6} s"
        f"{'' if one.takeover_seconds is None else f' (takeover {one.takeover_seconds:.1f} s)'}  {one.kind}"
        for one in outcome.strikes
    ]
    lines += [f"{len(outcome.findings)} findings", *(f"  {finding}" for finding in outcome.findings[:MOST_SHOWN])]
    return "\n".join(lines)

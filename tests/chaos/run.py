"""Runs: a farm, faults by a plan or one at a time, the end that the farm must reach by itself, and the audit."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import logging
import math
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import redis
from homes import processes_under
from kombu.exceptions import OperationalError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from chaos.audit import audit_database, audit_logs
from chaos.between_hosts import FaultsBetweenHosts
from chaos.farm import HOSTS_OF, OWN_TIMES, TIMES, Farm, wait_until
from chaos.faults import Faults, Mend, NotNow
from chaos.hosts import DEVICES_OF, FarmOfHosts
from chaos.plan import ON_ONE_MACHINE, TRAITS, Fault, Kind, Victim, make_plan
from chaos.recovery import (
    BOUND_S,
    OUTAGE_S,
    TAKEOVER_BOUND_S,
    Struck,
    healthy_beside,
    histogram,
    read_landings,
    recovered_after,
    recovered_among_others,
    too_slow,
)
from chaos.workload import make_workload, more
from farm.db import leadership
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

OBSERVED_S = 20.0
"""How long devices are watched after a fault that struck alone: what it took from them may be missed later."""

STEADY_S = 120.0
"""The longest that a farm may take after a fault until everything is as before."""

MOST_SHOWN = 50
"""Findings that a report lists: where one thing goes wrong for good, every job is one."""

LONGEST_WORK_S = 300.0
"""Campaigns with poisonous jobs are sized to this much of a longer run."""

WAITING_JOBS = 60
"""Jobs that wait for each device: six seconds of its work."""

LATER = (NotNow, DBAPIError, OperationalError, redis.RedisError)
"""What a fault raises that must be tried again."""

TARGETED = (Victim.DEVICE, Victim.HEALTHY_DEVICE, Victim.HOST)
"""Of these victims there are several."""

T = TypeVar("T")

SOAK_DEVICES_OF = (2, 2, 2, 2)
"""Devices of the four hosts of a farm on hosts of its own that many faults strike at once."""


@dataclass(frozen=True, slots=True)
class Strike:
    """What came of a fault that struck alone."""

    kind: Kind
    # Until healthy devices measured again; None where they did not.
    seconds: float | None
    # Until another coordinator led, for a fault that takes the lead.
    takeover_seconds: float | None = None


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


_WAITING = text("""
SELECT c.owner, sum(l.jobs - l.done - l.invalid - l.dead) FROM campaigns c JOIN lanes l ON l.campaign_id = c.id
WHERE c.state = 'active' AND starts_with(c.name, 'more-') GROUP BY 1
""")


@contextmanager
def demand(farm: Farm, owners: int) -> Iterator[None]:
    """Inside the block, a thread keeps jobs of each of some owners waiting, together enough for several seconds."""
    names = [f"owner-{number}" for number in range(owners)]
    over, numbers = threading.Event(), itertools.count(1)
    enough = len(farm.device_ids) * WAITING_JOBS / owners

    def submit() -> None:
        while not over.wait(0.5):
            # Where Postgres is away or read-only, there is another look soon.
            with contextlib.suppress(DBAPIError):
                with farm.engine.connect() as connection:
                    waiting = dict(connection.execute(_WAITING).tuples().all())
                for owner in names:
                    if waiting.get(owner, 0) < enough:
                        farm.submit(more(f"more-{next(numbers)}", owner, rows=2))

    thread = threading.Thread(target=submit, name="demand", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
) -> Outcome:
    """Breaks a farm for about that long and audits it: on one machine, or with `on_hosts` on hosts of its own.

    Beside `jobs_a_second` of campaigns with `poisons` poisonous jobs of each kind, `owners` keep it busy until the end.
    Where there are findings, or the run fails, the farm's logs are copied to the folder `keep`. Raises `Unavailable`.
    """
    devices_of = SOAK_DEVICES_OF if on_hosts else HOSTS_OF
    sick = sum(devices_of) - 1
    plan = make_plan(seed, seconds, hosts=len(devices_of), devices=sick + 1, sick=sick, kinds=kinds)
    outcome = Outcome(seed)

    def chaos(farm: Farm) -> None:
        _break_and_audit(farm, plan, outcome, owners=owners, sick=sick if Kind.SICKEN_DEVICE in kinds else None)

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
        outcome.findings += _too_slow(one)
    return outcome


def _too_slow(strike: Strike) -> Iterator[str]:
    if strike.seconds is None or strike.seconds > BOUND_S:
        took = "not at all" if strike.seconds is None else f"after {strike.seconds:.1f} s"
        yield f"after {strike.kind.value!r} healthy devices measured again {took}, not within {BOUND_S:g} s"
    if TRAITS[strike.kind].takes_lead and (strike.takeover_seconds or math.inf) > TAKEOVER_BOUND_S:
        took = "not at all" if strike.takeover_seconds is None else f"after {strike.takeover_seconds:.1f} s"
        yield f"after {strike.kind.value!r} another coordinator led {took}, not within {TAKEOVER_BOUND_S:g} s"


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


def _break_and_audit(farm: Farm, plan: list[Fault], outcome: Outcome, *, owners: int, sick: int | None) -> None:
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
    _end_and_audit(farm, outcome, faults, sick=sick)
    with farm.engine.connect() as connection:
        landings = read_landings(connection, farm.device_ids)
    outcome.recovered = recovered_among_others(landings, schedule.struck, farm, until)
    outcome.findings += too_slow(outcome.recovered)


def _end_and_audit(farm: Farm, outcome: Outcome, faults: Faults, *, sick: int | None) -> None:
    began = time.monotonic()
    reached = _wait_for_the_end(farm)
    if reached and Kind.RETRY_DEAD in outcome.faults and not outcome.faults[Kind.RETRY_DEAD]:
        # On a slow machine no job was dead yet. Now the poisonous ones are.
        faults.strike(Fault(0.0, Kind.RETRY_DEAD, 0, 0.0))
        outcome.faults[Kind.RETRY_DEAD] += 1
        reached = _wait_for_the_end(farm)
    outcome.end_s = time.monotonic() - began
    sick_uuid = None if sick is None else farm.workload.devices[sick].uuid
    audit = audit_database(farm.engine, farm.workload, sick_uuid=sick_uuid, closed=faults.closed)
    outcome.summary, outcome.harm = audit.summary, audit.harm
    outcome.findings += audit.findings
    if not reached:
        outcome.findings.insert(0, f"the farm did not come to its end in {END_S:.0f} s; {_what_it_does(farm)}")
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
        self.struck: list[Struck] = []
        self._order = itertools.count()
        # When it is due, when it is left out, and what to do.
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
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

    def carry_out(self) -> None:
        """Until all is made good again. `struck` is what was done."""
        while self._due:
            at_s, _, until_s, action = heapq.heappop(self._due)
            self._wait_until(at_s)
            self._late_s += max(0.0, self._now_s() - at_s - AGAIN_S)
            try:
                action()
            except LATER as error:
                again_s = at_s + AGAIN_S
                if again_s < until_s:
                    heapq.heappush(self._due, (again_s, next(self._order), until_s, action))
                else:
                    log.info("left out: %s", error)
            if time.monotonic() - self._began > self._longest_s:
                raise AssertionError(
                    f"chaos does not come to its end: {len(self._due)} things are to be done or mended"
                )

    def _wait_until(self, at_s: float) -> None:
        self._farm.tend()
        while (left_s := at_s - self._now_s()) > 0:
            time.sleep(min(left_s, 0.25))
            self._farm.tend()

    def _strike(self, fault: Fault) -> None:
        at = time.time()
        mend = self._faults.strike(fault)
        at_s, place = self._now_s(), len(self.struck)
        self.struck.append(Struck(fault.kind, fault.target, at, None))
        log.info("%6.1f s  %s (%d)%s", at_s, fault.kind, fault.target, f" for {fault.lasts_s:g} s" if mend else "")
        if mend is not None:

            def make_good() -> None:
                mend()
                self.struck[place] = replace(self.struck[place], mended_at=time.time())

            self._put(at_s + fault.lasts_s, make_good)


class StandsStill(Exception):
    """A farm did not come back to what it was, so that no fault can strike alone any more."""


class Alone:
    """Lets faults strike one after the other."""

    def __init__(self, farm: Farm, faults: Faults, chance: random.Random) -> None:
        self._farm = farm
        self.faults = faults
        self._chance = chance

    def strike(self, kind: Kind) -> Strike:
        """Raises `StandsStill` where the fault cannot be done, or the farm is not as before in `STEADY_S`."""
        self._wait_until(
            self._is_steady, STEADY_S, f"all devices measure, and two coordinators run, before {kind.value!r}"
        )
        trait = TRAITS[kind]
        count = len(self._farm.devices_of) if trait.victim is Victim.HOST else len(self._farm.device_ids)
        target = self._chance.randrange(count) if trait.victim in TARGETED else 0
        term = self._term()
        at, mend = self._again(lambda: self._struck(Fault(0.0, kind, target, trait.strike_s)), kind)
        log.info("%s (%d)", kind, target)
        mended_at = None
        if mend is not None:
            self._wait(trait.strike_s)
            self._again(mend, kind)
            mended_at = time.time()
        struck = Struck(kind, target, at, mended_at)
        healthy = healthy_beside(kind, target, self._farm)
        self._wait(struck.since + OBSERVED_S - time.time())
        seconds, end = None, time.monotonic() + STEADY_S
        while seconds is None and time.monotonic() < end:
            self._wait(0.5)
            with contextlib.suppress(DBAPIError), self._farm.engine.connect() as connection:
                landings = read_landings(connection, self._farm.device_ids, since=at)
                seconds = recovered_after(landings, healthy, struck.since, time.time())
        later = self._term()
        takeover = later.since.timestamp() - at if trait.takes_lead and later.since and later.term > term.term else None
        log.info("  %s s, takeover %s s", seconds, takeover)
        return Strike(kind, seconds, takeover)

    def _struck(self, fault: Fault) -> tuple[float, Mend | None]:
        at = time.time()
        return at, self.faults.strike(fault)

    def _again(self, action: Callable[[], T], kind: Kind) -> T:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return action()
            except LATER as error:
                if time.monotonic() > end:
                    raise StandsStill(f"{kind.value!r} cannot be done or mended: {error}") from None
                self._wait(AGAIN_S)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            self._farm.tend()
            time.sleep(min(left_s, 0.25))

    def _wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise StandsStill(f"it did not come to be that {what}; {_what_it_does(self._farm)}")
            self._wait(0.5)

    def _is_steady(self) -> bool:
        """Whether somebody leads, as many coordinators run as should, and every device landed something lately."""
        if sum(one.process is not None for one in self._farm.coordinators) < len(self._farm.hosts_of_coordinators):
            return False
        now = time.time()
        try:
            with self._farm.engine.connect() as connection:
                if not leadership.read(connection).leads:
                    return False
                landings = read_landings(connection, self._farm.device_ids, since=now - 3 * OUTAGE_S)
        except DBAPIError:
            return False
        return all(landed and now - landed[-1] < OUTAGE_S and len(landed) > 3 for landed in landings.landed)

    def _term(self) -> leadership.Leader:
        with self._farm.engine.connect() as connection:
            return leadership.read(connection)


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

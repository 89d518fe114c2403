"""How each fault is done, and made good again."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
from sqlalchemy import make_url, text

from chaos.farm import DeviceProcesses, Farm, Program
from chaos.mischief import OLDER, landing_mark, sick_mark
from chaos.plan import Fault, Kind
from chaos.workload import TYPE, more
from farm.broker import MEASURE_BATCH, make_app
from farm.db import batches, devices
from farm.db.states import DeviceState, JobState
from farm.services.cluster import find_cluster

log = logging.getLogger("chaos")

CLOCK_STEP_S = 3600.0

SUBMISSION_PATIENCE_S = 60.0
"""How long `farm submit` may take until it sends jobs."""

LARGE_CAMPAIGN = f"""
name: large
owner: zoe
targets: [{{type: {TYPE}}}]
problems: {{m: 1..1000, n: 1..200, k: 64, types: f32}}
kernels: [{{family: blas, threads: 1}}]
"""
"""200,000 jobs, whose submission is never committed."""

UNSENT_PATIENCE_S = 5.0
"""How long to wait for a batch that the coordinator has committed and cannot send."""

SEND_S = 2.0
"""How long Redis may take to answer before a message is sent later."""

Mend = Callable[[], None]


class NotNow(Exception):
    """The fault needs something that another fault has taken away for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A time, on the database's clock, in which nothing may be claimed: of a campaign, or by a device."""

    since: datetime
    until: datetime
    campaign_id: int | None = None
    device_id: int | None = None


class Faults:
    """Does what a plan says to one farm."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._lasts_s, self._crowds = 0.0, 0
        self.closed: list[Closed] = []
        self._ending: set[int] = set()  # hosts that were told to end, or killed, and are to be started again
        self.stop_codes: list[int] = []
        """Exit codes of `farm-worker` after it was asked to stop."""
        self._strike: dict[Kind, Callable[[int], Mend | None]] = {
            Kind.KILL_CHILD: self._kill_child,
            Kind.FREEZE_CHILD: self._freeze_child,
            Kind.KILL_PARENT: self._kill_parent,
            Kind.PAUSE_WORKER: self._pause_worker,
            Kind.FREEZE_LANDING: self._freeze_landing,
            Kind.KILL_LANDING: self._kill_landing,
            Kind.HOLD_DEVICE: self._hold_device,
            Kind.HOLD_BATCH: self._hold_batch,
            Kind.KILL_HOST: self._kill_host,
            Kind.STOP_HOST: self._stop_host,
            Kind.FREEZE_HOST: self._freeze_host,
            Kind.OLD_WORKER: self._old_worker,
            Kind.SECOND_WORKER: self._second_worker,
            Kind.STEP_HOST_CLOCK: lambda host: self._step_clock(farm.name_of(host), CLOCK_STEP_S),
            Kind.KILL_COORDINATOR: self._kill_coordinator,
            Kind.SECOND_COORDINATOR: self._second_coordinator,
            Kind.KILL_BEFORE_SENDING: self._kill_before_sending,
            Kind.PAUSE_COORDINATOR: self._pause_coordinator,
            Kind.FREEZE_COORDINATOR: self._pause_coordinator,
            Kind.STEP_LEADER_CLOCK: lambda _: self._step_clock(self.leader().host, -CLOCK_STEP_S),
            Kind.FLUSH_REDIS: self._flush_redis,
            Kind.KILL_REDIS: self._kill_redis,
            Kind.STOP_REDIS: self._stop_redis,
            Kind.FREEZE_REDIS: self._freeze_redis,
            Kind.FULL_REDIS: self._full_redis,
            Kind.READ_ONLY_REDIS: self._read_only_redis,
            Kind.CRASH_POSTGRES: self._crash_postgres,
            Kind.KILL_POSTGRES: self._kill_postgres,
            Kind.RESTART_POSTGRES: self._restart_postgres,
            Kind.DROP_CONNECTIONS: self._drop_connections,
            Kind.FREEZE_POSTGRES: self._freeze_postgres,
            Kind.READ_ONLY_POSTGRES: self._read_only_postgres,
            Kind.REPEAT_MESSAGES: self._repeat_messages,
            Kind.JUNK_MESSAGES: self._junk_messages,
            Kind.LOSE_MESSAGES: self._lose_messages,
            Kind.PAUSE_CAMPAIGN: self._pause_campaign,
            Kind.CANCEL_CAMPAIGN: self._cancel_campaign,
            Kind.DRAIN_DEVICE: self._drain_device,
            Kind.RETRY_DEAD: self._retry_dead,
            Kind.HOLD_LANE: self._hold_lane,
            Kind.HOLD_CAMPAIGN: self._hold_campaign,
            Kind.STOP_SUBMISSION: self._stop_submission,
            Kind.FIFTY_OWNERS: self._fifty_owners,
            Kind.SICKEN_DEVICE: self._sicken_device,
        }

    @property
    def kinds(self) -> Collection[Kind]:
        """What it can do."""
        return self._strike.keys()

    def strike(self, fault: Fault) -> Mend | None:
        """Does it. What makes it good again is returned, and may be called more than once.

        Either raises `NotNow`, or an error of Postgres or Redis, where it must be tried again later.
        """
        self._lasts_s = fault.lasts_s
        mend = self._strike[fault.kind](fault.target)
        return None if fault.lasts_s == math.inf else mend

    def send_all_messages(self) -> None:
        """Repeated and meaningless messages once more, when nothing can keep them from being delivered."""
        self._repeat_messages(0)
        self._junk_messages(0)

    # --- the processes of a device ---------------------------------------------------------------

    def processes_of(self, device: int) -> DeviceProcesses:
        found = self._farm.processes_of(device)
        if found is None:
            raise NotNow(f"device {device} is not served")
        return found

    def _child_of(self, device: int) -> psutil.Process:
        found = self.processes_of(device).child()
        if found is None:
            raise NotNow(f"device {device} has no child")
        return found

    def _kill_child(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self._child_of(device).kill()

    def _freeze_child(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self._child_of(device).suspend()

    def _kill_parent(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self.processes_of(device).parent.kill()

    def _pause_worker(self, device: int) -> Mend:
        both = [self.processes_of(device).parent, self._child_of(device)]
        for process in both:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        return self._resume_after_the_lease(both)

    def _resume_after_the_lease(self, processes: Sequence[psutil.Process]) -> Mend:
        until = time.monotonic() + self._farm.lease_s + 1.0

        def go_on() -> None:
            if time.monotonic() < until:
                raise NotNow("the lease has not passed yet")
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.resume()

        return go_on

    def in_a_landing(self, device: int) -> tuple[psutil.Process, Path]:
        """The child of the device, in the middle of a landing that goes on when the file is removed."""
        child = self._child_of(device)
        mark = landing_mark(self._farm.folder, self._farm.device_ids[device])
        reached = mark.with_suffix(".reached")
        try:
            there = reached.read_text() == str(child.pid)  # and not one that was killed there
        except FileNotFoundError:
            there = False
        if not there:
            mark.touch()
            raise NotNow(f"device {device} does not land yet")
        return child, reached

    def _freeze_landing(self, device: int) -> None:
        child, landing = self.in_a_landing(device)
        with contextlib.suppress(psutil.Error):
            child.suspend()
        landing.unlink(missing_ok=True)

    def _kill_landing(self, device: int) -> None:
        child, landing = self.in_a_landing(device)
        with contextlib.suppress(psutil.Error):
            child.kill()
        landing.unlink(missing_ok=True)

    # --- locks of somebody else ------------------------------------------------------------------

    def _hold(self, statement: str) -> Mend:
        """A session of somebody else's, which changed a row and stands still in its transaction."""
        url = make_url(self._farm.urls.database_url).set(drivername="postgresql")
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

    def _hold_device(self, device: int) -> Mend:
        return self._hold(f"UPDATE devices SET state = state WHERE id = {self._farm.device_ids[device]}")

    def _hold_batch(self, device: int) -> Mend:
        in_hand = f"device_id = {self._farm.device_ids[device]} AND state = 'leased'"
        return self._hold(f"UPDATE batches SET state = state WHERE {in_hand}")

    def _hold_lane(self, _: int) -> Mend:
        return self._hold(f"UPDATE lanes SET jobs = jobs WHERE campaign_id = {self._steered()}")

    def _hold_campaign(self, _: int) -> Mend:
        return self._hold(f"UPDATE campaigns SET priority = priority WHERE id = {self._steered()}")

    # --- farm-worker -----------------------------------------------------------------------------

    def _host(self, host: int) -> Program:
        found = self._farm.hosts[host]
        if host in self._ending or found.process is None:
            raise NotNow(f"host {host} does not run")
        return found

    def _start_again(self, host: int, **more: str) -> int:
        """Returns the exit code of the one that ended."""
        ended = self._farm.hosts[host]
        if ended.running:
            raise NotNow(f"host {host} has not ended")
        self._ending.discard(host)
        code = ended.wait()
        self._farm.start_host(host, **more)
        return code

    def _kill_host(self, host: int) -> Mend:
        self._host(host).signal(signal.SIGKILL)
        self._ending.add(host)

        def start() -> None:
            self._start_again(host)

        return start

    def _stop_host(self, host: int) -> Mend:
        program = self._host(host)
        if "serving" not in program.said():
            raise NotNow(f"host {host} starts, and does not hear signals yet")
        program.ask_to_stop()
        self._ending.add(host)
        return lambda: self.stop_codes.append(self._start_again(host))

    def _freeze_host(self, host: int) -> Mend:
        self._host(host)
        family = self._farm.hosts[host].family()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        return self._resume_after_the_lease(family)

    def _old_worker(self, host: int) -> Mend:
        self._replace(host, **{OLDER: "1"})

        def upgrade() -> None:
            self._replace(host)

        return upgrade

    def _replace(self, host: int, **more: str) -> None:
        """Stops `farm-worker` in good order, and starts it with that environment."""
        program = self._host(host)
        program.ask_to_stop()
        self._ending.add(host)
        program.wait()
        self._start_again(host, **more)

    def _second_worker(self, host: int) -> Mend:
        self._host(host)
        second = self._farm.start_worker(f"second-of-host-{host}", host)
        self._farm.others.append(second)

        def stop() -> None:
            if second in self._farm.others:
                second.ask_to_stop()
                second.wait()
                self._farm.others.remove(second)

        return stop

    def _step_clock(self, host: str, by_s: float) -> Mend:
        before_s = self._farm.clock_ahead_s(host)
        self._farm.set_clock(host, before_s + by_s)
        return lambda: self._farm.set_clock(host, before_s)

    # --- coordinators ----------------------------------------------------------------------------

    def leader(self) -> Program:
        found = self._farm.leader()
        if found is None:
            raise NotNow("no coordinator leads")
        return found

    def _without_coordinator(self, leader: Program) -> Mend:
        self._farm.supervised = False
        leader.signal(signal.SIGKILL)

        def supervise() -> None:
            self._farm.supervised = True

        return supervise

    def _kill_coordinator(self, _: int) -> Mend:
        return self._without_coordinator(self.leader())

    def _second_coordinator(self, _: int) -> Mend:
        self.leader()
        self._farm.start_coordinator()

        def kill_the_leader() -> None:
            if sum(program.process is not None for program in self._farm.coordinators) > 1:
                self.leader().signal(signal.SIGKILL)

        return kill_the_leader

    def _kill_before_sending(self, _: int) -> Mend:
        leader = self.leader()
        if not self._scalar("SELECT count(*) FROM leadership WHERE expires_at > clock_timestamp()"):
            raise NotNow("no coordinator leads")
        if not self._scalar("SELECT count(*) FROM batches WHERE finished_at > clock_timestamp() - interval '1 s'"):
            raise NotNow("no batch ends, and makes room for another")
        self._farm.end_service(self._farm.redis_pid(), signal.SIGKILL)
        unsent = "SELECT count(*) FROM batches WHERE NOT folded AND state = 'queued' AND sent_at IS NULL"
        end = time.monotonic() + UNSENT_PATIENCE_S
        try:
            while not (found := self._scalar(unsent)):
                if time.monotonic() > end:
                    raise NotNow("every batch was sent")
                time.sleep(0.02)
        except BaseException:
            self._farm.start_redis()
            raise
        supervise = self._without_coordinator(leader)
        log.info("  %d batches were committed and not sent", found)

        def mend() -> None:
            self._farm.start_redis()
            supervise()

        return mend

    def _pause_coordinator(self, _: int) -> Mend:
        leader = self.leader()
        leader.signal(signal.SIGSTOP)

        def go_on() -> None:
            leader.signal(signal.SIGCONT)

        return go_on

    # --- Redis and Postgres ----------------------------------------------------------------------

    def _flush_redis(self, _: int) -> None:
        with self._farm.redis() as client:
            client.flushall()

    def _kill_redis(self, _: int) -> None:
        self._farm.end_service(self._farm.redis_pid(), signal.SIGKILL)
        self._farm.start_redis()

    def _stop_redis(self, _: int) -> Mend:
        self._farm.end_service(self._farm.redis_pid(), signal.SIGTERM)
        return self._farm.start_redis

    def _freeze_redis(self, _: int) -> Mend:
        pid = self._farm.redis_pid()
        if pid is None or not psutil.pid_exists(pid):
            raise NotNow("Redis does not run")
        process = psutil.Process(pid)
        process.suspend()

        def go_on() -> None:
            with contextlib.suppress(psutil.Error):
                process.resume()

        return go_on

    def _full_redis(self, _: int) -> Mend:
        return self._refusing_redis(("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"))

    def _read_only_redis(self, _: int) -> Mend:
        return self._refusing_redis(("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"))

    def _refusing_redis(self, refuse: tuple[str, ...], accept: tuple[str, ...]) -> Mend:
        def ask(command: tuple[str, ...]) -> None:
            with self._farm.redis() as client:
                client.execute_command(*command)

        ask(refuse)
        return lambda: ask(accept)

    def _freeze_postgres(self, _: int) -> Mend:
        """A thread ends it: this one might wait for an answer itself."""
        pid = self._farm.postgres_pid()
        if pid is None or not psutil.pid_exists(pid):
            raise NotNow("Postgres does not run")
        postmaster = psutil.Process(pid)
        frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.suspend()

        def resume() -> None:
            for process in reversed(frozen):
                with contextlib.suppress(psutil.Error):
                    process.resume()

        timer = threading.Timer(self._lasts_s, resume)
        timer.start()
        return timer.join

    def _read_only_postgres(self, _: int) -> Mend:
        """As after a failover to a replica, but sessions stay: every transaction that begins from now on is read-only."""
        cluster = find_cluster(self._farm.home)
        assert cluster is not None
        settings = cluster.data / "postgresql.auto.conf"
        line = "default_transaction_read_only = on\n"

        def reload() -> None:
            pid = self._farm.postgres_pid()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)

        def writable() -> None:
            settings.write_text(settings.read_text().replace(line, ""))
            reload()

        settings.write_text(settings.read_text() + line)
        reload()
        return writable

    def _crash_postgres(self, _: int) -> Mend:
        self._farm.end_service(self._farm.postgres_pid(), signal.SIGQUIT)
        return self._farm.start_postgres

    def _kill_postgres(self, _: int) -> Mend:
        self._farm.end_service(self._farm.postgres_pid(), signal.SIGKILL)
        return self._farm.start_postgres

    def _restart_postgres(self, _: int) -> None:
        self._farm.end_service(self._farm.postgres_pid(), signal.SIGINT)
        self._farm.start_postgres()

    def _drop_connections(self, _: int) -> None:
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'farm%'"
        log.info("  %d connections", self._scalar(cut))

    # --- messages --------------------------------------------------------------------------------

    def _send(self, queue: str, *args: object, task: str = MEASURE_BATCH, **options: Any) -> None:
        app = make_app(self._farm.urls.broker_url or "")
        app.conf.broker_transport_options |= {
            "socket_timeout": SEND_S
        }  # this process must go on to mend a frozen Redis
        with app.connection_for_write() as broker, app.amqp.Producer(broker) as producer:
            app.send_task(task, args=args, queue=queue, producer=producer, retry=False, **options)

    def _repeat_messages(self, _: int) -> None:
        some = text("""
            SELECT id FROM (
                SELECT id, row_number() OVER (PARTITION BY state ORDER BY id DESC) AS n FROM batches
            ) b WHERE n <= 4
        """)
        with self._farm.engine.connect() as connection:
            ids = list(connection.execute(some).scalars())
        queues = self._farm.queues()
        for number, batch_id in enumerate(ids):
            self._send(queues[0], batch_id)
            self._send(queues[1 + number % (len(queues) - 1)], batch_id)

    def _junk_messages(self, _: int) -> None:
        queue = self._farm.queues()[0]
        for junk in ("abc", None, {"id": 1}, [1], 1.5, True, -1, 10**12, 2**80, "1; DROP TABLE jobs"):
            self._send(queue, junk)
        self._send(queue)
        self._send(queue, 1, 2)
        self._send(queue, 1, task="workers.format_disk")
        self._send(queue, Pickled(self._farm.folder / "unpickled"), serializer="pickle")
        with self._farm.redis() as client:
            for raw in ("not JSON", "{}", '{"body": 1, "properties": {}}'):
                client.lpush(queue, raw)

    def _lose_messages(self, _: int) -> None:
        queues, end, lost = self._farm.queues(), time.monotonic() + 3.0, 0
        with self._farm.redis() as client:
            while not lost:
                for queue in queues:
                    lost += client.rpop(queue) is not None
                if time.monotonic() > end:
                    raise NotNow("every queue is empty")
                time.sleep(0.01)
        log.info("  %d messages", lost)

    # --- people ----------------------------------------------------------------------------------

    def _steered(self) -> int:
        """The campaign that people steer: the second, or where there is none, the one with the most jobs that wait."""
        known = self._farm.workload.campaigns
        if known:
            return next(i for i, campaign in self._farm.submitted.items() if campaign is known[1])
        found = """
            SELECT c.id FROM campaigns c JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'active'
            ORDER BY l.jobs - l.done DESC LIMIT 1
        """
        return int(self._scalar(found))

    def _pause_campaign(self, _: int) -> Mend:
        steered_id = self._steered()
        with self._farm.engine.begin() as connection:
            if not batches.pause(connection, steered_id):
                raise NotNow("the campaign is not active")
        since = self._now()

        def resume() -> None:
            until = self._now()
            with self._farm.engine.begin() as connection:
                batches.resume(connection, steered_id)
            self.closed.append(Closed(since=since, until=until, campaign_id=steered_id))

        return resume

    def _cancel_campaign(self, _: int) -> Mend:
        steered_id = self._steered()
        with self._farm.engine.begin() as connection:
            if not batches.cancel(connection, steered_id):
                raise NotNow("the campaign is not active")
        since = self._now()

        def submit_again() -> None:
            until = self._now()
            self._farm.submit(self._farm.submitted[steered_id])
            self.closed.append(Closed(since=since, until=until, campaign_id=steered_id))

        return submit_again

    def _drain_device(self, device: int) -> Mend:
        device_id = self._farm.device_ids[device]
        with self._farm.engine.begin() as connection:
            devices.set_state(connection, device_id, DeviceState.DRAINED, "chaos")
        since = self._now()

        def resume() -> None:
            until = self._now()
            with self._farm.engine.begin() as connection:
                devices.set_state(connection, device_id, DeviceState.ACTIVE, None)
            self.closed.append(Closed(since=since, until=until, device_id=device_id))

        return resume

    def _retry_dead(self, _: int) -> None:
        steady_id = next(iter(self._farm.submitted))
        with self._farm.engine.begin() as connection:
            count = batches.retry(connection, steady_id, states=(JobState.DEAD, JobState.INVALID))
        if not count:
            raise NotNow("no job is dead yet")
        log.info("  %d jobs", count)

    def _stop_submission(self, _: int) -> Mend:
        file = self._farm.folder / "large.yaml"
        file.write_text(LARGE_CAMPAIGN)
        host = self._farm.hosts_of_coordinators[0]
        submission = self._farm.start("submit", (sys.executable, "-m", "farm", "submit", str(file)), host)
        self._farm.others.append(submission)
        copying = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'farm' AND query LIKE 'COPY%'"

        def kill() -> None:
            submission.signal(signal.SIGKILL)
            submission.wait()
            self._farm.others.remove(submission)

        end = time.monotonic() + SUBMISSION_PATIENCE_S
        try:
            while not self._scalar(copying):
                if time.monotonic() > end or not submission.running:
                    raise NotNow("the submission did not come to its jobs")
                time.sleep(0.02)
            submission.signal(signal.SIGSTOP)
        except BaseException:
            kill()
            raise
        return kill

    def _fifty_owners(self, _: int) -> None:
        self._crowds += 1
        for number in range(50):
            self._farm.submit(more(f"crowd-{self._crowds}", f"owner-{number}", columns=2))

    def _sicken_device(self, device: int) -> Mend:
        mark = sick_mark(self._farm.folder, self._farm.workload.devices[device].uuid)
        mark.touch()

        def get_well() -> None:
            mark.unlink(missing_ok=True)
            with self._farm.engine.begin() as connection:
                devices.set_state(connection, self._farm.device_ids[device], DeviceState.ACTIVE, None)

        return get_well

    def _scalar(self, statement: str) -> Any:
        with self._farm.engine.connect() as connection:
            return connection.execute(text(statement)).scalar_one()

    def _now(self) -> datetime:
        found: datetime = self._scalar("SELECT clock_timestamp()")
        return found


class Pickled:
    """Code in a message: whoever unpickles it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)

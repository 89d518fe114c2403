"""The work of the two processes of a device's Celery worker.

The parent process consumes messages, sends the device's heartbeats, renews the lease in hand, and hands back the batch of a
child that died. The child process, started afresh by `spawn`, opens the device, proves it and measures. It imports
this module with its first batch (see `workers.child`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from billiard.process import active_children
from celery import signals
from celery.exceptions import WorkerLostError
from celery.worker import state
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from farm import signing_keys
from farm.broker.queues import TRY_DEVICE, is_queue_of_device
from farm.broker.task_messages import Reason
from farm.builds import versions_of
from farm.builds.cache import KernelCache
from farm.builds.stores import store_of
from farm.db import batches, device_sessions, devices, probation, worker_versions
from farm.db.engine import MEASURING, Fault, FaultLog, fault_of, make_engine
from farm.db.states import DeviceState
from farm.errors import CanaryFailed, DevicePoisoned, FarmError, LeaseHeld, SessionLost, first_line
from farm.metrics import Metrics
from farm.monitoring.worker_metrics import CANARY_FAILURES, CHILD_DEATHS, DATABASE_ERRORS, JOBS, REFUSED
from farm.settings import settings
from farm.signing import Purpose
from farm.variables import WORKER_DEVICE_ID, WORKER_SESSION
from workers.canary import prove
from workers.device_lock import EXIT_SESSION_LOST
from workers.devices import open_device
from workers.kernels.sources import FarmKernels
from workers.metrics import CHILD, PARENT, metrics_of
from workers.runner import EXIT_HUNG, EXIT_SENTINEL, EXIT_TRIAL, TRIAL_SECONDS, Deadline, Runner
from workers.spans import batch_spans
from workers.stopping import STOP_SIGNAL, stopping
from workers.watchdog import Watchdog

log = logging.getLogger(__name__)

EXIT_POISONED = 87

OPENING_SECONDS = 120.0
"""Time limit to open a device and to measure its canary."""

UNLEASED_SECONDS = OPENING_SECONDS + TRIAL_SECONDS + 30.0
"""How long a child may have a task without a lease. A child that opens the device too slowly ends itself before that."""

DEATHS_WHILE_OPENING, DEATHS_WINDOW_SECONDS = 3, 600.0
"""A device whose process dies this often in this time, before its first claim or at its sentinel, is quarantined."""


PAUSE_SECONDS = 2.0
"""Pause before the next batch, after one that was abandoned because of the database."""

_faults = FaultLog(log)


def device_id() -> int:
    """The database id of the device that this process serves."""
    return int(os.environ[WORKER_DEVICE_ID])


def session() -> int | None:
    """The epoch of the session in which this process serves its device; None where `farm-worker` began none."""
    epoch = os.environ.get(WORKER_SESSION)
    return None if epoch is None else int(epoch)


@cache
def engine() -> Engine:
    """One connection in each process of a device: what a fleet takes of Postgres is counted in connections."""
    url = settings().database_url
    assert url is not None, "farm-worker sets FARM_DATABASE_URL"
    name = f"farm worker {device_id()}"
    return make_engine(url.get_secret_value(), application=name, pool_size=1, session=MEASURING, pre_ping=False)


@cache
def _metrics(role: str) -> Metrics:
    return metrics_of(role, device_id())


def _kernels() -> FarmKernels:
    here = settings()
    trusted = signing_keys.trusted(here, Purpose.KERNEL)
    return FarmKernels(KernelCache(here.kernel_cache), store_of(here, engine()), engine(), versions_of(here), trusted)


@cache
def _runner() -> Runner:
    """Opens the device and measures its canary, in the child process and before its first batch."""
    with engine().begin() as connection:
        identity = devices.identity(connection, device_id())
        # Announced again, because this process may have started after another version was installed.
        worker_versions.announce(connection, device_id())
    deadline = Deadline()
    with deadline.of(OPENING_SECONDS, "opening the device", device_id=device_id()):
        device = open_device(identity, _kernels())
        device.open()
        prove(device)
    return Runner(
        engine(),
        device,
        device_id(),
        lease_seconds=settings().lease_seconds,
        stopping=stopping,
        deadline=deadline,
        metrics=_metrics(CHILD),
        sentinel_jobs=settings().sentinel_jobs,
        versions=versions_of(settings()),
        session=session(),
        batch_spans=batch_spans(identity),
    )


def measure_batch(batch_id: int) -> None:
    """The task, in the child: measures the batch of that id. Messages without a valid id are ignored."""
    if not _is_batch_id(batch_id):
        log.error("a message without a batch id was ignored")
        return
    ids = {"batch_id": batch_id, "device_id": device_id()}
    metrics = _metrics(CHILD)
    try:
        runner = _runner()
    except DBAPIError as error:
        metrics.count(DATABASE_ERRORS)
        _faults.fails(error, "the batch will be sent again", **ids)
        stopping.wait(PAUSE_SECONDS)
        return
    except Exception as error:
        if not isinstance(error, FarmError):
            log.exception("opening the device raised", extra=ids)
        metrics.count(CANARY_FAILURES, isinstance(error, CanaryFailed))
        _quarantine(str(error) if isinstance(error, CanaryFailed) else f"it could not be opened: {error}")
        if _poisoned(error):
            os._exit(EXIT_POISONED)
        return
    try:
        runner.run_batch(batch_id)
    except DevicePoisoned:
        log.exception("this process ends, a fresh one takes its place", extra=ids)
        os._exit(EXIT_SENTINEL if runner.at_sentinel else EXIT_POISONED)
    except CanaryFailed as error:
        metrics.count(CANARY_FAILURES)
        try:
            _quarantine(str(error))
        finally:  # also if the database fails: this process must not claim again
            os._exit(EXIT_POISONED)
    except (LeaseHeld, SessionLost) as error:  # of a lost session, the parent process learns with its next heartbeat
        log.warning("%s", error, extra=ids)
        _note_claim_error(batch_id, error)
    except DBAPIError as error:
        metrics.count(DATABASE_ERRORS)
        _faults.fails(error, "the batch is given up, and no job is blamed", **ids)
        _note_claim_error(batch_id, error)
        stopping.wait(PAUSE_SECONDS)
    except Exception as error:
        log.exception("the batch raised", extra=ids)
        _note_claim_error(batch_id, error)
        _quarantine(f"a batch raised {type(error).__name__}: {first_line(error)}")
        os._exit(EXIT_POISONED)
    else:
        _faults.works()


def try_device(requested: int) -> None:
    """The task, in the child: a trial of this device, if it is on probation. If it passes, it is active again."""
    ids = {"device_id": device_id()}
    poisoned = False
    why: str | None
    try:
        with engine().begin() as connection:
            if requested != device_id() or not probation.is_on_probation(connection, requested):
                return
        try:
            why = _runner().try_device()
        except DBAPIError:
            raise
        except Exception as error:
            why, poisoned = first_line(error), _poisoned(error)
        with engine().begin() as connection:
            if why is not None:
                probation.failed_trial(connection, device_id(), f"it failed a trial: {why}")
                log.warning("the device stays on probation: it failed a trial: %s", why, extra=ids)
            elif probation.passed_trial(connection, device_id()):
                log.warning("the device passed a trial and takes jobs again", extra=ids)
    except DBAPIError as error:
        _metrics(CHILD).count(DATABASE_ERRORS)
        log.warning("the database does not answer (%s); the trial is tried again", first_line(error), extra=ids)
    finally:
        if poisoned:
            os._exit(EXIT_POISONED)


def _note_claim_error(batch_id: int, error: Exception) -> None:
    """Stores why this worker, which has the message of a batch, does not measure it. `farm status` shows it."""
    try:
        with engine().begin() as connection:
            if not batches.was_claimed(connection, batch_id, device_id=device_id()):
                devices.note_claim_error(connection, device_id(), f"{type(error).__name__}: {first_line(error)}")
    except DBAPIError as unnoted:
        log.warning("the reason why the batch is not claimed could not be stored: %s", first_line(unnoted))


def _is_batch_id(value: object) -> bool:
    return type(value) is int and 0 < value < 2**63  # as the database counts


def _quarantine(reason: str) -> None:
    log.error("the device is quarantined: %s", reason, extra={"device_id": device_id()})
    with engine().begin() as connection:
        devices.unfit(connection, device_id(), reason)


def _poisoned(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, DevicePoisoned) or _poisoned(error.__cause__))


# --- the parent --------------------------------------------------------------------------------------


class _HandBacks:
    """Batches of children that died, and how often that happened before any job was begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int | None, str, str]] = []
        self._deaths: list[float] = []  # when, of those before any job was begun

    def add(self, batch_id: int | None, reason: str, *, cause: str = "hung") -> None:
        """`batch_id`: None where the process died in a trial. `cause`: see `cause_of_death`."""
        with self._lock:
            self._waiting.append((batch_id, reason, cause))

    def __contains__(self, batch_id: int) -> bool:
        with self._lock:
            return any(waiting == batch_id for waiting, _, _ in self._waiting)

    def work_off(self) -> None:
        """Hands back what waits, so that its jobs wait again at once. Raises `DBAPIError`; then it still waits."""
        with self._lock:
            while self._waiting:
                batch_id, reason, cause = self._waiting[0]
                if batch_id is None:
                    with engine().begin() as connection:
                        probation.failed_trial(connection, device_id(), f"in a trial {reason}")
                else:
                    self._hand_back(batch_id, reason, cause)
                self._waiting.pop(0)

    def _hand_back(self, batch_id: int, reason: str, cause: str) -> None:
        in_trial = cause == "trial"
        with engine().begin() as connection:
            held = batches.release(connection, batch_id, device_id=device_id(), reason=reason, suspect=not in_trial)
            claimed = held or batches.was_claimed(connection, batch_id, device_id=device_id())
            if in_trial or (held and probation.dies_in_a_row(connection, device_id())):
                probation.begin(connection, device_id(), f"jobs failed in a row, and {reason}", tried=in_trial)
        if cause == "sentinel" or not claimed:
            self._died_unready(reason)
        elif held and not in_trial:
            _metrics(PARENT).count(JOBS, value="killed")

    def _died_unready(self, reason: str) -> None:
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < DEATHS_WINDOW_SECONDS] + [now]
        if len(self._deaths) >= DEATHS_WHILE_OPENING:
            self._deaths.clear()
            _quarantine(f"its process dies before it can measure: it {reason.removeprefix('its process ')}")


_hand_backs = _HandBacks()
_ended_hung_child = threading.Event()  # this process ended the child because it did, and handed back what it held


class _Subscription:
    """Consumes the device's queues while the device takes work, and leaves them to other workers otherwise."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._queues = frozenset(consumer.app.amqp.queues.consume_from)
        self._consumed = self._queues

    def follow(self, state: DeviceState) -> None:
        wanted = self._queues if state is DeviceState.ACTIVE else frozenset[str]()
        if state is DeviceState.PROBATION:  # its trials come by its own queue
            wanted = frozenset(filter(is_queue_of_device, self._queues))
        if wanted != self._consumed:
            for queue in wanted - self._consumed:
                self._consumer.call_soon(self._consumer.add_task_queue, queue)
            for queue in self._consumed - wanted:
                self._consumer.call_soon(self._consumer.cancel_task_queue, queue)
            self._consumed = wanted
            what = (
                "consumes its queues again"
                if state is DeviceState.ACTIVE
                else f"is {state} and leaves its queues to other workers"
            )
            log.warning("the device %s", what, extra={"device_id": device_id()})


def _beat(consumer: Any) -> None:
    subscription = _Subscription(consumer)
    watchdog = Watchdog(overdue_s=2 * settings().heartbeat_seconds, unleased_s=UNLEASED_SECONDS)
    left_behind, faults, activity = _LeftBehind(), FaultLog(log), _Activity()
    while True:
        try:
            activity.look(_task_in_hand() is not None)
            _watch(watchdog)
            left_behind.hand_back()
            if not stopping.is_set():  # then it is deregistered, and only finishes the job in hand
                with engine().begin() as connection:
                    state = devices.heartbeat(connection, device_id(), session=session())
                subscription.follow(state)
            _hand_backs.work_off()
            faults.works()
        except SessionLost as error:
            _end_session(error, activity)
        except Exception as error:  # any error of the database: the next heartbeat retries
            _metrics(PARENT).count(DATABASE_ERRORS)
            faults.fails(error, "the heartbeat of this device is late", device_id=device_id())
        before = time.monotonic()
        time.sleep(settings().heartbeat_seconds)
        activity.slept(time.monotonic() - before, settings().heartbeat_seconds)


class _Activity:
    """Since when this process has run without a break, and when its child last had a task."""

    def __init__(self) -> None:
        self._runs_since_s = time.monotonic()
        self._busy_s: float | None = None

    def look(self, busy: bool) -> None:
        if busy:
            self._busy_s = time.monotonic()

    def slept(self, seconds: float, meant: float) -> None:
        """A process that was stopped sleeps for longer than it meant to: neither it nor its child did anything."""
        if seconds > 2 * meant + 1:
            self._runs_since_s = time.monotonic()

    def may_have_measured(self) -> tuple[float, float] | None:
        """How many seconds ago that began and ended; None where it never had a task."""
        now = time.monotonic()
        return None if self._busy_s is None else (now - self._runs_since_s, now - self._busy_s)


def _end_session(error: SessionLost, activity: _Activity) -> None:
    """Ends the child and this process. Rows that the child measured at the same time as the device's new worker are marked."""
    log.error("%s This worker ends", error, extra={"device_id": device_id()})
    activity.look(_task_in_hand() is not None)
    for child in active_children():
        os.kill(child.pid, signal.SIGKILL)
    try:
        measured = activity.may_have_measured()
        if measured is not None:
            began, ended = measured
            with engine().begin() as connection:
                device_sessions.note_overlap(
                    connection, device_id(), session() or 0, began_s_ago=began, ended_s_ago=ended
                )
    except DBAPIError as unnoted:
        log.error("rows that two workers measured at the same time are not marked: %s", first_line(unnoted.orig))
    finally:
        os._exit(EXIT_SESSION_LOST)


@dataclass(frozen=True, slots=True)
class _Task:
    """What the child was given and has not finished. `pid` is the child's, None until it has taken the task."""

    id: str
    batch_id: int
    pid: int | None


def _task_in_hand() -> _Task | None:
    """There is one child, and it is given one task at a time."""
    request = next(iter(set(state.reserved_requests)), None)
    if request is None or not request.args or not _is_batch_id(request.args[0]):
        return None
    return _Task(request.id, request.args[0], request.worker_pid)


def _watch(watchdog: Watchdog) -> None:
    """Renews the lease first, and in a transaction of its own: no lock on the device's row can cost the lease.

    It renews only the lease of the batch that the child has in hand. Other batches of the device do not show that the child is alive.
    """
    task, left_s = _task_in_hand(), None
    if task is not None:
        seconds = settings().lease_seconds
        try:
            with engine().begin() as connection:
                left_s = batches.renew(connection, task.batch_id, device_id=device_id(), lease_seconds=seconds)
        except DBAPIError as error:
            if fault_of(error) is not Fault.HELD:
                raise
            # Most likely by the child, which renews it as well. What it holds is not known now, so it is not judged.
            log.warning(
                "another session holds the batch in hand; its lease is renewed later", extra={"device_id": device_id()}
            )
            return
    if watchdog.should_kill(time.monotonic(), task=task.id if task is not None else None, left_s=left_s):
        assert task is not None
        _end_child(task, holds=left_s is not None)


class _LeftBehind:
    """The batch that this device holds and that its child gave up, where the database took neither landing nor that."""

    def __init__(self) -> None:
        self._seen: int | None = None

    def hand_back(self) -> None:
        """Hands back what two calls in a row find. The job that was in hand is not to blame. Raises `DBAPIError`.

        At the first, the batch may be that of a child which has just died: it is handed back as such.
        """
        with engine().connect() as connection:
            held = batches.held_by(connection, device_id())
        task = _task_in_hand()  # after it: what the child claimed before is in hand still, or over
        if held is None or held in _hand_backs or (task is not None and task.batch_id == held):
            self._seen = None
        elif held != self._seen:
            self._seen = held
        else:
            log.warning("a batch that no process measures is handed back", extra={"batch_id": held})
            with engine().begin() as connection:
                batches.abandon(connection, held, device_id=device_id(), reason="its worker could not go on")


def _end_child(task: _Task, *, holds: bool) -> None:
    """Ends the process that hangs with this task, and hands back its batch before the lease expires."""
    child = next((one for one in active_children() if one.pid == task.pid or task.pid is None), None)
    if child is None:
        return  # it has ended already
    log.error("the measuring process hangs and is ended", extra={"device_id": device_id()})
    _metrics(PARENT).count(CHILD_DEATHS, value="hung")
    _ended_hung_child.set()
    os.kill(child.pid, signal.SIGKILL)
    if holds:
        _hand_backs.add(task.batch_id, "its process was ended because it hung")


def count_refused(reason: Reason) -> None:
    """Counts a message that was not sent by the farm."""
    _metrics(PARENT).count(REFUSED, value=reason)


@signals.worker_ready.connect
def _start_beating(sender: Any, **_: Any) -> None:
    _metrics(PARENT)  # once, before there are threads
    threading.Thread(target=_beat, args=(sender,), name="heartbeat", daemon=True).start()


@signals.worker_shutting_down.connect
def _leave(**_: Any) -> None:
    stopping.set()
    for child in active_children():
        os.kill(child.pid, STOP_SIGNAL)
    try:
        with engine().begin() as connection:
            devices.leave(connection, device_id(), session=session())
    except DBAPIError as error:
        _metrics(PARENT).count(DATABASE_ERRORS)
        log.warning("the device could not be deregistered: %s", first_line(error))


@signals.task_failure.connect
def _hand_back(sender: Any = None, exception: BaseException | None = None, args: Any = (), **_: Any) -> None:
    """The child died in the middle of a batch: its jobs wait again at once, not when the lease has passed. Or in a trial."""
    if isinstance(exception, WorkerLostError) and args and _is_batch_id(args[0]):
        if _ended_hung_child.is_set():
            _ended_hung_child.clear()
            return
        cause = cause_of_death(str(exception))
        _metrics(PARENT).count(CHILD_DEATHS, value=cause)
        batch_id = None if getattr(sender, "name", None) == TRY_DEVICE else args[0]
        _hand_backs.add(batch_id, f"its process {how_it_ended(str(exception))}", cause=cause)
        try:
            _hand_backs.work_off()
        except DBAPIError as error:
            _metrics(PARENT).count(DATABASE_ERRORS)
            log.warning("the batch is handed back when the database answers: %s", first_line(error))


def how_it_ended(message: str) -> str:
    """What Celery's words for a lost child mean: it was killed by a signal, hung, or was given up."""
    kind, number = _status_in(message)
    if kind == "signal":
        return f"was killed by signal {_signal_name(number)}"
    if kind == "exitcode":
        return {
            EXIT_HUNG: "was ended because the job outlived its time (job_seconds)",
            EXIT_POISONED: "was given up because the device's context was unusable",
            EXIT_SENTINEL: "was given up because the device's sentinel hung or made its context unusable",
            EXIT_TRIAL: "was ended because a trial of the device hung",
        }.get(number, f"ended with status {number}")
    return "died"


def cause_of_death(message: str) -> str:
    """The same in a word: hung, poisoned, sentinel, trial, a signal's name, or exit."""
    kind, number = _status_in(message)
    if kind == "signal":
        return _signal_name(number)
    return {EXIT_HUNG: "hung", EXIT_POISONED: "poisoned", EXIT_SENTINEL: "sentinel", EXIT_TRIAL: "trial"}.get(
        number, "exit"
    )


def _status_in(message: str) -> tuple[str, int]:
    found = re.search(r"(signal|exitcode) (\d+)", message)
    return (found[1], int(found[2])) if found else ("", 0)


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)

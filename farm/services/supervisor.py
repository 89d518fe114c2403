"""The supervisor of `farm up`: runs the services and the stack until SIGTERM, and restarts what dies.

    python -m farm.services.supervisor [--no-workers] [--no-trainer]

It stores its state in `stack.json` of the home, and holds the lock `run/stack.up.lock` while it runs.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from farm.errors import FarmError
from farm.logs import set_up_logging
from farm.services.background import UP_LOCK
from farm.services.backoff import BackOff
from farm.services.demand import Demand
from farm.services.embedded import revive_services, services
from farm.services.home import Home, write_json
from farm.services.log_rotation import copy_and_empty, rotate_own_output, set_aside
from farm.services.processes import start_stamp
from farm.services.stack import Program, Stack, programs
from farm.services.urls import safe_url
from farm.settings import Settings, settings

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
IDLE_EXIT_S = 60.0
"""A trainer or builder ends after so long without work."""

LOGS_EVERY_S = 10.0
"""Between two looks at the sizes of logs."""

SETTLE_S = 1.5
"""After this time, a program has read its settings and imported its modules."""


class Supervisor:
    """Runs the services and the stack of one home. `run` returns after `stop`."""

    def __init__(self, farm_settings: Settings, chosen: Sequence[Program]) -> None:
        self._settings = farm_settings
        self._home = Home.open(farm_settings)
        self._programs = chosen
        self._stop = threading.Event()
        self._logs_due_s = 0.0
        self._back_off = {program.name: BackOff() for program in chosen}

    def stop(self, *_: object) -> None:
        self._stop.set()

    def run(self) -> None:
        """Raises what `services` raises. One that finds another supervisor of this home returns at once."""
        with self._only_one() as alone:
            if not alone:
                logger.info("the farm is up already")
                return
            try:
                self._hold()
            finally:
                self._home.state_file.unlink(missing_ok=True)

    def _hold(self) -> None:
        with (
            services(self._settings, broker=True) as urls,
            Stack(urls, self._home.path, programs=self._programs, idle_exit_s=IDLE_EXIT_S) as stack,
            Demand(self._settings, urls) as demand,
        ):
            shown = {"database": safe_url(urls.database_url), "tracking": safe_url(urls.tracking_uri)}
            shown["broker"] = safe_url(urls.broker_url or "")
            for name in stack.pids():
                self._back_off[name].started(time.monotonic())
            self._say("starting", stack, shown)
            self._stop.wait(SETTLE_S)
            self._say("ready", stack, shown)
            while not self._stop.wait(LOOK_EVERY_S):
                if self._look(stack, demand.of):
                    self._say("ready", stack, shown)
                self._keep_logs_small()
            self._say("stopping", stack, shown)

    def _keep_logs_small(self) -> None:
        """Rotates the logs that no guardian writes."""
        now, most = time.monotonic(), self._settings.log_max_bytes
        if now < self._logs_due_s:
            return
        self._logs_due_s = now + LOGS_EVERY_S
        rotate_own_output(self._home.log("supervisor"), most)
        try:
            set_aside(self._home.log("redis"), most)
            copy_and_empty(self._home.log("postgres"), most)
        except OSError as error:
            logger.warning("a log could not be rotated: %s", error)

    def _look(self, stack: Stack, demanded: Callable[[Mapping[str, Program]], Iterable[str]]) -> bool:
        """Restarts what has died, and starts programs that have work. Returns whether something changed."""
        try:
            changed = bool(revived := revive_services(self._settings))
            for name in revived:
                logger.warning("%s had ended; it was started again", name)
        except FarmError as error:
            logger.error("%s", error)
            changed = False
        for name in stack.take_over():
            self._back_off[name].started(time.monotonic())
            changed = True
        for name in stack.ended():
            back_off, now = self._back_off[name], time.monotonic()
            if name in stack.idled_out():
                stack.rest(name)
                changed = True
                continue
            if back_off.ended(now):
                logger.warning("%s ended; it is started again in %.0f s", name, back_off.pause_s)
                changed = True
            if back_off.is_due(now):
                stack.restart(name)
                back_off.started(time.monotonic())
                changed = True
        for name in demanded(stack.waiting()):
            stack.restart(name)
            self._back_off[name] = BackOff()
            self._back_off[name].started(time.monotonic())
            changed = True
        return changed

    def _say(self, state: str, stack: Stack, urls: dict[str, str]) -> None:
        ended, elsewhere, waiting, pids = stack.ended(), stack.elsewhere(), stack.waiting(), stack.pids()
        states = {
            **dict.fromkeys(ended, "ended"), **dict.fromkeys(elsewhere, "elsewhere"), **dict.fromkeys(waiting, "waiting")
        }  # fmt: skip
        content = {
            "state": state,
            "pid": os.getpid(),
            "stamp": start_stamp(os.getpid()),
            "home": str(self._home.path),
            "urls": urls,
            "programs": {
                name: {
                    "state": states.get(name, "running"),
                    "pid": pids.get(name),
                    "restarts": self._back_off[name].restarts,
                    "log": str(log),
                }
                for name, log in stack.logs().items()
            },
        }
        write_json(self._home.state_file, content)

    @contextmanager
    def _only_one(self) -> Iterator[bool]:
        with (self._home.run / UP_LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m farm.services.supervisor")
    parser.add_argument("--no-workers", action="store_true")
    parser.add_argument("--no-trainer", action="store_true")
    parser.add_argument("--no-builder", action="store_true")
    options = parser.parse_args(arguments)
    try:
        set_up_logging(settings(), "supervisor")
        chosen = programs(
            settings(), workers=not options.no_workers, trainer=not options.no_trainer, builder=not options.no_builder
        )
        supervisor = Supervisor(settings(), chosen)
        signal.signal(signal.SIGTERM, supervisor.stop)
        signal.signal(signal.SIGINT, supervisor.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal it was started from may close
        supervisor.run()
    except FarmError as error:
        logger.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

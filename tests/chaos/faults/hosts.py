"""Faults of `farm-worker`, and of all that runs on its host."""

from __future__ import annotations

import contextlib
import signal

import psutil

from chaos.farm import Program
from chaos.faults.base import CLOCK_STEP_S, FaultsOfOneFarm, Mend, NotNow, does
from chaos.mischief import OLDER
from chaos.plan import Kind


class FaultsOfHosts(FaultsOfOneFarm):
    """What happens to one host of devices."""

    def _host(self, host: int) -> Program:
        found = self.farm.hosts[host]
        if host in self.farm.down or found.process is None:
            raise NotNow(f"host {host} does not run")
        return found

    def _start_again(self, host: int, **more: str) -> int:
        """Returns the exit code of the one that ended."""
        ended = self.farm.hosts[host]
        if ended.running:
            raise NotNow(f"host {host} has not ended")
        self.farm.down.discard(host)
        code = ended.wait()
        self.farm.start_host(host, **more)
        return code

    @does(Kind.KILL_HOST)
    def _kill_host(self, host: int) -> Mend:
        self._host(host).signal(signal.SIGKILL)
        self.farm.down.add(host)

        def start() -> None:
            self._start_again(host)

        return start

    @does(Kind.STOP_HOST)
    def _stop_host(self, host: int) -> Mend:
        program = self._host(host)
        if "serving" not in program.said():
            raise NotNow(f"host {host} starts, and does not hear signals yet")
        program.ask_to_stop()
        self.farm.down.add(host)
        return lambda: self.stop_codes.append(self._start_again(host))

    @does(Kind.FREEZE_HOST)
    def _freeze_host(self, host: int) -> Mend:
        self._host(host)
        family = self.farm.hosts[host].family()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        return self.resume_after_the_lease(family)

    @does(Kind.OLD_WORKER)
    def _old_worker(self, host: int) -> Mend:
        self._replace(host, **{OLDER: "1"})

        def upgrade() -> None:
            self._replace(host)

        return upgrade

    def _replace(self, host: int, **more: str) -> None:
        """Stops `farm-worker` in good order, and starts it with that environment."""
        program = self._host(host)
        program.ask_to_stop()
        self.farm.down.add(host)
        program.wait()
        self._start_again(host, **more)

    @does(Kind.SECOND_WORKER)
    def _second_worker(self, host: int) -> Mend:
        self._host(host)
        second = self.farm.start_worker(f"second-of-host-{host}", host)
        self.farm.others.append(second)

        def stop() -> None:
            if second in self.farm.others:
                second.ask_to_stop()
                second.wait()
                self.farm.others.remove(second)

        return stop

    @does(Kind.STEP_HOST_CLOCK)
    def _step_clock_of_host(self, host: int) -> Mend:
        return self.step_clock(self.farm.name_of(host), CLOCK_STEP_S)

"""Faults of the processes of one device, and of the device itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from chaos.farm import DeviceProcesses
from chaos.faults.base import Closed, FaultsOfOneFarm, Mend, NotNow, does
from chaos.mischief import landing_mark, sick_mark
from chaos.plan import Kind
from farm.db import devices
from farm.db.states import DeviceState


class FaultsOfDevices(FaultsOfOneFarm):
    """What happens to one device."""

    def processes_of(self, device: int) -> DeviceProcesses:
        found = self.farm.processes_of(device)
        if found is None:
            raise NotNow(f"device {device} is not served")
        return found

    def _child_of(self, device: int) -> psutil.Process:
        found = self.processes_of(device).child()
        if found is None:
            raise NotNow(f"device {device} has no child")
        return found

    @does(Kind.KILL_CHILD)
    def _kill_child(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self._child_of(device).kill()

    @does(Kind.FREEZE_CHILD)
    def _freeze_child(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self._child_of(device).suspend()

    @does(Kind.KILL_PARENT)
    def _kill_parent(self, device: int) -> None:
        with contextlib.suppress(psutil.Error):
            self.processes_of(device).parent.kill()

    @does(Kind.PAUSE_WORKER)
    def _pause_worker(self, device: int) -> Mend:
        both = [self.processes_of(device).parent, self._child_of(device)]
        for process in both:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        return self.resume_after_the_lease(both)

    def in_a_landing(self, device: int) -> tuple[psutil.Process, Path]:
        """The child of the device, in the middle of a landing that goes on when the file is removed."""
        child = self._child_of(device)
        mark = landing_mark(self.farm.folder, self.farm.device_ids[device])
        reached = mark.with_suffix(".reached")
        try:
            there = reached.read_text() == str(child.pid)  # and not one that was killed there
        except FileNotFoundError:
            there = False
        if not there:
            mark.touch()
            raise NotNow(f"device {device} does not land yet")
        return child, reached

    @does(Kind.FREEZE_LANDING)
    def _freeze_landing(self, device: int) -> None:
        child, landing = self.in_a_landing(device)
        with contextlib.suppress(psutil.Error):
            child.suspend()
        landing.unlink(missing_ok=True)

    @does(Kind.KILL_LANDING)
    def _kill_landing(self, device: int) -> None:
        child, landing = self.in_a_landing(device)
        with contextlib.suppress(psutil.Error):
            child.kill()
        landing.unlink(missing_ok=True)

    @does(Kind.SICKEN_DEVICE)
    def _sicken_device(self, device: int) -> Mend:
        mark = sick_mark(self.farm.folder, self.farm.workload.devices[device].uuid)
        mark.touch()

        def get_well() -> None:
            mark.unlink(missing_ok=True)
            with self.farm.engine.begin() as connection:
                devices.set_state(connection, self.farm.device_ids[device], DeviceState.ACTIVE, None)

        return get_well

    @does(Kind.DRAIN_DEVICE)
    def _drain_device(self, device: int) -> Mend:
        device_id = self.farm.device_ids[device]
        with self.farm.engine.begin() as connection:
            devices.set_state(connection, device_id, DeviceState.DRAINED, "chaos")
        since = self.now()

        def resume() -> None:
            until = self.now()
            with self.farm.engine.begin() as connection:
                devices.set_state(connection, device_id, DeviceState.ACTIVE, None)
            self.closed.append(Closed(since=since, until=until, device_id=device_id))

        return resume

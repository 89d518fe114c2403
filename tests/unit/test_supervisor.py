"""What the supervisor does when programs end, by a clock of the test's own and a stack that only notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.errors import EmbeddedServiceFailed
from farm.services import supervisor
from farm.services.backoff import HEALTHY_AFTER_S
from farm.services.home import Home
from farm.services.stack import Program, Stack
from farm.services.supervisor import Supervisor
from farm.settings import Settings


class NotingStack:
    """Stands in for `Stack`: a test says which programs have ended, and reads when they were started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.down: set[str] = set()
        self.free: list[str] = []
        self.idle: set[str] = set()  # ended, because they had no work
        self.waits: dict[str, Program] = {}
        self.work: list[str] = []
        self.restarted: list[tuple[str, float]] = []

    def ended(self) -> list[str]:
        return sorted(self.down | self.idle)

    def idled_out(self) -> list[str]:
        return sorted(self.idle)

    def rest(self, name: str) -> None:
        self.idle.remove(name)
        self.waits[name] = Program(name, ("true",), queue=name)

    def waiting(self) -> dict[str, Program]:
        return dict(self.waits)

    def demanded(self, waiting: Mapping[str, Program]) -> list[str]:
        return [name for name in self.work if name in waiting]

    def take_over(self) -> list[str]:
        taken, self.free = self.free, []
        return taken

    def restart(self, name: str) -> None:
        self.down.discard(name)
        self.waits.pop(name, None)
        self.restarted.append((name, self._clock.now))

    def elsewhere(self) -> list[str]:
        return []

    def pids(self) -> dict[str, int]:
        return {}

    def logs(self) -> dict[str, Path]:
        return {"coordinator": Path("c.log"), "workers": Path("w.log")}


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(supervisor, "revive_services", lambda _: [])
    return made


@pytest.fixture
def stack(clock: Clock) -> NotingStack:
    return NotingStack(clock)


@pytest.fixture
def watching(tmp_path: Path) -> Supervisor:
    programs = [Program(name, ("true",)) for name in ("coordinator", "workers")]
    return Supervisor(Settings(home=tmp_path), programs)


def look_for(seconds: float, watching: Supervisor, stack: NotingStack, clock: Clock) -> int:
    """Looks every half second for that long. Returns how often something had changed."""
    changes = 0
    for _ in range(int(seconds / supervisor.LOOK_EVERY_S)):
        changes += watching._look(cast(Stack, stack), stack.demanded)
        clock.now += supervisor.LOOK_EVERY_S
    return changes


def test_a_program_that_ends_again_and_again_is_started_after_longer_pauses_and_its_neighbour_is_left_alone(
    watching: Supervisor, stack: NotingStack, clock: Clock
) -> None:
    pauses = []
    for _ in range(4):
        ended_at = clock.now
        stack.down = {"workers"}
        look_for(10, watching, stack, clock)
        (name, started_at), stack.restarted = stack.restarted[0], []
        assert name == "workers"
        pauses.append(started_at - ended_at)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_a_program_that_ran_well_is_started_again_at_once(
    watching: Supervisor, stack: NotingStack, clock: Clock
) -> None:
    stack.free = ["workers"]  # another command ran it until now
    assert look_for(1, watching, stack, clock) == 1
    clock.now += HEALTHY_AFTER_S
    stack.down, ended_at = {"workers"}, clock.now
    look_for(1, watching, stack, clock)
    assert stack.restarted == [("workers", ended_at)]


def test_what_it_says_changes_when_a_program_ends_and_when_it_runs_again(
    watching: Supervisor, stack: NotingStack, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> dict[str, Any]:
        watching._say("ready", cast(Stack, stack), {})
        found = json.loads(Home(tmp_path).state_file.read_text())["programs"]["workers"]
        return {key: found[key] for key in ("state", "restarts")}

    stack.down = {"workers"}
    assert look_for(1, watching, stack, clock) == 1
    assert "workers ended; it is started again in 1 s" in caplog.text
    assert said() == {"state": "ended", "restarts": 0}
    assert look_for(1, watching, stack, clock) == 1
    assert said() == {"state": "running", "restarts": 1}
    assert look_for(5, watching, stack, clock) == 0


def test_a_program_without_work_waits_and_is_started_at_once_when_there_is_some(
    watching: Supervisor, stack: NotingStack, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    stack.idle = {"workers"}
    assert look_for(10, watching, stack, clock) == 1
    assert (list(stack.waits), stack.restarted) == (["workers"], [])
    assert "ended" not in caplog.text
    stack.work, asked_at = ["workers"], clock.now
    assert look_for(1, watching, stack, clock) == 1
    assert stack.restarted == [("workers", asked_at)]
    # One that dies at its work is replaced as any other.
    stack.down, ended_at = {"workers"}, clock.now
    look_for(5, watching, stack, clock)
    assert stack.restarted[1:] == [("workers", ended_at + 1.0)]


def test_a_service_that_cannot_be_revived_does_not_keep_programs_down(
    watching: Supervisor, stack: NotingStack, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Settings) -> list[str]:
        raise EmbeddedServiceFailed(service="Redis", why="no memory", log="redis.log")

    monkeypatch.setattr(supervisor, "revive_services", fail)
    stack.down = {"coordinator"}
    look_for(2, watching, stack, clock)
    assert [name for name, _ in stack.restarted] == ["coordinator"]

"""A process group: nothing of it is left when its process ends, nor when its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.services.process_groups import ProcessGroup
from farm.services.processes import is_alive
from support.homes import eventually

LEADER = """
import signal, subprocess, sys, time
from pathlib import Path
from farm.services.process_groups import end_with_starter
end_with_starter()
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""
STARTER = """
import os, sys, time
from farm.services.process_groups import ProcessGroup
group = ProcessGroup([sys.executable, "-c", {leader!r}, {note!r}], environment=os.environ, grace_s=30)
print(group.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "child.pid"


def started(note: Path, *words: str, grace_s: float = 30) -> tuple[ProcessGroup, int]:
    group = ProcessGroup([sys.executable, "-c", LEADER, str(note), *words], environment=os.environ, grace_s=grace_s)
    eventually(lambda: note.exists() and note.read_text())
    assert group.poll() is None
    return group, int(note.read_text())


def test_what_a_killed_process_leaves_behind_is_killed(note: Path) -> None:
    group, child = started(note)
    os.kill(group.pid, signal.SIGKILL)
    assert group.wait() == -signal.SIGKILL
    eventually(lambda: not is_alive(child))


def test_a_process_that_ignores_the_request_to_end_is_killed_after_its_grace_time(note: Path) -> None:
    group, child = started(note, "stubborn", grace_s=0.2)
    group.terminate()
    assert group.wait() == -signal.SIGKILL
    eventually(lambda: not is_alive(child))


def test_a_process_ends_with_its_parent(note: Path) -> None:
    script = STARTER.format(leader=LEADER, note=str(note))
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    leader = int(starter.stdout.readline())
    eventually(lambda: note.exists() and note.read_text())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    eventually(lambda: not is_alive(leader))
    os.kill(int(note.read_text()), signal.SIGKILL)  # a child of the farm ends with its parent: see `workers.child`


def test_a_process_whose_parent_ended_before_it_asked_ends_at_once(note: Path) -> None:
    environment = {**os.environ, "FARM_PARENT_PID": "1"}
    done = subprocess.run([sys.executable, "-c", LEADER, str(note)], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGTERM
    assert not note.exists()

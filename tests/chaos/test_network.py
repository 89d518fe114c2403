"""Hosts of a test's own: what they reach, and what is lost where a link is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.network import NAMESPACES, Network, Unavailable
from support.homes import skip_but_fail_in_ci

SERVER = """
import socket
listening = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    connection.sendall(connection.recv(100) + b" asked " + socket.gethostname().encode())
    connection.close()
"""

CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=1.5) as connection:
    connection.sendall(socket.gethostname().encode())
    print(connection.recv(100).decode())
"""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(["north", "south", "east"]) as made:
            yield made
    except Unavailable as why:
        skip_but_fail_in_ci(f"no hosts can be made: {why}")


@pytest.fixture
def server(network: Network) -> Iterator[None]:
    """On the host south."""
    with network.inside("south"):
        process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def ask(network: Network, host: str) -> str | None:
    """What the server on south answers a process of that host; None where nothing comes."""
    with network.inside(host):
        command = [sys.executable, "-c", CLIENT, network.address("south")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "TimeoutError" in done.stderr, done.stderr
    return done.stdout.strip() or None


def names(pattern: str) -> list[str]:
    return [found.name for found in NAMESPACES.glob(f"farm-chaos-{pattern}")]


@pytest.mark.usefixtures("server")
def test_hosts_reach_one_another_until_their_link_is_cut(network: Network) -> None:
    assert ask(network, "north") == "north asked south"
    for way in (("north", "south"), ("south", "north")):
        network.cut(*way)
    assert ask(network, "north") is None
    assert ask(network, "east") == "east asked south"
    for way in (("north", "south"), ("south", "north")):
        network.heal(*way)
    assert ask(network, "north") == "north asked south"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("way", [("north", "south"), ("south", "north")])
def test_one_direction_can_be_cut_alone(network: Network, way: tuple[str, str]) -> None:
    network.cut(*way)
    network.cut(*way)
    assert ask(network, "north") is None
    network.heal(*way)
    assert ask(network, "north") is None
    network.heal(*way)
    assert ask(network, "north") == "north asked south"


@pytest.mark.usefixtures("server")
def test_a_slow_link_still_passes_everything_on(network: Network) -> None:
    try:
        network.slow("north", kbit=64)
    except Unavailable as why:
        skip_but_fail_in_ci(f"no link can be slowed down: {why}")
    assert ask(network, "north") == "north asked south"
    network.hasten("north")


def test_nothing_stays_behind_and_this_process_stays_where_it_was(network: Network) -> None:
    here, name = Path("/proc/self/ns/net").readlink(), os.uname().nodename
    with network.inside("north"):
        assert Path("/proc/thread-self/ns/net").readlink() != here
        assert os.uname().nodename == "north"
    assert Path("/proc/thread-self/ns/net").readlink() == here
    assert os.uname().nodename == name
    with Network(["west"]):
        assert len(names(f"{os.getpid()}-*-west")) == 1
    assert names(f"{os.getpid()}-*-west") == []


def test_what_a_killed_test_left_is_removed_by_the_next_one(network: Network) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True)
    name = f"farm-chaos-{int(gone.stdout)}-1-north"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with Network(["west"]):
        assert names(name.removeprefix("farm-chaos-")) == []


def test_a_user_who_may_not_make_hosts_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(Unavailable, match="only root may make network namespaces"), Network(["west"]):
        pass

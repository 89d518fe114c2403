"""Hosts of a test's own: network namespaces behind a router that can lose what one host sends to another.

Each host has one link, to the router, and an address of its own. Cuts are rules of the router: a packet that matches one is
lost without a word, as in a network that is partitioned. Nothing of it is connected to a network of the machine.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps the names of namespaces."""

_PREFIX = "farm-chaos"
_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000
_SUBNET = "10.213"
_NUMBERS = itertools.count(1)


class Unavailable(Exception):
    """This machine, or this user, cannot make hosts of a test's own. The message says why."""


class Network:
    """Hosts by name, from the beginning to the end of a `with` block. Raises `Unavailable` on entering."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = {host: number for number, host in enumerate(hosts, 1)}
        self._name = f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._slowed: set[str] = set()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        _require_tools()
        _remove_leftovers()
        with ExitStack() as held:
            router = self._add_namespace("router", held)
            _ip("-n", router, "link", "set", "lo", "up")
            for host, number in self._hosts.items():
                namespace, link = self._add_namespace(host, held), f"h{number}"
                _ip("link", "add", link, "netns", router, "type", "veth", "peer", "name", "eth0", "netns", namespace)
                _ip("-n", router, "addr", "add", f"{_SUBNET}.{number}.1/30", "dev", link)
                _ip("-n", namespace, "addr", "add", f"{self.address(host)}/30", "dev", "eth0")
                _ip("-n", router, "link", "set", link, "up")
                for device in ("lo", "eth0"):
                    _ip("-n", namespace, "link", "set", device, "up")
                _ip("-n", namespace, "route", "add", "default", "via", f"{_SUBNET}.{number}.1")
            with self._in_namespace("router"):
                _write_sysctl("net/ipv4/ip_forward", "1")
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()

    def _add_namespace(self, host: str, held: ExitStack) -> str:
        name = f"{self._name}-{host}"
        _ip("netns", "add", name)
        held.callback(_ip, "netns", "del", name)
        return name

    def address(self, host: str) -> str:
        return f"{_SUBNET}.{self._hosts[host]}.2"

    # --- processes -------------------------------------------------------------------------------

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Processes that this thread starts in the block run on that host, and have its name."""
        before = os.open("/proc/thread-self/ns/uts", os.O_RDONLY)
        try:
            with self._in_namespace(host):
                _call("unshare", _CLONE_NEWUTS)
                socket.sethostname(host)
                try:
                    yield
                finally:
                    _call("setns", before, _CLONE_NEWUTS)
        finally:
            os.close(before)

    @contextmanager
    def _in_namespace(self, host: str) -> Iterator[None]:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(NAMESPACES / f"{self._name}-{host}", os.O_RDONLY)
        try:
            _call("setns", there, _CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", before, _CLONE_NEWNET)
        finally:
            os.close(there)
            os.close(before)

    # --- links -----------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """What one host sends to the other is lost, until it was healed as often as it was cut."""
        self._cuts[sender, receiver] += 1
        if self._cuts[sender, receiver] == 1:
            self._rule("add", sender, receiver)

    def heal(self, sender: str, receiver: str) -> None:
        """Takes one cut back."""
        self._cuts[sender, receiver] -= 1
        if not self._cuts[sender, receiver]:
            self._rule("del", sender, receiver)

    def slow(self, host: str, *, kbit: int) -> None:
        """Limits what the host receives to that many kilobits a second. Raises `Unavailable` where the kernel cannot."""
        if host not in self._slowed:
            _run("tc", *self._queue("add", host), "tbf", "rate", f"{kbit}kbit", "burst", "4kb", "latency", "3s")
            self._slowed.add(host)

    def hasten(self, host: str) -> None:
        """Ends `slow`."""
        if host in self._slowed:
            _run("tc", *self._queue("del", host))
            self._slowed.discard(host)

    def _queue(self, action: str, host: str) -> tuple[str, ...]:
        return ("-n", f"{self._name}-router", "qdisc", action, "dev", f"h{self._hosts[host]}", "root")

    def _rule(self, action: str, sender: str, receiver: str) -> None:
        way = ("from", self.address(sender), "to", self.address(receiver))
        _ip("-n", f"{self._name}-router", "rule", action, "pref", "100", *way, "blackhole")


def _require_tools() -> None:
    if os.getuid() != 0:
        raise Unavailable("only root may make network namespaces")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"iproute2 is not installed ({', '.join(missing)})")


def _remove_leftovers() -> None:
    """Namespaces of tests that were killed before they could remove them."""
    for found in NAMESPACES.glob(f"{_PREFIX}-*"):
        owner = re.match(rf"{_PREFIX}-(\d+)-", found.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            _ip("netns", "del", found.name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _write_sysctl(name: str, value: str) -> None:
    try:
        (Path("/proc/sys") / name).write_text(value)
    except OSError as error:
        raise Unavailable(f"{name} cannot be set in a namespace: {error}") from None


def _call(function: str, *arguments: int) -> None:
    """setns(2) and unshare(2), which act on the calling thread alone."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise Unavailable(f"{function}: {os.strerror(ctypes.get_errno())}")

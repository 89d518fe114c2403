"""Attacks that take all places of a server, its processor or its memory, against `farm serve` as a process."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from sqlalchemy import Engine

from farm.api import PREFIX
from farm.db import devices, tokens
from farm.db.states import Role
from farm.registry import predictions
from farm.web.limits import HEADER_SECONDS, address_group
from support.samples import cpu
from support.serving_process import Serving, serving

PATIENCE = 60.0
"""Seconds for an answer: two busy cores are no error. Before the limits there was none at all."""

TWENTY_MILLIONS = """\
name: x
targets: any
constraints: ["m*n*k % 7 == 1"]
problems: {m: 1..271, n: 1..271, k: 1..271, types: f32}
kernels: [{family: blas, threads: 1}]
"""
SMALL = TWENTY_MILLIONS.replace("271", "3")
MEMORY_BYTES = 1_500 * 2**20
ADDRESSES = [f"127.0.0.{last}" for last in range(2, 8)]


@dataclass
class Farm:
    served: Serving
    tokens: dict[str, str]

    def get(self, path: str, name: str = "ann") -> httpx.Response:
        return httpx.get(self.served.address + path, headers=self._headers(name), timeout=PATIENCE)

    def post(self, path: str, body: bytes | object, name: str = "ann") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**self._headers(name), "Content-Type": "application/json"}
        return httpx.post(
            f"{self.served.address}{PREFIX}{path}", content=content, headers=headers, timeout=3 * PATIENCE
        )

    def check(self, text: str, name: str = "ann") -> httpx.Response:
        return self.post("/campaigns/check", {"text": text, "allow_missing": True}, name)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        at = urlsplit(self.served.address)
        assert at.hostname is not None
        assert at.port is not None
        return socket.create_connection((at.hostname, at.port), timeout=PATIENCE, source_address=(source, 0))

    def processes(self) -> list[psutil.Process]:
        """The server's, and those that it started."""
        server = psutil.Process(self.served._process.pid)
        return [server, *server.children(recursive=True)]

    def _headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"}


@pytest.fixture
def farm(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[Farm]:
    with engine.begin() as connection:
        made = {name: tokens.create(connection, name, Role.READ, by="test", lifetime=None) for name in ("ann", "bob")}
        devices.register(connection, host="here", host_facts={}, device=cpu())
    with serving(tmp_path, database_url, "--tokens") as served:
        yield Farm(served, made)


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_connections_and_bodies_that_never_end_keep_nobody_out(farm: Farm) -> None:
    slow_body = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ntok"
    with ExitStack() as held:
        for number in range(1200):
            held.enter_context(farm.connect(ADDRESSES[number % len(ADDRESSES)])).sendall(b"GET / HTTP/1.1\r\nHost: lo")
        assert farm.get(f"{PREFIX}/devices").status_code == 200
        for number in range(220):
            with suppress(OSError):
                held.enter_context(farm.connect(ADDRESSES[number % 4])).sendall(slow_body)
        for name in ("ann", "bob"):
            assert farm.get(f"{PREFIX}/devices", name).status_code == 200
        # Those who are not signed in yet get in as well, from an address of the attack too.
        assert httpx.get(f"{farm.served.address}/login", timeout=PATIENCE).status_code == 200
    assert farm.get(f"{PREFIX}/devices").status_code == 200


@pytest.mark.long
def test_headers_that_come_byte_by_byte_have_a_deadline(farm: Farm) -> None:
    with farm.connect() as slow:
        since = time.monotonic()
        with suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"a" * 1000:
                slow.sendall(bytes([byte]))
                time.sleep(0.2)
        assert HEADER_SECONDS / 2 < time.monotonic() - since < HEADER_SECONDS + PATIENCE


@pytest.mark.long
def test_heavy_checks_stop_neither_others_nor_the_end_of_the_server(farm: Farm) -> None:
    with ThreadPoolExecutor(20) as attackers:
        heavy = [attackers.submit(farm.check, TWENTY_MILLIONS) for _ in range(20)]
        time.sleep(2)
        assert farm.get(f"{PREFIX}/devices").status_code == 200
        small = farm.check(SMALL, "bob")
        assert small.status_code == 200, small.text + farm.served.said
        assert small.json()["plan"]["configurations"] == 2
        first = wait(heavy, 2 * PATIENCE, FIRST_COMPLETED).done.pop().result()
        assert first.status_code == 503
        assert first.json()["error"]["kind"] in ("TookTooLong", "ProcessesBusy")
        assert "30 s" in first.json()["error"]["message"]
        started = farm.processes()
        since = time.monotonic()
        assert farm.served.stop() == 0
        assert time.monotonic() - since < PATIENCE
        psutil.wait_procs(started, timeout=PATIENCE)
        assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        for one in heavy:
            with suppress(httpx.HTTPError):
                assert one.result().status_code in (500, 503)  # 500: what was being answered when the server ended


def test_no_body_takes_much_memory(farm: Farm) -> None:
    wide = [{f"k{number}": 1} for number in range(100_000)]
    deep = b'{"rows": [' + b'{"a":' * 100_000
    huge = b'{"rows": [{"m": ' + b"9" * 10_000 + b"}]}"
    many = b'{"rows": [' + b"{}," * 6_000_000 + b"{}]}"
    statuses = []
    for body in ({"rows": wide}, deep, huge, {"rows": [{"m": 1e400}]}, {"rows": [{"parameters": "{" * 5_000}]}, many):
        answer = farm.post("/predict", body)
        statuses.append(answer.status_code)
        assert "error" in answer.json()
        assert sum(one.memory_info().rss for one in farm.processes()[:1]) < MEMORY_BYTES / 2
    assert all(status in (400, 404, 422, 503) for status in statuses), statuses
    assert sum(one.memory_info().rss for one in farm.processes()) < 2 * MEMORY_BYTES
    # All other requests have small bodies.
    assert farm.post("/campaigns/none/pause", b" " * (2 * 2**20)).status_code in (403, 413)
    assert farm.get(f"{PREFIX}/devices").status_code == 200


def test_rows_with_keys_of_their_own_are_refused() -> None:
    from farm.errors import TooManyColumns

    with pytest.raises(TooManyColumns, match="more than 200 different keys"):
        predictions.require_few_columns([{f"k{number}": 1} for number in range(1000)], "the rows")
    predictions.require_few_columns([{"m": 1, "n": 2}] * 1000, "the rows")


def test_a_network_of_one_host_counts_as_one_address() -> None:
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff:1") != address_group("2001:db8:0:1::1")
    assert address_group("::ffff:10.0.0.1") == "10.0.0.1"
    assert address_group(None) == ""

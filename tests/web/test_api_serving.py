"""`farm serve` as a process: whom it lets in, what it says, how it ends, and HTTPS."""

from __future__ import annotations

import signal
import socket
import ssl
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, make_url

from farm.api import PREFIX
from farm.api.access import Access
from farm.db import tokens
from farm.db.states import Role
from farm.errors import AddressUnusable, ServingRefused
from farm.web.security import Policy
from farm.web.serving import listening, require_safe, serve
from support.certificates import certificate
from support.commands import farm_here, farm_in, refused
from support.serving_process import serving

DEVICES = f"{PREFIX}/devices"
get = partial(httpx.get, timeout=120)  # a busy machine is no error


def test_it_serves_this_machine_until_it_is_interrupted(engine: Engine, database_url: str, tmp_path: Path) -> None:
    with serving(tmp_path, database_url, "--no-tokens") as served:
        assert served.address.startswith("http://127.0.0.1:")
        assert get(served.address + DEVICES).json() == []
        assert get(served.address + DEVICES, headers={"Host": "evil.example"}).status_code == 421
        assert "server" not in get(served.address + "/nowhere").headers
        assert served.stop(signal.SIGINT) == 0
    assert "Every account and program of this machine has access" in served.said
    assert "Traceback" not in served.said


def test_with_tokens_it_serves_who_has_one_over_https_and_says_no_secret(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    shown, key = certificate(tmp_path, "localhost")
    options = ("--host", "0.0.0.0", "--tokens", "--certificate", str(shown), "--key", str(key))
    trusting = ssl.create_default_context(cafile=str(shown))
    with serving(
        tmp_path, database_url, *options, FARM_LOG_LEVEL="DEBUG", FARM_API_TOKEN="gfarm_of-the-environment"
    ) as served:
        assert served.address.startswith("https://0.0.0.0:")
        url = served.address.replace("0.0.0.0", "127.0.0.1") + DEVICES
        assert get(url, verify=trusting).status_code == 401
        with engine.begin() as connection:
            token = tokens.create(connection, "ann", Role.READ, by="test")
        headers = {"Authorization": f"Bearer {token}"}
        assert get(url, verify=trusting, headers=headers).status_code == 200
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE devices RENAME TO gone")
        assert get(f"{url}?x={token}", verify=trusting, headers=headers).status_code == 500
        with socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2]))) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n")
            plain.recv(1000)
        assert served.stop() == 0
    assert "No token is valid yet, so no one can sign in" in served.said
    assert "a defect at GET" in served.said
    for secret in (token, str(make_url(database_url).password), "gfarm_of-the-environment"):
        assert secret not in served.said


def test_a_request_in_hand_is_answered_before_it_is_terminated(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with serving(tmp_path, database_url, "--no-tokens") as served:
        host, _, port = served.address.removeprefix("http://").partition(":")
        body = b'{"which": ["CPU-1"]}'
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(
                f"POST {DEVICES}/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
            )
            assert get(served.address + DEVICES).status_code == 200
            served._process.send_signal(signal.SIGTERM)
            slow.sendall(body)
            assert slow.recv(10_000).startswith(b"HTTP/1.1 404 ")  # there is no such device, says the farm
        assert served.stop() == 0
    assert "Traceback" not in served.said


def test_a_signal_before_the_first_request_ends_it_in_order_too(api_access: Access) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt  # as `farm` makes of SIGTERM until the server handles it

    with listening("127.0.0.1", 0) as listener:
        try:
            serve(api_access, listener, policy=Policy(tokens=False), ready=interrupted)
        except KeyboardInterrupt:
            pytest.fail("the program would say that it was interrupted")


def test_what_would_let_others_in_without_a_token_is_refused(database_url: str, tmp_path: Path) -> None:
    farm = farm_here(tmp_path, database_url)
    for host in ("0.0.0.0", "::", "192.168.0.1"):
        refused(farm("serve", "--host", host), 2, f"--host {host} lets other machines in, so it needs --tokens")


def test_an_address_that_cannot_be_had_is_said(engine: Engine, database_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = farm_here(tmp_path, database_url)("serve", "--port", str(port))
    refused(done, 3, f"Nothing can be served at 127.0.0.1:{port}", "Name another with --host and --port")


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host", "a" * 70 + ".example", ""])
def test_a_name_that_is_none_of_this_machine_is_said(host: str) -> None:
    with pytest.raises(AddressUnusable, match="Name another"), listening(host, 0):
        pass


@pytest.mark.parametrize(("host", "safe"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True),
    ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.1", False), ("localhost.evil.example", False)])  # fmt: skip
def test_only_loopback_is_safe_without_tokens_or_encryption(host: str, safe: bool) -> None:
    require_safe(host, tokens=True, encrypted=True)
    if safe:
        require_safe(host, tokens=False, encrypted=False)
    else:
        with pytest.raises(ServingRefused, match="--tokens"):
            require_safe(host, tokens=False, encrypted=True)
        with pytest.raises(ServingRefused, match="--certificate and --key, or use --behind-proxy"):
            require_safe(host, tokens=True, encrypted=False)


@pytest.mark.long
def test_a_certificate_that_is_none_is_said(engine: Engine, database_url: str, tmp_path: Path) -> None:
    shown, key = certificate(tmp_path, "localhost")
    _, other_key = certificate(tmp_path, "other")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    farm = farm_in(tmp_path, database_url)
    refused(farm("serve", "--port", "0", "--certificate", str(shown)), 2, "--certificate and --key go together")
    for chain, private in ((shown, other_key), (nothing, key), (shown, nothing)):
        done = farm("serve", "--port", "0", "--certificate", str(chain), "--key", str(private))
        refused(done, 2, "cannot be used for HTTPS")

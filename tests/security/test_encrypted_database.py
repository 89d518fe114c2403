"""A password of the database on its way: with the URL of docs/operating.md it is sent to the right server, and encrypted, or not at all."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from farm.db.engine import check_reachable, make_engine
from farm.errors import DatabaseUnreachable
from farm.services.urls import database_url
from support.certificates import certificate

SECRET = b"farm_application"
"""What a server would get to know first: the user's name. The password follows it."""


class Between:
    """A server that takes the place of Postgres. It keeps what clients send to it, decrypted where it can."""

    def __init__(self, shown: tuple[Path, Path] | None) -> None:
        self.heard = b""
        self._shown = shown
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(120)
                self._speak(client)

    def _speak(self, client: socket.socket) -> None:
        first = client.recv(8)
        if first[4:8] != b"\x04\xd2\x16\x2f":  # SSLRequest
            self.heard += first + client.recv(1000)
        elif self._shown is None:
            client.sendall(b"N")
            self.heard += client.recv(1000)
        else:
            client.sendall(b"S")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._shown)
            with context.wrap_socket(client, server_side=True) as encrypted:
                self.heard += encrypted.recv(1000)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def between(shown: tuple[Path, Path] | None) -> Iterator[Between]:
    made = Between(shown)
    try:
        yield made
    finally:
        made.close()


def tried(port: int, query: str) -> str:
    """Why the farm does not reach its database there."""
    url = database_url(f"postgresql://farm_application:the-password@127.0.0.1:{port}/farm?{query}")
    engine = make_engine(url, application="test", pool_size=1)
    try:
        with pytest.raises(DatabaseUnreachable) as refused:
            check_reachable(engine)
    finally:
        engine.dispose()
    assert "the-password" not in str(refused.value)
    return str(refused.value)


def test_a_server_that_says_it_cannot_encrypt_gets_nothing(tmp_path: Path) -> None:
    ours, _ = certificate(tmp_path, "ours")
    with between(None) as server:
        why = tried(server.port, f"sslmode=verify-full&sslrootcert={ours}")
    assert "does not support SSL" in why
    assert SECRET not in server.heard


def test_a_server_with_a_certificate_of_its_own_gets_nothing(tmp_path: Path) -> None:
    ours, _ = certificate(tmp_path, "ours")
    with between(certificate(tmp_path, "theirs")) as server:
        why = tried(server.port, f"sslmode=verify-full&sslrootcert={ours}")
    assert "certificate verify failed" in why
    assert SECRET not in server.heard


def test_the_right_server_is_spoken_to(tmp_path: Path) -> None:
    ours = certificate(tmp_path, "ours")
    with between(ours) as server:
        tried(server.port, f"sslmode=verify-full&sslrootcert={ours[0]}")
    assert SECRET in server.heard

"""A password of Redis on its way: with a rediss:// URL it is sent to the right server, and encrypted, or not at all."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from kombu.exceptions import OperationalError

from farm.broker.celery_app import make_app
from farm.services.urls import broker_url, redis_client_url
from support.certificates import certificate

PASSWORD = "the-password"


class Between:
    """A TLS server in front of Redis. It keeps what clients send to it, decrypted."""

    def __init__(self, shown: tuple[Path, Path], redis_port: int) -> None:
        self.heard = b""
        self._redis_port = redis_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*shown)
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._speak, args=(client,), daemon=True))
            self._threads[-1].start()

    def _speak(self, client: socket.socket) -> None:
        client.settimeout(120)
        with (
            client,
            suppress(OSError),
            self._context.wrap_socket(client, server_side=True) as encrypted,
            socket.create_connection(("127.0.0.1", self._redis_port)) as server,
        ):
            while not self._ended.is_set():
                ready, _, _ = select.select([encrypted, server], [], [], 0.2)
                if encrypted in ready:
                    sent = encrypted.recv(65536)
                    while encrypted.pending():
                        sent += encrypted.recv(65536)
                    if not sent:
                        return
                    self.heard += sent
                    server.sendall(sent)
                if server in ready:
                    if not (answered := server.recv(65536)):
                        return
                    encrypted.sendall(answered)

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def between(shown: tuple[Path, Path], redis_port: int) -> Iterator[Between]:
    made = Between(shown, redis_port)
    try:
        yield made
    finally:
        made.close()


def over_celery(url: str) -> None:
    with make_app(broker_url(url)) as app, app.connection_for_write() as connection:
        connection.default_channel.client.ping()


def over_redis_py(url: str) -> None:
    with redis.Redis.from_url(redis_client_url(url)) as client:
        client.ping()


each_client = pytest.mark.parametrize("connect", [over_celery, over_redis_py])


def url(server: Between, query: str) -> str:
    return f"rediss://:{PASSWORD}@127.0.0.1:{server.port}/0{query}"


@pytest.fixture
def port(broker: redis.Redis, redis_port: int) -> int:
    """The port of a Redis that asks for the password."""
    broker.config_set("requirepass", PASSWORD)
    return redis_port


@each_client
@pytest.mark.parametrize("query", ["", "?ssl_cert_reqs=required", "?ssl_ca_certs={ours}"])
def test_a_server_with_a_certificate_of_its_own_gets_nothing(
    connect: Callable[[str], None], query: str, port: int, tmp_path: Path
) -> None:
    ours, _ = certificate(tmp_path, "ours")
    with between(certificate(tmp_path, "theirs"), port) as server:
        with pytest.raises((redis.ConnectionError, OperationalError), match="certificate verify failed"):
            connect(url(server, query.format(ours=ours)))
        assert server.heard == b""


@each_client
def test_a_server_with_a_trusted_certificate_of_another_host_gets_nothing(
    connect: Callable[[str], None], port: int, tmp_path: Path
) -> None:
    other = certificate(tmp_path, "other", address="127.0.0.2")
    with between(other, port) as server:
        with pytest.raises((redis.ConnectionError, OperationalError), match="certificate verify failed"):
            connect(url(server, f"?ssl_ca_certs={other[0]}"))
        assert server.heard == b""


@each_client
def test_the_right_server_is_spoken_to(connect: Callable[[str], None], port: int, tmp_path: Path) -> None:
    ours = certificate(tmp_path, "ours")
    with between(ours, port) as server:
        connect(url(server, f"?ssl_ca_certs={ours[0]}"))
        assert PASSWORD.encode() in server.heard

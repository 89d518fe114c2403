"""A link to Postgres that can be cut, in front of which nothing notices."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import make_url


class Cable:
    """A proxy on loopback in front of Postgres. Where it is cut, it takes connections and bytes, and passes nothing on."""

    def __init__(self, target: Callable[[], socket.socket]) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._ended = False
        self._left: int | None = None  # bytes to the server until it is cut
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def cut_after(self, size: int) -> None:
        """Cuts it in the middle of what is sent to the server: after that many bytes."""
        self._left = size

    @property
    def is_cut(self) -> bool:
        return not self._whole.is_set()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._ended = True
        self._whole.set()
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(here,), daemon=True).start()

    def _pass_on(self, here: socket.socket) -> None:
        self._whole.wait()
        there = self._target()
        self._open += [here, there]
        with suppress(OSError, ValueError), selectors.DefaultSelector() as ready, here, there:
            ready.register(here, selectors.EVENT_READ, there)
            ready.register(there, selectors.EVENT_READ, here)
            while not self._ended:
                for key, _ in ready.select(1.0):
                    received = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if self._left is not None and key.fileobj is here:
                        there.sendall(received[: self._left])
                        received, self._left = received[self._left :], max(0, self._left - len(received))
                        if not received:
                            continue
                        self._left = None
                        self.cut()
                    self._whole.wait()
                    if not received:
                        return
                    key.data.sendall(received)


@contextmanager
def cable_to(database_url: str) -> Iterator[Cable]:
    """A cable to that server, until the end of the block."""
    url = make_url(database_url)
    folder, port = url.query.get("host") or url.host, url.query.get("port") or url.port or 5432

    def connect() -> socket.socket:
        if not str(folder).startswith("/"):
            return socket.create_connection((str(folder), int(str(port))))
        made = socket.socket(socket.AF_UNIX)
        made.connect(f"{folder}/.s.PGSQL.{port}")
        return made

    made = Cable(connect)
    try:
        yield made
    finally:
        made.close()


def through(cable: Cable, database_url: str) -> str:
    url = make_url(database_url).difference_update_query(["host", "port"])
    return url.set(host="127.0.0.1", port=cable.port).render_as_string(hide_password=False)

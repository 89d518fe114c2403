"""Spans of batches: the measuring process sends them, when a batch has landed, to its `farm-worker`, which exports them.

The measuring process exports nothing itself, so that no thread of it works while it measures. It sends datagrams to a Unix socket in a
folder that only its user can enter, and does not wait: what `farm-worker` does not take is lost.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from sqlalchemy import Engine

from farm.db.batches import ClaimedJob, Failure, Lease
from farm.db.farm_key import farm_key
from farm.devices import DeviceIdentity
from farm.errors import first_line
from farm.kernels.span_attributes import attributes_of
from farm.services.home import Home
from farm.settings import Settings
from farm.tracing import Kind, Span, SpanIds, ids_of_batch, ids_of_campaign, new_ids, running, tracing
from farm.tracing.span import MAX_ERROR_CHARACTERS, PREFIX, Value
from farm.variables import WORKER_SPANS

log = logging.getLogger(__name__)

SPANS_PER_DATAGRAM = 64
MAX_DATAGRAM_BYTES = 1 << 18
LOOK_SECONDS = 0.5
_SOCKET = "spans"

CLAIM, JOB, LAND = "claim batch", "measure job", "land rows"


class BatchSpans:
    """Times of the steps of a batch. This class discards them, for tracing that is off."""

    def begin(self) -> None:
        """Forgets the steps of the batch before."""

    def step(self, name: str, job: ClaimedJob | None = None) -> AbstractContextManager[object]:
        """Times the block."""
        return _NOTHING

    def send(self, lease: Lease, rows: int, failures: Mapping[int, Failure], error: Exception | None) -> None:
        """Hands the spans of a batch that ended to `farm-worker`. Does not wait, and does not raise."""


_NOTHING = nullcontext()


class _Step:
    """A step of a batch: the block, or the last of several with the same name."""

    def __init__(self, name: str, job: ClaimedJob | None) -> None:
        self.name, self.job, self.failed = name, job, False
        self.began_ns = self.ended_ns = 0

    def __enter__(self) -> None:
        self.began_ns = time.time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended_ns, self.failed = time.time_ns(), kind is not None


class SentSpans(BatchSpans):
    """Sends the spans of each batch as datagrams."""

    def __init__(self, farm: str, folder: Path, identity: DeviceIdentity) -> None:
        self._farm = farm
        self._device: dict[str, Value] = {
            f"{PREFIX}device.uuid": identity.uuid,
            f"{PREFIX}device.type": identity.type,
            f"{PREFIX}device.name": identity.name,
        }
        self._steps: list[_Step] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with _opened(folder) as address:
            self._socket.connect(address)

    def close(self) -> None:
        self._socket.close()

    def begin(self) -> None:
        self._steps = []

    def step(self, name: str, job: ClaimedJob | None = None) -> _Step:
        made = _Step(name, job)
        self._steps.append(made)
        return made

    def send(self, lease: Lease, rows: int, failures: Mapping[int, Failure], error: Exception | None) -> None:
        try:
            self._send(self._spans_of(lease, rows, failures, error))
        except OSError as refused:  # its queue is full, or farm-worker is gone
            log.debug("spans of a batch are lost: %s", refused)
        except Exception:  # a defect here must not cost a batch
            log.exception("spans of a batch could not be made")

    def _send(self, spans: Sequence[Span]) -> None:
        for first in range(0, len(spans), SPANS_PER_DATAGRAM):
            part = [span.to_json() for span in spans[first : first + SPANS_PER_DATAGRAM]]
            self._socket.send(json.dumps(part).encode())

    def _spans_of(
        self, lease: Lease, rows: int, failures: Mapping[int, Failure], error: Exception | None
    ) -> list[Span]:
        root = ids_of_batch(self._farm, lease.batch_id)
        own = {f"{PREFIX}batch.id": lease.batch_id, f"{PREFIX}campaign.id": lease.campaign_id, **self._device}
        link = (ids_of_campaign(self._farm, lease.campaign_id),)
        spans = [_span(step, root, own, link, rows, failures) for step in self._steps]
        if error is not None and spans:
            spans[-1] = replace(spans[-1], error=spans[-1].error or f"{type(error).__name__}: {first_line(error)}")
        return spans


def _span(
    step: _Step,
    root: SpanIds,
    attributes: Mapping[str, Value],
    links: tuple[SpanIds, ...],
    rows: int,
    failures: Mapping[int, Failure],
) -> Span:
    error, own = None, dict(attributes)
    if step.job is not None:
        own |= {f"{PREFIX}job.id": step.job.id, **attributes_of(step.job.configuration)}
        if (failure := failures.get(step.job.id)) is not None:
            error = f"{failure.kind}: {failure.message}"[:MAX_ERROR_CHARACTERS]
    elif step.name == LAND:
        own[f"{PREFIX}rows"] = rows
    return Span(
        name=step.name,
        ids=new_ids(root),
        parent=root,
        kind=Kind.CONSUMER if step.name == CLAIM else Kind.INTERNAL,
        began_ns=step.began_ns,
        ended_ns=step.ended_ns,
        attributes=own,
        links=links if step.name == CLAIM else (),
        error=error or ("it failed" if step.failed else None),
    )


def batch_spans(identity: DeviceIdentity) -> BatchSpans:
    """The spans of this process's batches: sent where `farm-worker` takes them."""
    farm, _, folder = os.environ.get(WORKER_SPANS, "").partition(" ")
    if not folder:
        return BatchSpans()
    try:
        return SentSpans(farm, Path(folder), identity)
    except OSError as error:
        log.warning("there are no spans of this process: %s", error)
        return BatchSpans()


# --- in farm-worker ----------------------------------------------------------------------------------


@contextmanager
def exported(settings: Settings, engine: Engine) -> Iterator[Mapping[str, str]]:
    """Exports spans of this host's devices inside the block. Yields environment variables for their processes.

    Without a collector in the settings, it yields none and does nothing. Raises `TracingMissing`.
    """
    if settings.trace_endpoint is None:
        yield {}
        return
    home = Home.of(settings)
    home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with running(settings, "worker"), tempfile.TemporaryDirectory(prefix="spans-", dir=home.run) as made:
        folder = Path(made)
        with _listening(folder):
            farm = farm_key(engine)
            engine.dispose()  # what is needed once holds no connection
            yield {} if farm is None else {WORKER_SPANS: f"{farm} {folder}"}


@contextmanager
def _opened(folder: Path) -> Iterator[str]:
    """A short address of the socket in a folder, whose own path may be longer than an address can be."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)


@contextmanager
def _listening(folder: Path) -> Iterator[None]:
    """Records the spans that come to the socket in a folder, inside the block and until none is left."""
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        with _opened(folder) as address:
            listener.bind(address)
        listener.settimeout(LOOK_SECONDS)
        thread = threading.Thread(target=_receive, args=(listener, stop), name="spans", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _receive(listener: socket.socket, stop: threading.Event) -> None:
    while True:
        try:
            received = listener.recv(MAX_DATAGRAM_BYTES)
        except TimeoutError:
            if stop.is_set():
                return
            continue
        # Of this user's own processes; one of another version may send something else.
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            for span in json.loads(received):
                tracing().record(Span.from_json(span))

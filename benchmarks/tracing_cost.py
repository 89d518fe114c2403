"""What does tracing cost the process that measures, for each job?

Runs the steps of batches as `workers.runner` does, without measuring anything: the contexts around claim, jobs and landing, and the hand-over
after it. With tracing on, a thread takes the datagrams, as `farm-worker` does in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.common import markdown, write
from farm.db.batches import ClaimedJob, Lease
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from workers import spans
from workers.spans import BatchSpans, SentSpans

JOBS = 100
BATCHES = 50


def us_for_each_job(taking: BatchSpans, lease: Lease) -> float:
    """Microseconds of the processor that the steps of a batch and its hand-over take, for each of its jobs."""
    began = time.thread_time()  # of the processor: this benchmark is not alone on a machine
    taking.begin()
    with taking.step(spans.CLAIM):
        pass
    for job in lease.jobs:
        with taking.step(spans.JOB, job):
            pass
    with taking.step(spans.LAND):
        pass
    taking.send(lease, len(lease.jobs), {}, None)
    return 1e6 * (time.thread_time() - began) / len(lease.jobs)


@contextmanager
def reader(folder: Path) -> Iterator[None]:
    """Takes the datagrams of a folder inside the block."""

    def take() -> None:
        with contextlib.suppress(OSError):
            while listener.recv(spans.MAX_DATAGRAM_BYTES) != b"end":
                pass

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, spans._opened(folder) as address:
        listener.bind(address)
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ending:
                ending.sendto(b"end", address)
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    configuration = Configuration.parse("tiled(tile=16) 512x512x512 f32")
    jobs = tuple(ClaimedJob(number, configuration) for number in range(1, JOBS + 1))
    lease = Lease(1, uuid.uuid4(), 1, 1, MeasuringRules(), jobs)
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=1)
    identity = DeviceIdentity(uuid=str(uuid.uuid4()), type="cpu", name="cpu", backend=Backend.CPU, traits=traits)
    off = statistics.median(us_for_each_job(BatchSpans(), lease) for _ in range(BATCHES))
    with (
        tempfile.TemporaryDirectory(prefix="tracing-cost-") as folder,
        reader(Path(folder)),
        closing(SentSpans("1/farm", Path(folder), identity)) as sending,
    ):
        on = statistics.median(us_for_each_job(sending, lease) for _ in range(BATCHES))
    table = markdown(["tracing", "µs for each job"], [["off", off], ["on", on]])
    write("tracing_cost", {"jobs": JOBS, "off_us": off, "on_us": on}, table, repetitions=BATCHES)


if __name__ == "__main__":
    main()

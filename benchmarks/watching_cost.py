"""What do open pages of a campaign cost the server, by events and by polling?

    python -m benchmarks.watching_cost [--pages 10 50 200] [--seconds 30]

A farm of its own has a campaign of which a batch of ten jobs lands each second. For each way to watch and each number of pages,
`farm serve` is started anew, and another process opens that many pages of the campaign over loopback:

  no page             the server and the campaign alone
  events              each page listens to `/events` as `live.js` does: it requests its part again after an event, and once in 20 s without
  events, not shared  the same, with each request reading the database for itself
  poll 5 s            each page requests its part every 5 s

A server has 100 streams. A page that gets none requests its part every 2 s, as `live.js` does. Ten pages share a token and an address.
After 8 s the figures begin: CPU seconds of the server and of all processes of Postgres, which include the landing of batches; the
highest resident memory of the server; the bytes of bodies; and the delay from the commit of a batch to the end of the first request that
began after it, by page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import Engine, text

from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import announce, farm_home, run_submit
from benchmarks.made_up import RESULT, campaign_text, record
from farm.db import batches, campaigns, tokens
from farm.db.states import Role

BATCH = 10
SETTLE_SECONDS = 8.0
POLL_SECONDS = 5.0
FALLBACK_SECONDS = 2.0
"""How often a page without a stream requests its part."""

QUIET_SECONDS = 20.0
AGAIN_SECONDS = 60.0
RECONNECT_SECONDS = 5.0
PAGES_PER_TOKEN = 10
EVENTS, NOT_SHARED, POLL = "events", "events, not shared", f"poll {POLL_SECONDS:g} s"
_ALONE = "from farm.web import shared_answers; shared_answers.SHARED_SECONDS = 0.0; from farm.cli import main; main()"


# --- the pages, in a process of their own --------------------------------------------------------------


class Page:
    """One open page."""

    def __init__(self, client: httpx.AsyncClient, digest: str, ends: float) -> None:
        self._client, self._digest, self._ends = client, digest, ends
        self._path = f"/campaigns/{digest[:12]}"
        self._topics = {"all", f"campaign:{digest[:12]}"}
        self._wanted = asyncio.Event()
        self._refreshed = time.monotonic()
        self.requests = list[tuple[float, float, int]]()
        self.streamed = list[tuple[float, int]]()
        self.refused = self.errors = 0

    async def refresh(self) -> None:
        began = time.monotonic()
        try:
            response = await self._client.get(self._path, headers={"HX-Request": "true"})
        except httpx.TransportError:
            self.errors += 1
            return
        if response.status_code != 200:
            self.refused += 1
            return
        self._refreshed = time.monotonic()
        self.requests.append((began, self._refreshed, response.num_bytes_downloaded))

    async def poll(self, seconds: float, until: float) -> None:
        await asyncio.sleep(seconds * random.random())
        while time.monotonic() < until:
            began = time.monotonic()
            await self.refresh()
            await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))

    async def listen(self) -> None:
        """Until the end: what an `EventSource` does, with one request for the page at a time."""
        refreshing = asyncio.create_task(self._refresh_when_wanted())
        while time.monotonic() < self._ends:
            try:
                listened = await self._stream()
            except httpx.TransportError:
                self.errors += 1
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            if not listened:
                self.refused += 1
                await self.poll(FALLBACK_SECONDS, min(self._ends, time.monotonic() + AGAIN_SECONDS))
        refreshing.cancel()

    async def _stream(self) -> bool:
        """Reads a stream to its end. False: the server has none for this page."""
        async with self._client.stream("GET", "/events") as response:
            if response.status_code != 200:
                return False
            async for chunk in response.aiter_raw():
                self.streamed.append((time.monotonic(), len(chunk)))
                for line in chunk.decode().splitlines():
                    if line.startswith("data: ") and self._topics & set(json.loads(line[6:])):
                        self._wanted.set()
        return True

    async def _refresh_when_wanted(self) -> None:
        while True:
            with suppress(TimeoutError):
                left = max(0.1, self._refreshed + QUIET_SECONDS - time.monotonic())
                await asyncio.wait_for(self._wanted.wait(), left)
            self._wanted.clear()
            await self.refresh()


async def open_pages(url: str, digest: str, way: str, count: int, keys: list[str], ends: float) -> list[Page]:
    clients, pages = list[httpx.AsyncClient](), list[Page]()
    for number, key in enumerate(keys[: -(-count // PAGES_PER_TOKEN)]):
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{number + 2}", limits=httpx.Limits())
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/html"}
        clients.append(httpx.AsyncClient(base_url=url, transport=transport, headers=headers, timeout=60))
    tasks = list[asyncio.Task[None]]()
    for number in range(count):
        page = Page(clients[number // PAGES_PER_TOKEN], digest, ends)
        pages.append(page)
        tasks.append(asyncio.create_task(page.poll(POLL_SECONDS, ends) if way == POLL else page.listen()))
    await asyncio.sleep(ends - time.monotonic())
    failed = [task for task in tasks if task.done() and task.exception() is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise SystemExit(f"{len(failed)} pages failed, the first with {failed[0].exception()!r}")
    return pages


def be_pages(asked: dict[str, Any]) -> None:
    pages = asyncio.run(open_pages(**asked))
    print(
        json.dumps(
            [
                {"requests": page.requests, "streamed": page.streamed, "refused": page.refused, "errors": page.errors}
                for page in pages
            ]
        )
    )


# --- the server, the campaign, and what they take -------------------------------------------------------


@contextmanager
def serving(shared: bool) -> Iterator[tuple[str, psutil.Process]]:
    """A `farm serve` that lets tokens in."""
    start = ["-m", "farm"] if shared else ["-c", _ALONE]
    words = [sys.executable, *start, "serve", "--port", "0", "--tokens"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


class Landing:
    """Lands a batch of the campaign each second, in a thread."""

    def __init__(self, engine: Engine, device_id: int, queue: str) -> None:
        self._engine, self._device_id, self._queue = engine, device_id, queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.at = list[float]()
        self.error: BaseException | None = None

    def __enter__(self) -> Landing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            following = time.monotonic()
            while not self._stop.wait(max(0.0, following - time.monotonic())):
                following += 1
                self._land()
        except BaseException as error:
            self.error = error

    def _land(self) -> None:
        with self._engine.begin() as connection:
            waiting = batches.candidates(connection)
            assert waiting, "the campaign has too few jobs"
            assert batches.lock(connection, waiting[0].lane_id)
            plans = [batches.BatchPlan(queue=self._queue, jobs=BATCH)]
            (batch_id,) = batches.form_many(connection, waiting[0], plans).ids
        with self._engine.begin() as connection:
            lease = batches.claim(connection, batch_id, device_id=self._device_id, lease_seconds=60)
        assert lease is not None
        with self._engine.begin() as connection:
            batches.land(connection, lease, [(job, RESULT) for job in lease.jobs], {})
        self.at.append(time.monotonic())
        with self._engine.begin() as connection:
            batches.fold(connection)


class CpuClock:
    """CPU seconds of a process and those below it, with those that have ended since they were last seen."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._seen = dict[int, float]()
        self.memory = 0

    def read(self) -> float:
        for one in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                self._seen[one.pid] = times.user + times.system
                if one == self._process:
                    self.memory = max(self.memory, one.memory_info().rss)
        return sum(self._seen.values())


def postmaster(engine: Engine) -> psutil.Process:
    with engine.connect() as connection:
        found = psutil.Process(connection.execute(text("SELECT pg_backend_pid()")).scalar_one()).parent()
    assert found is not None
    return found


def measured(
    engine: Engine, device: tuple[int, str], digest: str, way: str, count: int, keys: list[str], seconds: float
) -> dict[str, Any]:
    """Figures of one way to watch by so many pages, for that many seconds."""
    with serving(way != NOT_SHARED) as (url, server), Landing(engine, *device) as landing:
        ends = time.monotonic() + SETTLE_SECONDS + seconds
        query = {"url": url, "digest": digest, "way": way, "count": count, "keys": keys, "ends": ends}
        words = [sys.executable, "-m", "benchmarks.watching_cost", "--be-pages"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
            output = list[str]()
            reader = threading.Thread(target=lambda: output.append(watching.communicate(json.dumps(query))[0]))
            reader.start()
            time.sleep(SETTLE_SECONDS)
            clocks = [CpuClock(server), CpuClock(postmaster(engine))]
            before, began = [clock.read() for clock in clocks], time.monotonic()
            while time.monotonic() < ends - 0.5:
                time.sleep(0.5)
                after, taken = [clock.read() for clock in clocks], time.monotonic() - began
            reader.join(60)
    if watching.returncode:
        raise SystemExit("the pages failed")
    pages = json.loads(output[0])
    within = [of for page in pages for of in page["requests"] if began <= of[1] < began + taken]
    streamed = sum(size for page in pages for at, size in page["streamed"] if began <= at < began + taken)
    delays = list[float]()
    for page in pages:
        starts = [of[0] for of in page["requests"]]
        for at in landing.at:
            place = bisect_left(starts, at)
            if began <= at < began + taken and place < len(starts):
                delays.append(page["requests"][place][1] - at)
    per_minute = 60 / taken
    return {
        "way": way,
        "pages": count,
        "seconds": round(taken, 1),
        "server_cpu_s": round(per_minute * (after[0] - before[0]), 1),
        "postgres_cpu_s": round(per_minute * (after[1] - before[1]), 1),
        "server_mib": round(clocks[0].memory / 2**20),
        "sent_mb": round(per_minute * (sum(of[2] for of in within) + streamed) / 1e6, 2),
        "requests": round(per_minute * len(within)),
        "refused": sum(page["refused"] for page in pages),
        "errors": sum(page["errors"] for page in pages),
        "delay_s": round(statistics.median(delays), 2) if delays else None,
        "landed": sum(began <= at < began + taken for at in landing.at),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each way and number of pages")
    # What a process of its own does.
    parser.add_argument("--be-pages", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.be_pages:
        be_pages(json.load(sys.stdin))
        return
    end_like_interrupted()
    runs = [("no page", 0), *((way, count) for count in asked.pages for way in (POLL, NOT_SHARED, EVENTS))]
    jobs = 1000 * (1 + int(len(runs) * (asked.seconds + SETTLE_SECONDS + 30) * BATCH // 1000))
    found = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name:
        Path(name).chmod(0o755)
        file, recording = Path(name) / "campaign.yaml", Path(name) / "recording.parquet"
        file.write_text(campaign_text(jobs))
        record(file, recording)
        with farm_home(recording) as (_, engine):
            device_id, device = announce(engine)
            run_submit(file)
            with engine.begin() as connection:
                digest = campaigns.find(connection, f"overhead-{jobs}")["digest"]
                keys = [
                    tokens.create(connection, f"page-{number}", Role.READ, by="benchmark")
                    for number in range(-(-max(asked.pages) // PAGES_PER_TOKEN))
                ]
            for way, count in runs:
                of = measured(
                    engine, (device_id, f"gpu.{device.identity.type}"), digest, way, count, keys, asked.seconds
                )
                found.append(of)
                print(of, file=sys.stderr, flush=True)
    save(found)


COLUMNS = {
    "CPU of the server, s/min": "server_cpu_s", "CPU of Postgres, s/min": "postgres_cpu_s", "memory of the server, MiB": "server_mib",
    "sent, MB/min": "sent_mb", "requests/min": "requests", "median delay, s": "delay_s",
}  # fmt: skip


def save(found: list[dict[str, Any]]) -> None:
    lines = [
        [of["pages"], of["way"], *("–" if of[key] is None else of[key] for key in COLUMNS.values())] for of in found
    ]
    table = markdown(["pages", "way", *COLUMNS], lines)
    write("watching_cost", {"runs": found}, table, repetitions=1, show=False)


if __name__ == "__main__":
    main()

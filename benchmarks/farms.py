"""Farms to measure: a campaign of any size, a recording that answers it, and a home of its own with real services."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.made_up import TRAITS, job_cost_s, made_up_ms, record
from farm.campaign import Campaign, load, plan
from farm.db import batches, campaigns, devices, migrate
from farm.db.engine import DISPATCHING, make_engine
from farm.devices import host_name
from farm.errors import NoDeviceLeft
from farm.provenance import Provenance
from farm.services import ServiceUrls, services
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from farm.services.stack import COORDINATOR, WORKERS, Stack
from farm.settings import settings
from workers.devices import discover, open_device
from workers.devices.recording import write_recording


@contextmanager
def small_farm() -> Iterator[tuple[ServiceUrls, Engine]]:
    """A farm of its own whose devices know ten configurations: for devices that only the benchmark simulates."""
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as folder:
        Path(folder).chmod(0o755)
        file, recording = Path(folder) / "campaign.yaml", Path(folder) / "recording.parquet"
        file.write_text(
            "name: small\ntargets: any\nproblems: {m: 1, n: 1, k: 64, types: f32}\n"
            "kernels: [{family: tiled, tile: 4..13}]\n"
        )
        record(file, recording)
        with farm_home(recording) as made:
            yield made


@contextmanager
def farm_home(recording: Path | None = None, **more: str) -> Iterator[tuple[ServiceUrls, Engine]]:
    """A farm of its own with an empty database; `more` are further variables of its environment.

    Without a recording, `more` names its devices. Its folder is removed at the end, but stays with its logs where it failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="farm-bench-"))
    folder.chmod(0o755)
    os.environ |= {
        "FARM_HOME": str(folder / ".farm"),
        **({} if recording is None else {"FARM_DEVICES": f"recorded:{recording}"}),
        "FARM_LOG_LEVEL": "WARNING",
        **more,
    }
    settings.cache_clear()
    here = settings()
    try:
        with services(here, broker=True) as urls:
            engine = make_engine(
                urls.database_url, application="benchmark", session=DISPATCHING
            )  # as in workers and coordinator
            try:
                migrate.upgrade(engine)
                yield urls, engine
            finally:
                engine.dispose()
    except Exception:
        remove_cluster(Home.of(here))
        print(f"The logs of this farm are in {here.home / 'logs'}.", file=sys.stderr)
        raise
    except BaseException:
        _remove(folder, Home.of(here))
        raise
    _remove(folder, Home.of(here))


def _remove(folder: Path, home: Home) -> None:
    remove_cluster(home)
    shutil.rmtree(folder)


DEVICE_SECONDS = 90.0
"""How long the workers may take to announce their devices and open them."""


def made_up_devices(folder: Path, files: Sequence[Path], count: int, job_seconds: float) -> list[str]:
    """For a trial without a GPU: words for FARM_DEVICES of recordings that answer these campaigns.

    A job takes that long, give or take half, of which nine tenths are said to be its window; it draws 100 W.
    """
    configurations = [c for file in files for c in load(file, limit=10**7).expand()]
    words = []
    for number in range(count):
        path = folder / f"made-up-{number}.parquet"
        rows = (
            {
                "configuration": c,
                "runtime_ms": made_up_ms(c),
                "power_w": 100.0,
                "cost_s": (cost_s := job_cost_s(n, job_seconds)),
                "window_s": 0.9 * cost_s,
            }
            for n, c in enumerate(configurations)
        )
        said = f"made up for a trial, {number + 1} of {count}"
        write_recording(
            path, rows, Provenance(device_type="made-up", device_name="Made up", traits=TRAITS, provenance=said)
        )
        words.append(f"recorded:{path}?scale=1")
    return words


def choose_devices(kind: str, most: int, files: Sequence[Path], folder: Path, job_seconds: float) -> list[str]:
    """Words for FARM_DEVICES, one for each device: `cuda` (the cards of this host), `cpu`, `recorded` (made up)."""
    if kind == "recorded":
        return made_up_devices(folder, files, most, job_seconds)
    return [device.uuid for device in discover(kind)][:most]


@contextmanager
def programs(urls: ServiceUrls, engine: Engine, words: Sequence[str]) -> Iterator[Stack]:
    """Coordinator and workers of these devices, inside the block. All devices are there when it begins.

    Raises what ended a program, and `NoDeviceLeft` where a device cannot be opened.
    """
    os.environ["FARM_DEVICES"] = ",".join(words)
    settings.cache_clear()
    wanted = {device.uuid for word in words for device in discover(word)}
    with Stack(urls, settings().home, programs=[COORDINATOR, WORKERS]) as stack:
        until = time.monotonic() + DEVICE_SECONDS
        while True:
            check(engine, stack)
            with engine.connect() as connection:
                if wanted <= {uuid for _, uuid, _ in devices.live(connection, silent_after=10)}:
                    break
            if time.monotonic() > until:
                raise NoDeviceLeft(devices=f"not announced within {DEVICE_SECONDS:.0f} s", log=stack.logs()["workers"])
            time.sleep(0.1)
        yield stack


def check(engine: Engine, stack: Stack) -> None:
    """Raises where a program ended or a device was quarantined: what is measured then is not what was asked for."""
    stack.check()
    with engine.connect() as connection:
        left = devices.shut_out_on(connection, host_name())
    if left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise NoDeviceLeft(devices=reasons, log=stack.logs()["workers"])


def store(engine: Engine, campaign: Campaign) -> int:
    """Submits a campaign to the devices that are there; returns its id."""
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        planned = plan(campaign, known, allow_missing=False)
        return campaigns.store(connection, campaign, planned.jobs()).campaign_id


def is_over(engine: Engine, campaign_id: int) -> bool:
    with engine.connect() as connection:
        return not campaigns.open_jobs(campaigns.counts(connection, campaign_id))


HAND_BACK_SECONDS = 60.0
"""How long a device may take to end the job in hand and to land."""


def cancel(engine: Engine, campaign_ids: Sequence[int]) -> None:
    """Cancels what is open of these campaigns, and waits until no device has a batch of them in hand."""
    with engine.begin() as connection:
        for campaign_id in campaign_ids:
            batches.cancel(connection, campaign_id)
    held = text("""
        SELECT count(*) FROM batches b JOIN lanes l ON l.id = b.lane_id
        WHERE l.campaign_id = ANY(:ids) AND b.state = 'leased'
    """)
    until = time.monotonic() + HAND_BACK_SECONDS
    while time.monotonic() < until:
        with engine.connect() as connection:
            if not connection.execute(held, {"ids": list(campaign_ids)}).scalar_one():
                return
        time.sleep(0.1)


def measure_for(engine: Engine, stack: Stack, campaign_ids: Sequence[int], seconds: float, began: float) -> float:
    """To the end of these campaigns, until so many seconds after `began`, or until interrupted; the rest is cancelled.

    Returns the seconds since `began`, on the monotonic clock.
    """
    try:
        while time.monotonic() < began + seconds and not all(is_over(engine, i) for i in campaign_ids):
            check(engine, stack)
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("Interrupted: reporting what was measured.", file=sys.stderr)
    finally:
        cancel(engine, campaign_ids)
    return time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Measured:
    """A campaign that the devices of this host measured: the farm still has its rows."""

    engine: Engine
    campaign_id: int
    counts: Mapping[str, int]
    seconds: float
    devices: int
    # For files of the block's own.
    folder: Path


@contextmanager
def measured(
    submit: Callable[[Engine], int],
    *,
    kind: str,
    most: int,
    seconds: float,
    files: Sequence[Path],
    job_seconds: float = 0,
    prepare: Callable[[Engine], None] = lambda _: None,
) -> Iterator[Measured]:
    """A farm of its own measures what `submit` submits, for so many seconds at the most; then comes the block.

    kind, most, files and job_seconds are as in `choose_devices`. `prepare` is called before workers start, and takes none of the
    time.
    """
    with tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        words = choose_devices(kind, most, files, folder, job_seconds)
        with farm_home(FARM_DEVICES=",".join(words)) as (urls, engine):
            prepare(engine)
            with programs(urls, engine, words) as stack:
                began = time.monotonic()
                campaign_id = submit(engine)
                took = measure_for(engine, stack, [campaign_id], seconds, began)
            with engine.connect() as connection:
                counts = campaigns.counts(connection, campaign_id)
            yield Measured(engine, campaign_id, counts, took, len(words), folder)


def announce(engine: Engine) -> tuple[int, Any]:
    identity = discover(settings().devices)[0]
    with engine.begin() as connection:
        device_id = devices.register(connection, host="bench", host_facts={}, device=identity)
    device = open_device(identity)
    device.open()
    return device_id, device


def submit(engine: Engine, file: Path, clock: dict[str, float]) -> int:
    """Reads, expands and stores the campaign; expansion is timed by running through it once more."""
    campaign = load(file, limit=10**7)
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    planned = plan(campaign, known, allow_missing=False)
    began = time.perf_counter()
    for job in planned.jobs():
        _ = job.configuration.id
    clock["expand"] = time.perf_counter() - began
    began = time.perf_counter()
    with engine.begin() as connection:
        stored = campaigns.store(connection, campaign, planned.jobs())
    clock["store"] = time.perf_counter() - began - clock["expand"]
    return stored.campaign_id


def run_submit(file: Path) -> dict[str, float]:
    """`farm submit` as a process of its own: seconds from start to end, and its peak memory."""
    # Through a small process: a child's peak begins with the memory of the process that forked it.
    measure = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", measure, sys.executable, "-m", "farm", "submit", str(file)]
    began = time.perf_counter()
    peak_kib = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"submit_s": time.perf_counter() - began, "peak_rss_mb": peak_kib / 1024}

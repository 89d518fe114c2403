"""Farms to measure: a campaign of any size, a recording that answers it, and a home of its own with real services."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from farm.campaign import KnownDevice, load, plan
from farm.db import campaigns, devices, migrate
from farm.db.engine import DISPATCHING, make_engine
from farm.devices import DeviceKind, DeviceTraits
from farm.provenance import Provenance
from farm.services import ServiceUrls, services
from farm.settings import settings
from workers.devices import discover, open_device
from workers.devices.recording import write_recording


def campaign_text(jobs: int) -> str:
    """A campaign of exactly that many configurations: shapes times 10 tiles."""
    return (
        f"name: overhead-{jobs}\ntargets: any\n"
        f"problems: {{m: 1..{jobs // 1000}, n: 1..100, k: 64, types: f32}}\n"
        "kernels: [{family: tiled, tile: 4..13}]\n"
    )


def record(campaign_file: Path, recording: Path) -> None:
    """A recording that answers the whole campaign. Its times are made up, and its provenance says so."""
    campaign = load(campaign_file, limit=10**7)
    traits = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36)
    rows = ({"configuration": c, "runtime_ms": 1e-3 + c.problem.flops * 1e-9} for c in campaign.configurations())
    write_recording(
        recording,
        rows,
        Provenance(device_type="overhead", device_name="Overhead", traits=traits, provenance="made up for load"),
    )


@contextmanager
def farm_home(recording: Path, **more: str) -> Iterator[tuple[ServiceUrls, Engine]]:
    """A farm of its own with an empty database; `more` are further variables of its environment."""
    folder = Path(tempfile.mkdtemp(prefix="farm-bench-"))
    folder.chmod(0o755)
    os.environ |= {
        "FARM_HOME": str(folder / ".farm"),
        "FARM_DEVICES": f"recorded:{recording}",
        "FARM_LOG_LEVEL": "WARNING",
        **more,
    }
    settings.cache_clear()
    with services(settings(), broker=True) as urls:
        engine = make_engine(
            urls.database_url, application="benchmark", session=DISPATCHING
        )  # as in workers and coordinator
        migrate.upgrade(engine)
        yield urls, engine
        engine.dispose()


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
        known = [KnownDevice(*row) for row in campaigns.known_devices(connection)]
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

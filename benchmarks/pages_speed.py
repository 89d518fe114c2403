"""How fast does a big farm answer over HTTP? Every question of the API, at a million rows and two thousand campaigns.

    python -m benchmarks.pages_speed [--rows 1000000] [--campaigns 2000] [--repetitions 20]

A farm of its own is filled with made-up rows: campaigns of 500 configurations each on eight cards of two types, of which all
but ten are done; a sentinel and some failures for each. Then `farm serve` runs as a process of its own and is asked over
loopback, one question at a time on one connection: milliseconds from asking to the last byte, the median and the 95th
percentile. Beside it the slowest SQL statement of that question, timed in this process, where the same application
answers it once more, and the size of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from sqlalchemy import Engine, event, text

from benchmarks.common import markdown, write
from benchmarks.farms import farm_home
from farm.api import OPERATIONS, PREFIX
from farm.api.access import Access
from farm.db.engine import make_engine
from farm.db.states import Role
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import settings
from farm.web.app import make_app
from farm.web.security import Policy

TARGET_MS = 200
OPEN = 10
"""Campaigns that are not over."""

FILL = (
    "INSERT INTO hosts (name) VALUES ('gpu01'), ('gpu02')",
    """
    INSERT INTO devices (uuid, host_id, type, name, backend, traits, measured)
    SELECT 'GPU-' || i, 1 + i % 2, CASE WHEN i < 4 THEN 'nvidia-h200' ELSE 'nvidia-a100' END, 'Made up', 'cuda',
        '{"kind": "cuda", "memory_bytes": 137438953472}', :rows / 8
    FROM generate_series(0, 7) i
    """,
    'INSERT INTO environments VALUES (gen_random_uuid(), \'{"driver": "made up"}\')',
    "INSERT INTO pools (name, device_types) VALUES ('type:nvidia-h200', '{nvidia-h200}'), ('type:nvidia-a100', '{nvidia-a100}')",
    """
    INSERT INTO campaigns (name, digest, owner, document, rules, state, submitted_at, finished_at)
    SELECT 'made-up-' || i, md5(CAST(i AS text)) || md5(CAST(-i AS text)), 'owner-' || i % 20, CAST(:document AS jsonb), '{}',
        CASE WHEN i > :campaigns - :open THEN 'active' ELSE 'done' END,
        now() - interval '90 days' * (1 - CAST(i AS float8) / :campaigns), now()
    FROM generate_series(1, :campaigns) i
    """,
    """
    INSERT INTO lanes (campaign_id, pool_id, jobs, done, dead)
    SELECT c.id, p.id, :each / 2 + CASE c.state WHEN 'active' THEN 50 ELSE 2 END, :each / 2, 2
    FROM campaigns c CROSS JOIN pools p ORDER BY c.id, p.id
    """,
    """
    INSERT INTO configurations
    SELECT gen_random_uuid(), 64 * (1 + p % 20), 64 * (1 + p / 20 % 20), 64 * (1 + p / 400), 'f16', 'f16', 'f32', 'nn', 1, 0,
        CASE q WHEN 0 THEN 'cublaslt' ELSE 'tiled' END,
        CASE q WHEN 0 THEN jsonb_build_object('algorithm', 0) ELSE jsonb_build_object('tile', q) END
    FROM generate_series(0, :problems - 1) p CROSS JOIN generate_series(0, 31) q
    """,
    """
    INSERT INTO jobs (lane_id, configuration_id, state)
    SELECT l.id, c.id, CASE WHEN c.n > :each / 2 + 2 THEN 'waiting' WHEN c.n > :each / 2 THEN 'dead' ELSE 'done' END
    FROM lanes l JOIN (
        SELECT id, row_number() OVER (ORDER BY id) AS at FROM configurations
    ) numbered ON true
    CROSS JOIN LATERAL (SELECT numbered.id, (numbered.at + l.id * 37) % :configurations + 1 AS n) c
    WHERE c.n <= l.jobs ORDER BY l.id
    """,
    """
    INSERT INTO batches (lane_id, queue, state, job_ids, jobs, done, device_id, claimed_at, finished_at, folded)
    SELECT l.id, 'gpu', 'done', '{}', :each / 2, :each / 2, 1 + (l.id + 1) % 2 * 4 + l.campaign_id % 4,
        c.submitted_at, c.submitted_at + interval '4 s', true
    FROM lanes l JOIN campaigns c ON c.id = l.campaign_id ORDER BY c.id
    """,
    """
    INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, measured_at, source,
        runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, power_w,
        sm_clock_mhz, temperature_c, throttle_reasons, distribution, seed, clock_policy, cost_s, window_s, details)
    SELECT j.id, l.campaign_id, j.configuration_id, 1 + (l.id + 1) % 2 * 4 + j.id % 4, (SELECT id FROM environments),
        c.submitted_at, 'measured', f.t, f.t, f.t, f.t, 0.003, 10, 'converged', 'cold', 300 + 100 * random(), 1500 + j.id % 400,
        50 + j.id % 20, CASE WHEN j.id % 10 = 0 THEN 'sw_power_cap' ELSE 'none' END, 'uniform', 0, 'default', 0.1, 0.05, '{}'
    FROM jobs j JOIN lanes l ON l.id = j.lane_id JOIN campaigns c ON c.id = l.campaign_id
    CROSS JOIN LATERAL (SELECT exp(random()) AS t WHERE j.id IS NOT NULL) f
    WHERE j.state = 'done' ORDER BY j.id
    """,
    """
    INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, measured_at, source, runtime_ms,
        runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details)
    SELECT l.campaign_id, (SELECT id FROM configurations LIMIT 1), b.device_id, (SELECT id FROM environments), b.finished_at,
        'sentinel', 1, 1, 1, 1, 0.003, 10, 'converged', 'cold', 'uniform', 0, 0.1, '{}'
    FROM batches b JOIN lanes l ON l.id = b.lane_id CROSS JOIN generate_series(1, 5) ORDER BY b.finished_at
    """,
    """
    INSERT INTO failures (job_id, lane_id, batch_id, device_id, kind, message, at)
    SELECT j.id, j.lane_id, b.id, b.device_id, 'failed', 'it was made up', b.finished_at
    FROM jobs j JOIN batches b ON b.lane_id = j.lane_id CROSS JOIN generate_series(1, 3) WHERE j.state = 'dead'
    """,
)

DOCUMENT = """{"name": "made-up", "owner": "owner", "targets": "any", "problems": {"m": 64, "n": 64, "k": 64, "types": ["f16:f16:f32"]},
"kernels": [{"family": "tiled", "tile": [1, 2]}]}"""

PATHS = {
    known.name: known.path
    for known in OPERATIONS.values()
    if known.method == "GET"
    and known.tag not in ("models", "comparing", "reports", "imports")
    and Role.OPERATE.may(known.role)  # the role of `farm serve --no-tokens`
    and "{" not in known.path.replace("{campaign}", "")
}
"""Models are loaded from MLflow once: what they take is in predict_speed, and that of a report in report_speed."""


def questions(campaign: str, rows: int) -> dict[str, str]:
    """What is asked, by what a reader calls it: each GET operation as it is, and those that people narrow down."""
    plain = {name: PREFIX + path.replace("{campaign}", campaign) for name, path in PATHS.items()}
    results = f"{PREFIX}/results"
    return {
        **plain,
        "campaigns_list, page 20 of 50": f"{PREFIX}/campaigns?before=1000",
        "campaigns_list, by a part of the name": f"{PREFIX}/campaigns?search=up-77",
        "campaigns_list, 500 at a time": f"{PREFIX}/campaigns?limit=500",
        "jobs_list, those that are dead": f"{PREFIX}/campaigns/{campaign}/jobs?state=dead",
        "results_rows, of a campaign": f"{results}?campaign={campaign}&limit=500",
        "results_rows, the page in the middle": f"{results}?after={rows // 2}",
        "results_rows, the newest 50": f"{results}?sort=-measurement_id&limit=50",
        "results_rows, the fastest 50 of a type": f"{results}?type=nvidia-h200&sort=-tflops&limit=50",
        "results_rows, of a problem": f"{results}?where=m == 64 and n == 64 and k == 64&sort=-tflops&limit=50",
        "results_rows, of a device in the last week": f"{results}?device=GPU-1&since=7d&sort=-measured_at&limit=50",
    }


def pages(campaign: str) -> dict[str, str]:
    """Pages of the browser, as a person opens them."""
    of = f"/campaigns/{campaign}"
    places = ("/", of, f"{of}/jobs", f"{of}/results", f"{of}/best", "/devices", "/compare", "/models", "/submit")
    return {f"page {place.replace(of, '/campaigns/NAME')}": place for place in places}


@contextmanager
def served() -> Iterator[str]:
    """The address of a `farm serve` on the farm of this process's environment."""
    command = [sys.executable, "-m", "farm", "serve", "--port", "0", "--no-tokens"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Statements:
    """The application in this process, with a clock on each statement."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url, application="benchmark")
        self._taken = list[float]()
        event.listen(self._engine, "before_cursor_execute", self._begin)
        event.listen(self._engine, "after_cursor_execute", self._end)
        opened = Session(settings(), ServiceUrls(url, None, settings().tracking_uri), self._engine)
        app = make_app(Access(settings(), who="benchmark", opened=opened), policy=Policy(tokens=False))
        self._transport = httpx.ASGITransport(app)

    def _begin(self, *_: object) -> None:
        self._taken.append(time.perf_counter())

    def _end(self, *_: object) -> None:
        self._taken[-1] = 1e3 * (time.perf_counter() - self._taken[-1])

    def slowest_ms(self, path: str) -> float:
        """Of the statements of a question that has been asked once."""

        async def ask() -> None:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://localhost") as client:
                for _ in range(2):
                    self._taken.clear()
                    (await client.get(path)).raise_for_status()

        asyncio.run(ask())
        return max(self._taken, default=0.0)


def ask(client: httpx.Client, path: str, repetitions: int, statements: Statements) -> dict[str, float]:
    first = client.get(path)
    assert first.status_code == 200, (path, first.text[:500])
    taken = list[float]()
    for _ in range(repetitions):
        began = time.perf_counter()
        answer = client.get(path)
        taken.append(1e3 * (time.perf_counter() - began))
    assert answer.content
    taken.sort()
    return {
        "median_ms": round(statistics.median(taken), 1),
        "p95_ms": round(taken[min(len(taken) - 1, round(0.95 * (len(taken) - 1)))], 1),
        "slowest_statement_ms": round(statements.slowest_ms(path), 1),
        "kb": round(len(answer.content) / 1024, 1),
    }


def fill(engine: Engine, rows: int, campaigns: int) -> None:
    each = rows // campaigns
    problems = 1000
    numbers = {
        "rows": rows, "campaigns": campaigns, "each": each, "problems": problems, "configurations": 32 * problems, "open": OPEN,
        "document": DOCUMENT,
    }  # fmt: skip
    for statement in FILL:
        with engine.begin() as connection:
            connection.execute(text(statement), numbers)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
        landed = connection.execute(text("SELECT count(*) FROM v_measurements")).scalar_one()
        assert landed == rows, landed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a multiple of twice the campaigns")
    parser.add_argument("--campaigns", type=int, default=2_000)
    parser.add_argument("--repetitions", type=int, default=20)
    asked = parser.parse_args()
    with farm_home(FARM_DEVICES="cpu") as (urls, _):
        engine = make_engine(urls.database_url, application="benchmark")
        fill(engine, asked.rows, asked.campaigns)
        engine.dispose()
        statements = Statements(urls.database_url)
        newest = f"made-up-{asked.campaigns}"
        everything = {**questions(newest, asked.rows), **pages(newest)}
        with served() as address, httpx.Client(base_url=address, timeout=120) as client:
            found = {name: ask(client, path, asked.repetitions, statements) for name, path in everything.items()}
    table = f"{asked.rows:,} rows of {asked.campaigns:,} campaigns; milliseconds:\n\n" + markdown(
        ["question", "median", "95th percentile", "slowest statement", "KB"],
        [[name, *(of[k] for k in ("median_ms", "p95_ms", "slowest_statement_ms", "kb"))] for name, of in found.items()],
    )
    over = [name for name, of in found.items() if of["median_ms"] > TARGET_MS]
    slowest = max(found, key=lambda name: found[name]["median_ms"])
    write(
        "pages_speed",
        {
            "rows": asked.rows, "campaigns": asked.campaigns, "target_ms": TARGET_MS, "slowest": slowest,
            "over_target": over, "questions": found,
        },
        table, repetitions=asked.repetitions,
    )  # fmt: skip


if __name__ == "__main__":
    main()

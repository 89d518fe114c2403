"""Spans of a campaign, from the command that submits it to its rows, as a collector receives them from real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text

import farm
from farm.db.engine import make_engine
from farm.db.farm_key import farm_key
from farm.services import ServiceUrls
from support.commands import NOWHERE
from support.homes import environment, eventually
from support.otlp_collector import Collector, collecting
from support.programs import COORDINATOR, FARM_WORKER, Start, free_port, programs

ROOT = Path(farm.__file__).parent.parent
RECORDING = ROOT / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
CAMPAIGN = """\
name: {name}
targets: any
problems: {{m: {m}, n: 512, k: 1024, types: f32}}
kernels: [{{family: tiled, tile: [4, 8, 16, 32]}}]
"""
MEASURE = (ROOT / "examples" / "campaigns" / "paper-tiled.yaml").read_text().partition("\nmeasure:")
"""The rules under which the recording was made."""
FARM = (sys.executable, "-m", "farm")


@pytest.fixture
def start(tmp_path: Path, database_url: str, farm_services: ServiceUrls) -> Iterator[Start]:
    urls = {"FARM_DATABASE_URL": database_url, "FARM_BROKER_URL": str(farm_services.broker_url)}
    with programs(tmp_path, OTEL_BSP_SCHEDULE_DELAY="100", **urls) as starting:
        yield starting


def number(engine: Engine, statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one() or 0)


DONE = "SELECT count(*) FROM campaigns WHERE state = 'done'"


@pytest.mark.long
def test_a_campaign_is_traced_from_its_submission_to_its_rows_and_ends_without_a_collector_too(
    engine: Engine, start: Start, tmp_path: Path, database_url: str
) -> None:
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        traced = {"FARM_OTEL_ENDPOINT": collector.url}
        port = free_port()
        coordinator = start(COORDINATOR, **traced)
        worker = start(FARM_WORKER, "--devices", f"recorded:{RECORDING}?scale=0.01", **traced)
        # FastAPI could export more, with queries and paths that name campaigns.
        of_fastapi = {"FASTAPI_OTEL_AUTO_CONFIGURE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        start((*FARM, "serve"), "--port", str(port), **traced, **of_fastapi)
        eventually(lambda: number(engine, "SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at"))

        def submit(name: str, *, m: int) -> None:
            file = tmp_path / f"{name}.yaml"
            file.write_text(CAMPAIGN.format(name=name, m=m) + "".join(MEASURE[1:]))
            variables = environment(
                tmp_path / ".farm",
                FARM_API_URL=f"http://127.0.0.1:{port}",
                OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            )
            subprocess.run([*FARM, "submit", str(file)], env=variables, check=True, capture_output=True, timeout=300)

        def served() -> bool:
            variables = environment(tmp_path / ".farm", FARM_API_URL=f"http://127.0.0.1:{port}")
            return (
                subprocess.run(
                    [*FARM, "status"], check=False, env=variables, capture_output=True, timeout=300
                ).returncode
                == 0
            )

        eventually(served)
        submit("traced", m=512)
        eventually(lambda: number(engine, DONE) == 1)
        rows = number(engine, "SELECT count(*) FROM measurements")
        assert rows == 4
        eventually(lambda: len(collector.named("measure job")) == rows and collector.named("land rows"))
        eventually(lambda: collector.named("farm submit"))
        check_submission(collector)
        check_batches(collector, engine)
        assert collector.paths == {"/v1/traces"}
        assert {one.program for one in collector.spans} == {
            f"gemm-farm-{program}" for program in ("cli", "coordinator", "web", "worker")
        }
        assert not {"url.path", "url.query"} & {name for one in collector.spans for name in one.attributes}
        assert database_url.rpartition("@")[0] not in json.dumps([one.attributes for one in collector.spans])

        stack.close()  # the collector is gone
        for n in range(2):
            submit(f"untraced-{n}", m=2048 // (n + 1))
        eventually(lambda: number(engine, DONE) == 3)
        lost = "spans are lost: the collector at"
        eventually(lambda: lost in coordinator.log() and lost in worker.log())
        for program in (coordinator, worker):
            assert program.stop() == 0
            assert program.log().count(lost) == 1
            assert "opentelemetry" not in program.log()


def check_submission(collector: Collector) -> None:
    """The command, the request and the campaign belong together."""
    (command,) = collector.named("farm submit")
    (request,) = collector.named("POST /api/v1/campaigns")
    (stored,) = collector.named("store campaign")
    (campaign,) = collector.named("submit campaign")
    assert [one.program for one in (command, request, stored)] == ["gemm-farm-cli", "gemm-farm-web", "gemm-farm-web"]
    assert not command.parent
    assert (request.trace, request.parent) == (command.trace, command.span)
    assert (stored.trace, stored.parent) == (command.trace, request.span)
    assert not campaign.parent
    assert campaign.trace != command.trace
    assert stored.links == [(campaign.trace, campaign.span)]
    assert campaign.links == [(stored.trace, stored.span)]
    assert campaign.attributes["gemm_farm.campaign.name"] == "traced"
    assert request.attributes["http.response.status_code"] == 200


def check_batches(collector: Collector, engine: Engine) -> None:
    """Each batch is a trace of its own, which begins where it was formed and names the campaign."""
    (campaign,) = collector.named("submit campaign")
    with engine.connect() as connection:
        found = connection.execute(text("SELECT id, jobs FROM batches WHERE state = 'done' ORDER BY id")).all()
        uuid, kind = connection.execute(text("SELECT uuid, type FROM devices")).one()
    assert found
    for batch_id, number_of_jobs in found:
        (formed,) = collector.named("form batch", batch_id=batch_id)
        assert formed.program == "gemm-farm-coordinator"
        assert not formed.parent
        assert formed.links == [(campaign.trace, campaign.span)]
        parts = {
            name: collector.named(name, batch_id=batch_id) for name in ("send message", "claim batch", "land rows")
        }
        jobs = collector.named("measure job", batch_id=batch_id)
        for one in (*(part for each in parts.values() for part in each), *jobs):
            assert (one.trace, one.parent) == (formed.trace, formed.span)
            assert not one.failed
        assert {one.program for one in parts["send message"]} == {"gemm-farm-coordinator"}
        (claimed,), (landed,) = parts["claim batch"], parts["land rows"]
        assert {one.program for one in (claimed, landed, *jobs)} == {"gemm-farm-worker"}
        assert claimed.links == [(campaign.trace, campaign.span)]
        assert landed.attributes["gemm_farm.rows"] == len(jobs)
        assert len({one.attributes["gemm_farm.job.id"] for one in jobs}) == len(jobs) == number_of_jobs
        for one in jobs:
            assert claimed.ended_ns <= one.began_ns <= one.ended_ns <= landed.began_ns
            own = {name.removeprefix("gemm_farm."): value for name, value in one.attributes.items()}
            assert (own["device.uuid"], own["device.type"], own["kernel.family"]) == (uuid, kind, "tiled")
            assert (own["gemm.m"], own["gemm.n"], own["gemm.k"]) == (512, 512, 1024)
            assert own["gemm.types"].startswith("f32")
    assert len({one.trace for one in collector.named("form batch")}) == len(collector.named("form batch"))


def test_a_program_reads_the_key_of_its_farm_once_and_goes_on_while_it_cannot(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    away = make_engine(NOWHERE, application="test")
    assert farm_key(away) is None
    assert "the key of the farm cannot be read, so there are no spans: " in caplog.text
    key = farm_key(engine)
    assert key is not None
    assert key.endswith(f"/{engine.url.database}")
    read = list[str]()
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: read.append(statement))
    assert farm_key(engine) == key
    assert read == []

"""The Python API over HTTP: campaigns from Python, their rows as tables, comparing and asking models."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

import farm
from farm.api.campaigns import Progress
from farm.devices import DeviceIdentity
from farm.errors import BadInput, CampaignFileError
from farm.schema.arrow import ARROW_TYPES
from farm.schema.results import COLUMNS, EXPORTED
from farm.settings import settings
from support.batch_steps import land, leased
from support.cheap_training import cheap_trainings
from support.commands import farm_here
from support.model_records import record_models
from support.samples import cpu, document, landed, row
from support.serving import served
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

ROOT = Path(__file__).parents[2]


@pytest.fixture
def api(engine: Engine, tmp_path: Path, new_registry: Callable[[Path], str]) -> Iterator[str]:
    with served(engine, tracking_uri=new_registry(tmp_path)) as url:
        yield url


@pytest.fixture
def client(api: str) -> Iterator[farm.Client]:
    with farm.connect(api) as client:
        yield client


def test_a_campaign_from_a_mapping_is_waited_for_and_read(client: farm.Client, engine: Engine, device: int) -> None:
    campaign = client.submit(document())
    assert campaign.name == "small"
    assert client.submit(document()).digest == client.campaign("small").digest == campaign.digest
    looks = list[Progress]()
    with pytest.raises(TimeoutError, match="12 jobs of small are open after 0 s"):
        campaign.wait(timeout=0, poll_seconds=0.01, progress=looks.append)
    assert looks[0].counts["pending"] == 12
    lease = leased(engine, device, size=100)
    land(engine, lease)
    end = campaign.wait(timeout=60, poll_seconds=0.1)
    assert end.counts["done"] == len(lease.jobs)

    rows = campaign.results(where="m >= 128", sort="m")
    assert [found["m"] for found in rows] == sorted(found["m"] for found in rows)
    assert 0 < len(rows) < len(campaign.results()) == len(lease.jobs)
    assert len(campaign.results(limit=3)) == 3
    assert client.results(campaign="small", family="blas")[0]["campaign"] == "small"
    assert isinstance(rows[:2], farm.Table)
    found = rows.to_arrow()
    assert found.schema.types == [ARROW_TYPES[COLUMNS[name].type] for name in EXPORTED]
    assert found.num_rows == len(rows)
    frame = rows.to_pandas()
    assert list(frame.columns) == list(EXPORTED)
    assert set(frame["m"]) == {128, 256}
    assert campaign.best().campaign == "small"


def test_a_campaign_file_goes_with_its_mistakes_named(client: farm.Client, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: from-a-file\ntargets: any\nproblems: {m: 64, n: 64, k: 64, types: f99}\nkernels: [{family: blas}]\n"
    )
    with pytest.raises(farm.FarmError, match=r"sweep.yaml:3: .*f99"):
        client.submit(file)
    with pytest.raises(CampaignFileError, match="there is no such file"):
        client.submit(tmp_path / "none.yaml")
    with pytest.raises(farm.FarmError, match="small2"):
        client.campaign("small2")


def test_a_campaign_is_paused_resumed_and_cancelled(client: farm.Client, device: int) -> None:
    campaign = client.submit(document())
    assert campaign.pause().state == "paused"
    assert campaign.resume().state == "active"
    assert campaign.cancel().state == "cancelled"
    assert campaign.wait(timeout=60).counts["cancelled"] == 12


def test_cards_are_compared(client: farm.Client, engine: Engine, announce: object, device: int) -> None:
    configurations = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in (64, 128, 256, 512)]
    other = _other(engine, announce)
    landed(engine, device, [(one, row(2.0)) for one in configurations])
    landed(engine, other, [(one, row(1.0)) for one in configurations])
    found = client.compare("cpu-test", "cpu-other", tie=2)
    assert (found.baseline.name, found.tie) == ("cpu-test", 0.02)
    assert found.sides[0].overall is not None
    assert found.sides[0].overall.time.ratio == pytest.approx(0.5)
    with pytest.raises(BadInput, match="tie: "):
        client.compare("cpu-test", "cpu-other", tie=99)


def _other(engine: Engine, announce: object) -> int:
    assert callable(announce)
    identity: DeviceIdentity = cpu(2, kind="cpu-other")
    found: int = announce(identity)
    return found


def test_a_model_is_asked(engine: Engine, tmp_path: Path, new_registry: Callable[[Path], str]) -> None:
    uri = new_registry(tmp_path)
    with cheap_trainings():
        rows = tiled_table((256, 512, 1024), tiles=(8, 16, 32)).assign(device_type="nvidia-h200")
        train_and_register(rows, "nvidia-h200", tracking_uri=uri, code_version="1.0", settings=ForestSettings(trees=5))
    record_models(uri, engine)
    with served(engine, tracking_uri=uri) as url, farm.connect(url) as client:
        predicted = client.predict(["tiled(tile=16) 512x512x512 f32"], device_type="nvidia-h200")
        assert predicted.predictions[0].runtime_ms > 0
        ranked = client.recommend("700x700x700", family=["tiled"], top=2)
        assert len(ranked.ranking) == 2


def test_the_database_is_worked_on_where_no_url_is_given(
    engine: Engine, database_url: str, tmp_path: Path, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert farm_here(tmp_path, database_url)("status").returncode == 0
    monkeypatch.setenv("FARM_DATABASE_URL", database_url)
    monkeypatch.setenv("FARM_HOME", str(tmp_path / ".farm"))
    settings.cache_clear()
    try:
        with farm.connect() as client:
            assert client.submit(document()).progress().counts["pending"] == 12
    finally:
        settings.cache_clear()


def test_the_example_runs_from_submitting_to_its_table(engine: Engine, api: str, device: int, tmp_path: Path) -> None:
    environment = {**os.environ, "FARM_API_URL": api, "FARM_HOME": str(tmp_path / ".farm")}
    command = [sys.executable, str(ROOT / "examples" / "sweep_and_compare.py")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        deadline = time.monotonic() + 120
        while running.poll() is None and time.monotonic() < deadline:
            with engine.connect() as connection:
                if connection.execute(text("SELECT count(*) FROM jobs")).scalar_one():
                    land(engine, leased(engine, device, size=100))
                    break
            time.sleep(0.1)
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert "tflops" in output
    assert output.rstrip().endswith("pyarrow.Field<runtime_ms: double>")


def test_the_package_names_what_is_public() -> None:
    assert {"connect", "Client", "Campaign", "Table", "FarmError", "NotFound"} <= set(farm.__all__)
    for name in farm.__all__:
        assert getattr(farm, name) is not None

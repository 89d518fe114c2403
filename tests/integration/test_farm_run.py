"""The whole loop as a user runs it: real processes, real services, a campaign from file to prediction."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy.exc import OperationalError, ProgrammingError

from farm.campaign import Campaign, load
from farm.db import devices
from farm.db.engine import make_engine
from farm.devices import DeviceKind, DeviceTraits
from farm.gemm import Problem
from farm.kernels import problem_of
from farm.provenance import Provenance
from farm.services import services
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.services.stack import COORDINATOR, WORKERS, Stack
from support.farm_home import Farm
from support.folders import open_folder
from support.homes import ask, embedded_settings
from workers.devices.recording import write_recording

CAMPAIGN = """
name: whole-loop
owner: ann
targets: any
problems:
  m: [64, 128, 192]
  n: [64, 160]
  k: [64, 256]
  types: [f32]
kernels:
  - {family: blas, threads: 1}
  - {family: tiled, tile: 16}       # does not apply to a CPU
measure:
  timing: {max_seconds: 0.03, min_samples: 3, warmup_seconds: 0.001}
"""


@dataclass(frozen=True)
class Kinds:
    """What `farm run` and `farm results` show of a campaign of batches and groups, and its rows with their problems."""

    shown: str
    rows: list[tuple[Any, Problem]]


pytestmark = pytest.mark.random_order(disabled=True)
"""The tests share a farm and tell its story: the last ones measure more and promote its model."""


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with open_folder() as folder:
        (folder / "campaign.yaml").write_text(CAMPAIGN)
        yield Farm(folder)


@pytest.fixture(scope="module")
def report(farm: Farm) -> Any:
    return farm.json("run", "campaign.yaml")


def test_a_campaign_is_measured_learned_and_predicted(farm: Farm, report: Any) -> None:
    assert report["counts"]["done"] == 12
    assert sum(report["counts"].values()) == 12
    (device,) = report["devices"]
    assert device["source"] == "measured"
    assert device["shapes"] == 12
    ((kind, training),) = report["trainings"].items()
    # Twelve rows of a machine that runs other tests: whether that beats a roofline is the machine's affair.
    assert (training["outcome"]["alias"], training["outcome"]["version"]) in (("champion", "1"), ("challenger", "1"))
    assert training["outcome"]["decision"]
    (prediction,) = report["predictions"]
    assert (prediction["device_type"], prediction["standing"]) == (kind, training["outcome"]["alias"])
    assert (prediction["to_get_a_champion"] is None) == (prediction["standing"] == "champion")
    assert prediction["predicted_ms"] > 0
    assert training["outcome"]["metrics"]["unseen_shapes"]["runtime_ms"]["rows"] == 12


def test_nothing_is_left_running(farm: Farm, report: Any) -> None:
    assert farm.processes() == []


def test_the_rows_say_how_they_were_measured(farm: Farm, report: Any) -> None:
    for row in farm.json("results", "--campaign", "whole-loop"):
        assert row["runtime_min_ms"] <= row["runtime_q1_ms"] <= row["runtime_ms"] <= row["runtime_q3_ms"]
        assert row["tflops"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / row["runtime_ms"] / 1e9)
        assert row["verify_error"] is not None
        assert row["samples"] >= 3
        assert row["power_w"] is None
        assert row["energy_mj"] is None
        assert "numpy" in row["environment"]


def test_every_export_holds_the_same_rows(farm: Farm, report: Any) -> None:
    farm("results", "-o", "rows.csv")
    farm("results", "-o", "rows.parquet")
    farm("results", "-o", "rows.json")
    with (farm.folder / "rows.csv").open() as file:
        from_csv = [float(row["runtime_ms"]) for row in csv.DictReader(file)]
    from_parquet = pq.read_table(farm.folder / "rows.parquet").column("runtime_ms").to_pylist()
    from_json = [row["runtime_ms"] for row in json.loads((farm.folder / "rows.json").read_text())]
    assert len(from_csv) == 12
    assert from_csv == from_parquet == from_json


@pytest.mark.long
def test_an_export_answers_as_a_recorded_device_and_teaches_no_model(farm: Farm, report: Any) -> None:
    farm("results", "-o", "recording.parquet")
    other = Farm(farm.folder / "other", devices="recorded:recording.parquet")
    other.folder.mkdir()
    for name in ("campaign.yaml", "recording.parquet"):
        shutil.copy(farm.folder / name, other.folder)
    replayed = other.json("run", "campaign.yaml")
    (device,) = replayed["devices"]
    assert device["source"] == "recorded"
    assert device["device_type"] == "recorded-" + report["devices"][0]["device_type"]
    assert replayed["trainings"] == {}
    times = [{r["configuration_id"]: r["runtime_ms"] for r in f.json("results")} for f in (farm, other)]
    assert times[0] == times[1]
    assert all("gemm-farm" in r["environment"]["provenance"] for r in other.json("results"))


@pytest.mark.long
def test_a_device_that_cannot_be_opened_is_quarantined_with_its_reason(farm: Farm, report: Any) -> None:
    other = Farm(farm.folder / "broken", devices="recorded:broken.parquet")
    other.folder.mkdir()
    shutil.copy(farm.folder / "campaign.yaml", other.folder)
    farm("results", "-o", "whole.parquet")
    rows = pq.read_table(farm.folder / "whole.parquet")
    at = rows.column_names.index("runtime_ms")
    pq.write_table(rows.set_column(at, "runtime_ms", [[-1.0] * len(rows)]), other.folder / "broken.parquet")
    done = other("run", "--no-train", "campaign.yaml", code=3)
    assert "could not be opened" in done.stderr
    assert "runtime_ms" in done.stderr
    (device,) = other.json("devices")
    assert device["state"] == "quarantined"
    pq.write_table(rows, other.folder / "broken.parquet")  # another content is another device
    assert other.json("run", "--no-train", "campaign.yaml")["counts"]["done"] == 12


@pytest.mark.long
def test_running_it_again_measures_nothing_again_and_keeps_the_champion(farm: Farm, report: Any) -> None:
    before = farm.json("results")
    again = farm.json("run", "campaign.yaml")
    assert farm.json("results") == before
    (training,) = again["trainings"].values()
    assert training["outcome"]["reused"] is True


def test_the_registry_lists_the_model_and_predict_uses_it(farm: Farm, report: Any) -> None:
    (model,) = farm.json("models")
    assert (model["shapes"], len(model["aliases"])) == (12, 1)
    # Whether it is the champion or a challenger, it answers, and says which it is.
    by = farm.json("predict", "blas(threads=1) 100x100x100 f32")["answered_by"]
    assert by["standing"] == model["aliases"][0]
    assert by["errors"]["runtime_ms"]["median_error_pct"] >= 0
    assert (by["why_not_champion"] is None) == (by["standing"] == "champion")
    (measured,) = by["conditions"]["sources"]
    assert (measured["source"], measured["rows"]) == ("measured", 12)
    # Where the last-level cache is very large, small problems cannot be rotated out of it: they are a protocol of their own.
    protocols = by["conditions"]["protocols"]
    assert sum(one["rows"] for one in protocols) == 12
    assert {(one["name"], one["operands"]) for one in protocols} == {("farm", "uniform")}
    assert {one["l2"] for one in protocols} == {row["l2"] for row in farm.json("results", "--campaign", "whole-loop")}
    farm("models", "promote", model["name"], "1", "--force")
    answer = farm.json("predict", "blas(threads=1) 100x100x100 f32")
    assert answer["predictions"][0]["runtime_ms"] > 0
    assert answer["predictions"][0]["power_w"] is None
    farm("results", "-o", "again.csv")
    assert len(farm.json("predict", "--file", "again.csv")["predictions"]) == 12


@pytest.fixture
def coordinator_and_worker(farm: Farm, report: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The services and programs of the farm while they serve, as `farm up` starts them."""
    monkeypatch.setenv("FARM_DEVICES", farm.devices)
    own = embedded_settings(farm.folder / ".farm")
    with services(own, broker=True) as urls, Stack(urls, own.home, programs=[COORDINATOR, WORKERS]) as stack:
        engine = make_engine(urls.database_url, application="test")
        end = time.monotonic() + 120
        while True:
            stack.check()
            with engine.connect() as connection:
                if devices.live(connection, silent_after=60):
                    break
            assert time.monotonic() < end, "no worker took up work"
            time.sleep(0.02)
        engine.dispose()
        yield


@pytest.mark.long
@pytest.mark.usefixtures("coordinator_and_worker")
def test_a_worker_measures_what_the_model_recommends(farm: Farm) -> None:
    ask = ("recommend", "96x160x64", "--confirm", "--timeout", "120")
    found = farm.json(*ask)
    assert found["winner"] == "blas(threads=1) 96x160x64 f32:f32:f32 nn alpha=1 beta=0"
    (first,) = found["ranking"]
    rows = [row for row in farm.json("results") if row["campaign"].startswith("confirm-")]
    assert [(row["m"], row["n"], row["k"], row["source"]) for row in rows] == [(96, 160, 64, "measured")]
    assert first["measured_ms"] == rows[0]["runtime_ms"] > 0
    assert farm.json(*ask) == found  # by the same row: nothing is measured again


def test_the_pulled_model_loads_where_only_mlflow_and_scikit_learn_are_installed(farm: Farm, report: Any) -> None:
    kind = report["devices"][0]["device_type"]
    farm("models", "promote", kind, "1", "--force")
    farm("models", "pull", kind, "--to", "pulled")
    python = _environment_with(farm.folder / "fresh", "mlflow", "scikit-learn")
    program = (
        "import mlflow, pandas as pd, importlib.util as u\n"
        "assert not any(u.find_spec(name) for name in ('farm', 'workers', 'trainer', 'celery'))\n"
        "model = mlflow.pyfunc.load_model('pulled')\n"
        "rows = pd.DataFrame([{'m': 64, 'n': 64, 'k': 64, 'ab': 'f32', 'family': 'blas', 'threads': 1}])\n"
        "print(float(model.predict(rows)['runtime_ms'].iloc[0]))\n"
    )
    environment = {k: v for k, v in farm.environment.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", program], cwd=farm.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = farm.json("predict", "blas(threads=1) 64x64x64 f32")["predictions"][0]["runtime_ms"]
    assert float(done.stdout) == pytest.approx(ours)


def _environment_with(folder: Path, *distributions: str) -> Path:
    """A fresh virtual environment with these and all that they require, and nothing else; returns its Python.

    The files are linked from the environment of the tests, so that nothing is downloaded.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    wanted, seen = list(distributions), set()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        root = Path(str(distribution.locate_file("")))
        for top in {Path(file).parts[0] for file in distribution.files or () if ".." not in Path(file).parts}:
            if top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(root / top)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    assert "gemm-farm" not in seen
    return python


@pytest.mark.long
def test_too_few_measurements_train_no_model_and_say_how_many_are_needed(farm: Farm, report: Any) -> None:
    few = CAMPAIGN.replace("whole-loop", "few").replace("[64, 128, 192]", "64").replace("[64, 160]", "[64, 80]")
    other = Farm(farm.folder / "few")
    other.folder.mkdir()
    (other.folder / "few.yaml").write_text(few)
    done = other("run", "few.yaml")
    assert "No model for cpu-" in done.stderr
    assert "12" in done.stderr
    refused = other("train", code=6)
    assert "Training for cpu-" in refused.stderr
    assert other("train", "nvidia-h200", code=2).stdout == ""


LEARNS = """
name: learns
targets: any
problems:
  - {domain: {m: "16..256", n: "16..256", k: "16..256"}, types: f32}
kernels: {family: blas, threads: 1}
search: {strategy: learn, problems: 12, kernels: 1, test_problems: 20, budget_seconds: 3, seed: 1}
measure:
  timing: {max_seconds: 0.002, min_samples: 2, warmup_seconds: 0.001}
"""


@pytest.mark.long
def test_a_learning_campaign_is_decided_round_by_round_trained_and_predicted(farm: Farm) -> None:
    other = Farm(farm.folder / "learns")
    other.folder.mkdir()
    (other.folder / "learns.yaml").write_text(LEARNS)
    report = other.json("run", "learns.yaml")
    curve = report["learning"]
    assert [point["round"] for point in curve] == list(range(1, len(curve) + 1))
    assert (len(curve) > 1) == (curve[0]["device_seconds"] < 3)
    assert [point["stop"] is None for point in curve] == [True] * (len(curve) - 1) + [False]
    assert report["counts"]["done"] == 20 + 12 * len(curve) == sum(report["counts"].values())
    (training,) = report["trainings"].values()
    assert training["outcome"]["metrics"]["unseen_shapes"]["runtime_ms"]["rows"] == 12 * len(curve)
    (prediction,) = report["predictions"]
    assert prediction["predicted_ms"] > 0


@pytest.mark.long
def test_an_interrupted_run_keeps_what_it_measured_and_goes_on(farm: Farm) -> None:
    """By Ctrl-C first, and in the middle of what is left by a terminal that is closed."""
    other = Farm(farm.folder / "interrupted", devices="recorded:slow.parquet?scale=1")
    other.folder.mkdir()
    many = CAMPAIGN.replace("whole-loop", "many").replace("[64, 128, 192]", "64..512 +8")
    (other.folder / "many.yaml").write_text(many)
    _record(other.folder / "slow.parquet", load(other.folder / "many.yaml", limit=1000))
    first = _interrupted(other, signal.SIGINT, before=3)
    second = _interrupted(other, signal.SIGHUP, before=first)
    counts = other.json("run", "--no-train", "many.yaml")["counts"]
    assert 3 < first < second < counts["done"] == sum(counts.values())
    assert counts["dead"] == 0


def _interrupted(farm: Farm, number: signal.Signals, *, before: int) -> int:
    """Runs the campaign, sends the signal once more than `before` jobs are done, and returns how many are at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farm", "run", "--no-train", "many.yaml"],
        cwd=farm.folder,
        env={**farm.environment, "FARM_BATCH_SECONDS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while _landed(farm) <= before:
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert farm.processes() == []
    return int(farm.json("status", "many")["counts"]["done"])


def _record(file: Path, campaign: Campaign) -> None:
    """A device that knows the campaign, and takes a thirtieth of a second for each answer."""
    asked = (c for c in campaign.expand() if c.kernel.family == "blas")
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=2)
    origin = Provenance(device_type="slow-cpu", device_name="Slow CPU", traits=traits, provenance="made up")
    write_recording(file, [{"configuration": c, "runtime_ms": 1.0, "cost_s": 0.03} for c in asked], origin)


def _landed(farm: Farm) -> int:
    """The rows that a farm at work has; none before it is up."""
    postgres = EmbeddedPostgres(Home.of(embedded_settings(farm.folder / ".farm")))
    if postgres.running():
        with contextlib.suppress(OperationalError, ProgrammingError):
            (rows,) = ask(postgres.url, "SELECT count(*) FROM measurements WHERE source = 'recorded'") or (0,)
            return int(str(rows))
    return 0


KINDS = """
name: kinds
owner: ann
problems:
  - {shapes: [64x64x64, 96x32x16], types: f32, batch: [1, 5, 16]}
  - {experts: 40, top_k: 3, tokens: 32, weights: [24x16, 16x48], routing: [balanced, zipf 1.2], types: f32, layouts: nt}
  - {shapes: 40x32x16, types: f32, groups: ["8*5", "40,0*9"]}
kernels: {family: blas, threads: 1}
measure:
  timing: {max_seconds: 0.03, min_samples: 3, warmup_seconds: 0.001}
"""


@pytest.fixture(scope="module")
def kinds(farm: Farm, report: Any) -> Kinds:
    """Used at the end, because tests before count the rows of the farm."""
    (farm.folder / "kinds.yaml").write_text(KINDS)
    shown = farm("run", "--no-train", "kinds.yaml").stdout + farm("results", "--campaign", "kinds").stdout
    rows = farm.json("results", "--campaign", "kinds")
    problems = [problem_of(row) for row in rows]
    return Kinds(shown, list(zip(rows, problems, strict=True)))


@pytest.mark.long
def test_batches_are_measured_verified_and_listed(kinds: Kinds) -> None:
    assert "12 configurations measured." in kinds.shown
    assert re.search(r"m x n x k +batch +groups +types", kinds.shown)
    rows = [row for row, problem in kinds.rows if problem.groups is None]
    assert sorted((row["m"], row["batch"]) for row in rows) == [(m, batch) for m in (64, 96) for batch in (1, 5, 16)]
    times = {(row["m"], row["batch"]): row["runtime_ms"] for row in rows}
    for row in rows:
        flops = 2 * row["m"] * row["n"] * row["k"] * row["batch"]
        assert row["tflops"] == pytest.approx(flops / row["runtime_ms"] / 1e9)
        assert 0 <= row["verify_error"] < 1e-4
    assert all(times[m, 16] > times[m, 1] for m in (64, 96))


@pytest.mark.long
def test_groups_are_measured_verified_and_listed(kinds: Kinds) -> None:
    assert re.search(r"40 \(\d+ with rows, 1 to \d+, median \d+\)", kinds.shown)
    grouped = [(row, problem) for row, problem in kinds.rows if problem.groups is not None]
    assert {len(problem.groups.sizes) for _, problem in grouped if problem.groups is not None} == {40, 5, 10}
    assert sorted(problem.shape.m for _, problem in grouped) == [40, 40, 96, 96, 96, 96]
    for row, problem in grouped:
        assert row["tflops"] == pytest.approx(problem.flops / row["runtime_ms"] / 1e9)
        assert 0 <= row["verify_error"] < 1e-4

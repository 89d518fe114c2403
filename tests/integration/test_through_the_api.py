"""The command line asks the API as it asks a database: the same output, the same errors, the same exit codes."""

from __future__ import annotations

import io
import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from farm.api import OPERATIONS, Direct, Farm, Remote, results
from farm.api.access import Access
from farm.api.results import all_rows
from farm.builds.cache import KernelCache
from farm.cli.commands import every_command, why_local
from farm.db import batches, campaigns, tokens, trainings
from farm.db.states import Role
from farm.devices import DeviceIdentity, traits_of_capability
from farm.exporters import EXPORTERS
from farm.exporters.exporter import contents
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY
from farm.registry import load_pyfunc
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.homes import eventually
from support.kernel_builds import built_of
from support.model_records import record_models
from support.samples import cpu, document, landed, row
from support.serving import served
from support.training_tables import tiled_table
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

DATA = Path(__file__).parents[2]

ROWS = [
    (f"blas(threads={threads}) {m}x64x{k} f32:f32:f32 nn alpha=1 beta=0", row(m * k / threads / 1e4))
    for threads in (1, 2)
    for m in (64, 128, 256)
    for k in (32, 64)
]


@pytest.fixture
def measured(engine: Engine, device: int, small: campaigns.Stored) -> None:
    """Half of a campaign's jobs are done, one is dead, one failed once."""
    landed(engine, device, ROWS[:6], campaign_id=small.campaign_id)
    with engine.begin() as connection:
        dead = connection.execute(text("UPDATE jobs SET state = 'dead' WHERE id = 2 RETURNING lane_id")).scalar_one()
        connection.execute(text("UPDATE lanes SET dead = 1 WHERE id = :lane"), {"lane": dead})
        connection.execute(
            text(
                "INSERT INTO failures (job_id, lane_id, device_id, kind, message) "
                "VALUES (2, :lane, :device, 'failed', 'it said <b>no</b>')"
            ),
            {"lane": dead, "device": device},
        )


@pytest.fixture
def direct(tmp_path: Path, engine: Engine) -> Command:
    return farm_here(tmp_path, engine.url.render_as_string(hide_password=False))


@pytest.fixture
def api(engine: Engine, tmp_path: Path) -> Iterator[str]:
    with served(engine, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db") as url:
        yield url


@pytest.fixture
def remote(tmp_path: Path, api: str) -> Command:
    """`farm` with nothing but FARM_API_URL: neither its database nor its registry is there."""
    away = tmp_path / "away"
    away.mkdir()
    run = farm_here(away, "")

    def asked(*arguments: str, **environment: str) -> Any:
        return run(
            *arguments, **{"FARM_API_URL": api, "MLFLOW_TRACKING_URI": f"sqlite:///{away}/none.db"} | environment
        )

    return asked


_AGES = ("silent_s", "state_s", "last_seen_at", "busy_s", "began_s", "live")


def steady(told: Any) -> Any:
    """The document without what differs from one moment to the next, and times as one form of text."""
    if isinstance(told, dict):
        return {key: steady(value) for key, value in told.items() if key not in _AGES}
    if isinstance(told, list):
        return [steady(value) for value in told]
    return told.replace("Z", "+00:00") if isinstance(told, str) else told


LOOKS = (
    ["status"],
    ["status", "small"],
    ["jobs", "--campaign", "small", "--all"],
    ["jobs", "--campaign", "small", "--state", "dead", "--class", "failed"],
    ["results"],
    ["results", "--campaign", "small", "--sort", "-tflops", "--where", "m >= 128 and threads == 2", "--since", "1h"],
    ["best", "small"],
    ["devices"],
    ["sentinels"],
    ["models"],
)


@pytest.mark.usefixtures("measured")
def test_looking_through_the_api_shows_what_the_database_has(direct: Command, remote: Command) -> None:
    for line in LOOKS:
        here, there = direct(*line, "--json"), remote(*line, "--json")
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr) == (0, ""), line
        assert steady(json.loads(here.stdout)) == steady(json.loads(there.stdout)), line
        shown = [re.sub(r"\d+ s ago", "now", told.stdout) for told in (direct(*line), remote(*line))]
        assert shown[0] == shown[1], line
        assert shown[0], line


@pytest.mark.usefixtures("measured")
def test_results_for_autotuners_are_the_same_through_the_api(direct: Command, remote: Command, tmp_path: Path) -> None:
    line = ("results", "--campaign", "small", "--where", "m >= 1", "--format", "t4", "-o")
    here, there = direct(*line, str(tmp_path / "here")), remote(*line, str(tmp_path / "there"))
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert here.stderr.replace("/here/", "/there/") == there.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "here").iterdir()}
    assert found == {path.name: path.read_text() for path in (tmp_path / "there").iterdir()}
    assert [json.loads(text)["results"] for text in found.values()]


MISTAKES = (
    ["status", "nothing"],
    ["jobs", "--campaign", "small", "--job", "999"],
    ["results", "--where", "m >="],
    ["results", "--device", "GPU-nothing"],
    ["results", "--since", "soon"],
    ["devices", "drain", "host:nowhere"],
    ["models", "show", "nvidia-nothing"],
    ["predict", "tiled(tile=16) 512x512x512 f32"],
    ["recommend", "512x512"],
)


@pytest.mark.usefixtures("measured")
def test_mistakes_are_told_in_the_same_words(direct: Command, remote: Command) -> None:
    for line in MISTAKES:
        here, there = direct(*line), remote(*line)
        assert here.returncode == there.returncode != 0, line
        assert " ".join(here.stderr.split()) == " ".join(there.stderr.split()), line
        assert "error:" in here.stderr, line


def test_a_name_that_is_a_path_is_not_found(remote: Command) -> None:
    refused(remote("status", "odd/../name"), 4, "Not Found")


def test_a_file_of_shapes_beside_a_campaign_goes_with_it(
    device: int, direct: Command, remote: Command, tmp_path: Path
) -> None:
    drawn = document(
        name="drawn",
        problems={"domain": {"file": "shapes.csv"}, "types": "f32"},
        search={"strategy": "random", "problems": 2},
    )
    for folder, command in ((tmp_path, direct), (tmp_path / "away", remote)):
        (folder / "drawn.yaml").write_text(json.dumps(drawn))
        refused(command("submit", "drawn.yaml"), 2, "there is no file shapes.csv")
        (folder / "shapes.csv").write_text("m,n,k,weight\n64,64,64,1\n128,64,64,5\n")
    plans = [json.loads(command("submit", "drawn.yaml", "--dry-run", "--json").stdout) for command in (direct, remote)]
    assert plans[0] == plans[1]
    assert {one["shape"] for one in plans[0]["drawn"]["sample"]} == {"64x64x64", "128x64x64"}
    assert plans[0]["drawn"]["requested"] == 2
    told = direct("submit", "drawn.yaml", "--dry-run").stdout
    assert "problems drawn from the domain: min / median / max" in told
    assert "the first 2 of 2 problems" in told


def test_only_the_gemms_of_a_trace_go_to_the_server(
    device: int, direct: Command, remote: Command, tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "away"):
        (folder / "untuned.csv").write_text("GemmTunableOp_float_TN,tn_96_8_64\nGemmTunableOp_Half_TN,tn_96_8_64\n")
    line = ("submit", "--trace", "untuned.csv", "--family", "blas", "--dry-run", "--json")
    here, there = direct(*line), remote(*line)
    assert json.loads(here.stdout) == json.loads(there.stdout)
    assert json.loads(here.stdout)["jobs"] == 2
    assert "each counts as one" in here.stderr


def test_a_campaign_is_submitted_steered_and_retried_through_the_api(
    engine: Engine, remote: Command, measured: None, tmp_path: Path
) -> None:
    file = tmp_path / "away" / "mine.yaml"
    file.write_text(json.dumps({k: v for k, v in document(name="mine").items() if k != "owner"}))
    assert json.loads(remote("submit", "mine.yaml", "--dry-run", "--json").stdout)["jobs"] == 12
    submitted = json.loads(remote("submit", "mine.yaml", "--json").stdout)
    assert (submitted["new"], submitted["pending"]) == (True, 12)
    assert json.loads(remote("pause", "mine", "--json").stdout)["state"] == "paused"
    assert json.loads(remote("resume", "mine", "--json").stdout)["changed"] is True
    assert json.loads(remote("cancel", "mine", "--json").stdout)["cancelled_jobs"] == 12
    refused(remote("resume", "mine"), 2, "mine is cancelled")
    assert json.loads(remote("retry", "small", "--json").stdout)["reopened"] == 1
    assert json.loads(remote("devices", "drain", "CPU-1", "--reason", "hot", "--json").stdout)[0]["changed"] is True
    with engine.connect() as connection:
        reason = connection.execute(text("SELECT state_reason FROM devices WHERE uuid = 'CPU-1'")).scalar_one()
        owner = connection.execute(text("SELECT owner FROM campaigns WHERE name = 'mine'")).scalar_one()
    assert reason.startswith("hot (by ")
    assert owner != "the tests"


def test_a_file_with_mistakes_is_told_with_its_own_name_and_lines(
    direct: Command, remote: Command, tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "away"):
        (folder / "wrong.yaml").write_text("name: wrong\nproblems: {m: 0, n: 1, k: 1, types: f32}\nkernels: nothing\n")
    here, there = direct("submit", "wrong.yaml"), remote("submit", "wrong.yaml")
    assert here.stderr == there.stderr
    assert "wrong.yaml:2" in here.stderr
    refused(remote("submit", "none.yaml"), 2, "none.yaml: there is no such file")


@pytest.mark.usefixtures("measured")
def test_watching_through_the_api_ends_with_the_campaign(remote: Command, engine: Engine) -> None:
    with engine.begin() as connection:
        batches.cancel(connection, 1)
    done = remote("watch", "small", "--json")
    assert done.returncode == 6
    assert json.loads(done.stdout)["counts"]["dead"] == 1


def test_cards_are_compared_through_the_api(
    engine: Engine, announce: Callable[[DeviceIdentity], int], direct: Command, remote: Command, tmp_path: Path
) -> None:
    configurations = [
        f"blas(threads=1) {m}x64x{k} f32:f32:f32 nn alpha=1 beta=0" for m in (64, 128, 256) for k in (8, 9, 10)
    ]
    for number in (1, 2):
        landed(engine, announce(cpu(number)), [(one, row(n * number)) for n, one in enumerate(configurations, 1)])
    line = ["compare", "CPU-1", "CPU-2", "--price", "CPU-1=2", "--price", "CPU-2=1.5", "--top", "3", "--tie", "2"]
    here, there = direct(*line, "--json"), remote(*line, "--json")
    assert steady(json.loads(here.stdout)) == steady(json.loads(there.stdout))
    assert json.loads(here.stdout)["sides"][0]["overall"]["time"]["ratio"] == 2
    assert direct(*line).stdout == remote(*line).stdout
    for command, file in ((direct, tmp_path / "here.csv"), (remote, tmp_path / "there.csv")):
        assert "9 pairs in" in command(*line, "--output", str(file)).stderr
    assert (tmp_path / "here.csv").read_text() == (tmp_path / "there.csv").read_text()
    refused(remote("compare", "CPU-1", "CPU-2", "--output", str(tmp_path / "no" / "a.csv")), 2, "a.csv")
    filled = json.loads(remote("compare", "CPU-1", "CPU-2", "--fill", "--json").stdout)
    assert filled["fills"] == []


def test_a_model_is_asked_through_the_api(
    remote: Command, direct: Command, tmp_path: Path, new_registry: Callable[[Path], str], engine: Engine
) -> None:
    with cheap_trainings():
        rows = tiled_table((256, 512, 1024), tiles=(8, 16, 32)).assign(device_type="nvidia-h200")
        uri = new_registry(tmp_path)
        train_and_register(rows, "nvidia-h200", tracking_uri=uri, code_version="1.0", settings=ForestSettings(trees=5))
    record_models(uri, engine)
    pd.DataFrame([{"m": 512, "n": 512, "k": 512, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nn",
                   "alpha": 1.0, "beta": 0.0, "family": "tiled", "tile": 16}]).to_csv(tmp_path / "away" / "a.csv")  # fmt: skip
    (tmp_path / "a.csv").write_text((tmp_path / "away" / "a.csv").read_text())
    asked = "tiled(tile=16) 512x512x512 f32"
    for line in (
        ["models"], ["models", "show", "nvidia-h200"], ["predict", asked], ["predict", asked, "--file", "a.csv"],
        ["recommend", "700x700x700", "--family", "tiled"], ["models", "compare", "nvidia-h200", "1", "1"],
    ):  # fmt: skip
        here, there = direct(*line, "--json"), remote(*line, "--json")
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr) == (0, "")
        assert steady(json.loads(here.stdout)) == steady(json.loads(there.stdout))
        assert direct(*line).stdout == remote(*line).stdout
    for command, folder in ((direct, tmp_path / "here"), (remote, tmp_path / "there")):
        pulled = json.loads(command("models", "pull", "nvidia-h200", "--to", str(folder), "--json").stdout)
        assert pulled["folder"] == str(folder)
    kept = [
        {file.relative_to(f): file.read_bytes() for file in f.rglob("*") if file.is_file()}
        for f in (tmp_path / "here", tmp_path / "there")
    ]
    assert kept[0] == kept[1]
    assert load_pyfunc().load_model(str(tmp_path / "there"))
    refused(remote("models", "pull", "nvidia-h200", "--to", str(tmp_path / "there")), 2, "is not an empty folder")
    assert json.loads(remote("models", "promote", "nvidia-h200", "1", "--force", "--json").stdout)["version"] == "1"
    refused(remote("models", "rollback", "nvidia-h200"), 4, "has had no champion before")


# --- pages of rows -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("measured")
def test_more_rows_than_an_answer_holds_come_in_pages(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    farm = Remote(api, token=None)
    monkeypatch.setattr(farm, "rows_at_once", 4)
    ids = [r["measurement_id"] for r in all_rows(farm, None, sort="measurement_id", commands=True).rows]
    assert ids == sorted(ids)
    assert len(set(ids)) == 6
    assert len(all_rows(farm, 5, sort="measurement_id").rows) == 5
    assert len(all_rows(farm, 4, sort="-tflops").rows) == 4
    with pytest.raises(Exception, match="leave this out"):
        all_rows(farm, None, sort="-tflops")
    farm.close()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("name", ["csv", "json", "parquet"])
def test_files_are_the_same_in_pages_and_at_once_over_the_database_and_the_api(
    api: str, engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content(farm: Farm, sort: str) -> Any:
        asked = list[object]()
        monkeypatch.setattr(
            farm, "ask", lambda *given, **query: asked.append(query) or type(farm).ask(farm, *given, **query)
        )
        (found,) = contents(EXPORTERS[name].export(farm, {"sort": sort}, None, one_file=True)).values()
        return len(asked), found if name != "parquet" else pq.read_table(io.BytesIO(found))

    def equal(one: Any, other: Any) -> bool:
        if name != "parquet":
            return bool(one == other)
        return bool(one.equals(other, check_metadata=True) and METADATA_KEY in one.schema.metadata)

    opened = Session(Settings(), ServiceUrls(engine.url.render_as_string(hide_password=False), None, None), engine)
    with closing(Remote(api, token=None)) as remote, closing(Access(opened.settings, opened=opened)) as access:
        farms: list[Farm] = [Direct(access), remote]
        whole = [content(farm, "measurement_id") for farm in farms]
        monkeypatch.setattr(results, "PAGE_ROWS", 2)
        paged = [content(farm, "measurement_id") for farm in farms]
        (_, backwards) = content(farms[0], "-measurement_id")
    assert [requests for requests, _ in whole] == [1, 1]
    assert [requests for requests, _ in paged] == [4, 4]
    assert all(equal(one, whole[0][1]) for _, one in (*whole, *paged))
    assert not equal(backwards, whole[0][1])


# --- tokens, and servers that are none ---------------------------------------------------------------


def test_a_token_says_who_may_do_what(engine: Engine, small: campaigns.Stored, tmp_path: Path) -> None:
    with engine.begin() as connection:
        reader = tokens.create(connection, "ann", Role.READ, by="bob")
    with served(engine, tokens=True) as url:
        run = farm_here(tmp_path, "")
        refused(run("status", FARM_API_URL=url), 3, "A token is needed", "FARM_API_TOKEN")
        assert run("status", FARM_API_URL=url, FARM_API_TOKEN=reader).returncode == 0
        told = run("cancel", "small", FARM_API_URL=url, FARM_API_TOKEN=reader)
        refused(told, 3, "The token of ann has the role read. This needs the role submit")
        assert reader not in told.stderr
        with engine.begin() as connection:
            tokens.revoke(connection, "ann")
        refused(run("status", FARM_API_URL=url, FARM_API_TOKEN=reader), 3, "A token is needed")


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("http://127.0.0.1:1", 3, "does not answer"),
        ("127.0.0.1:8000", 2, "FARM_API_URL is '127.0.0.1:8000'"),
        ("http://[half", 2, "FARM_API_URL is 'http://[half'"),
        ("http://host:port", 2, "FARM_API_URL is 'http://host:port'"),
        ("http://ann:secret@host:1", 2, "the token belongs into FARM_API_TOKEN"),
    ],
)
def test_a_wrong_url_is_told(tmp_path: Path, url: str, code: int, says: str) -> None:
    told = farm_here(tmp_path, "")("status", FARM_API_URL=url)
    refused(told, code, says)
    assert "secret" not in told.stderr


@pytest.mark.long
def test_doctor_looks_at_the_api(api: str, tmp_path: Path) -> None:
    run = farm_here(tmp_path, "")
    for url, state in ((api, "ok"), ("http://127.0.0.1:1", "missing")):
        checks = {check["check"]: check for check in json.loads(run("doctor", "--json", FARM_API_URL=url).stdout)}
        assert checks["api"]["state"] == state
    assert "does not answer" in checks["api"]["what"]


def test_what_needs_a_database_says_so(tmp_path: Path) -> None:
    run = farm_here(tmp_path, "")
    for line in (["db", "current"], ["up"], ["models", "sign", "x", "1"]):
        refused(run(*line, FARM_API_URL="http://127.0.0.1:1"), 2, "FARM_API_URL names an API")


# --- every command -----------------------------------------------------------------------------------

LINES = (
    "submit mine.yaml", "results", "best small", "compare CPU-1 CPU-2", "report small", "analyze tiles small",
    f"import dataset {DATA}/examples/datasets/nvidia-h200-paper-all-tiles.parquet",
    f"import gpperf {DATA}/tests/data/gpperf/rtx4070_sgemm.csv.gz",
    f"import aiconfigurator {DATA}/tests/data/aiconfigurator/l40s_vllm-0.24.0.parquet",
    "status", "open small --print", "sentinels", "series --campaign small", "jobs --campaign small", "retry small", "pause small", "resume small",
    "pull ftp://other", "export dataset --type cpu-test --license cc-by-4.0 --output rows", "export aiconfigurator --type cpu-test --output systems",
    "export vllm --type cpu-test --output configs", "export sglang --type cpu-test --output configs",
    "export inductor --type cpu-test --output tables", "export table llama-3.1-8b --type cpu-test --output kernels", "publish --output public", "compare --against public",
    "train nvidia-none", "predict 'tiled(tile=16) 512x512x512 f32'", "recommend 512x512x512",
    "plan llama-3.1-8b --on cpu-test", "models",
    "models pull cpu-test", "models show cpu-test", "models compare cpu-test 1 2", "models promote cpu-test 1",
    "models rollback cpu-test", "health", "devices", "devices list", "devices drain CPU-1", "devices quarantine CPU-1",
    "devices resume CPU-1", "kernels list", "kernels add kernels", "hosts", "hosts add gpu-7", "hosts revoke gpu-7",
    "tokens", "tokens create eve --role submit", "tokens revoke eve", "quotas", "quotas set ann --open-jobs 5",
    "quotas reset ann", "sessions", "sessions revoke --of nobody", "cancel small", "watch small",
    "delete campaign small", "restore campaign small", "delete import tiles.parquet", "restore import tiles.parquet",
    "delete model cpu-test/1", "restore model cpu-test/1", "deleted", "vacuum --older-than 30d", "audit",
    "audit export audit.jsonl", "audit trim --before 365d",
)  # fmt: skip
"""A line for each command that works over the API, in an order in which they can run."""


def test_every_command_is_local_or_has_a_line() -> None:
    tried = [shlex.split(line) for line in LINES]
    leaves = [
        words
        for words, command in every_command()
        if not getattr(command, "commands", None) or getattr(command, "invoke_without_command", False)
    ]
    remote = {words for words in leaves if why_local(words) is None}
    assert remote == {max((w for w in leaves if w == tuple(line[: len(w)])), key=len) for line in tried}


@pytest.mark.usefixtures("measured")
def test_every_command_that_is_not_local_is_answered_by_the_api(engine: Engine, tmp_path: Path) -> None:
    """Away from the farm, with nothing but an address and the token of an administrator."""
    (tmp_path / "mine.yaml").write_text(json.dumps(document(name="mine")))
    kernel = Configuration.parse("cutlass(stages=3) 64x64x32 f16").binary(traits_of_capability((9, 0)))
    assert kernel is not None
    KernelCache(tmp_path / "kernels").put(built_of(kernel))
    with engine.begin() as connection:
        token = tokens.create(connection, "boss", Role.ADMIN, by="test")
    run, failed = farm_here(tmp_path, ""), {}
    with served(engine, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", tokens=True) as url:
        away = {"FARM_API_URL": url, "FARM_API_TOKEN": token, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/none.db"}
        for line in LINES:
            done = run(*shlex.split(line), **away)
            # The farm's own answers, where it lacks a model or refuses a kernel.
            if done.returncode not in (0, 2, 4, 6, 7) or "FARM_API_URL" in done.stderr:
                failed[line] = f"{done.returncode}: {done.stderr[-500:]}"
    assert failed == {}
    for file in ("rows/data/rows.parquet", "public/bands.json"):
        assert (tmp_path / file).is_file()
    with engine.connect() as connection:
        changed = set(connection.execute(text("SELECT operation FROM audit WHERE who = 'boss'")).scalars())
    assert {"imports_import", "tokens_create", "audit_trim", "quotas_set", "devices_drain"} <= changed


def test_a_model_is_trained_by_the_farm_that_has_the_rows(engine: Engine, measured: None, remote: Command) -> None:
    """The command waits for the farm's trainer. This one fails at once."""

    def fail() -> None:
        eventually(lambda: bool(requested()))
        with engine.begin() as connection:
            started = trainings.start(connection, requested()[0])
            assert started is not None
            trainings.finish(connection, started, error="too few shapes")

    def requested() -> list[int]:
        with engine.connect() as connection:
            return trainings.unsent(connection, resend_after=0)

    trainer = threading.Thread(target=fail)
    trainer.start()
    done = remote("train", "--json")
    trainer.join()
    assert done.returncode == 6, done.stderr
    assert json.loads(done.stdout)["cpu-test"]["error"] == "too few shapes"


def test_every_operation_has_a_path_of_its_own() -> None:
    paths = [(known.method, known.path) for known in OPERATIONS.values()]
    assert len(set(paths)) == len(paths)
    assert len({known.name for known in OPERATIONS.values()}) == len(paths)

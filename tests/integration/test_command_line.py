"""Mistakes at the command line: one clear message, the right exit code, no traceback, and nothing changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.cli.commands import every_command
from farm.db import migrate
from support.commands import NOWHERE, Command, farm_here, farm_in, refused

GOOD = {
    "name": "good",
    "targets": "any",
    "problems": {"m": 64, "n": 64, "k": 64, "types": "f32"},
    "kernels": {"family": "blas", "threads": 1},
}


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def program(tmp_path: Path, database_url: str) -> Command:
    """`farm` as a process, whose last words and exit code are Python's own."""
    return farm_in(tmp_path, database_url)


def stored(engine: Engine) -> dict[str, int]:
    tables = ("campaigns", "configurations", "jobs", "batches", "measurements", "trainings", "pools")
    with engine.connect() as connection:
        return {t: connection.execute(text(f"SELECT count(*) FROM {t}")).scalar_one() for t in tables}


def written(tmp_path: Path, document: object) -> str:
    (tmp_path / "campaign.yaml").write_text(document if isinstance(document, str) else json.dumps(document))
    return "campaign.yaml"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({**GOOD, "prioritty": 1}, ("prioritty", "priority")),
        ({**GOOD, "problems": {"m": -5, "n": 64, "k": 64, "types": "f32"}}, ("problems.m", "-5")),
        ({**GOOD, "problems": {"m": 0, "n": 64, "k": 64, "types": "f32"}}, ("problems.m", "0")),
        ({**GOOD, "kernels": {"family": "tiled", "tile": 33}}, ("tile", "33", "1 to 32")),
        (
            {**GOOD, "problems": {"m": "1..10000", "n": "1..10000", "k": "1..10000", "types": "f32"}},
            ("1,000,000,000,000", "10,000"),
        ),
        ("name: [unclosed\n", ("campaign.yaml:", "YAML")),
        ({**GOOD, "problems": {**GOOD["problems"], "layouts": "nx"}}, ("layouts", "nx", "nn")),  # type: ignore[dict-item]
        ({**GOOD, "targets": [{"type": "nvidia-h9000"}]}, ("nvidia-h9000", "farm-worker")),
    ],
    ids=["unknown-field", "negative", "zero", "tile-33", "too-large", "syntax", "layout", "nobody-has-it"],
)
def test_a_bad_campaign_is_refused_and_changes_nothing(
    command: Command, engine: Engine, tmp_path: Path, document: object, says: tuple[str, ...]
) -> None:
    before = stored(engine)
    refused(command("submit", written(tmp_path, document)), 2, *says)
    assert stored(engine) == before


def test_a_file_that_does_not_exist_is_named(program: Command) -> None:
    refused(program("submit", "missing.yaml"), 2, "missing.yaml")


def test_an_unreachable_database_is_named_without_its_password(program: Command, tmp_path: Path) -> None:
    url = "postgresql://ann:hunter2@127.0.0.1:1/farm"
    done = program("submit", written(tmp_path, GOOD), FARM_DATABASE_URL=url)
    refused(done, 3, "127.0.0.1:1", "FARM_DATABASE_URL")
    assert "hunter2" not in done.stderr


def test_a_url_that_is_no_postgres_url_is_refused(command: Command) -> None:
    refused(
        command("status", FARM_DATABASE_URL="mysql://root:hunter2@db/farm"), 2, "FARM_DATABASE_URL", "postgresql://"
    )


def test_an_unreachable_broker_is_named_without_its_password(program: Command, engine: Engine, tmp_path: Path) -> None:
    done = program("run", written(tmp_path, GOOD), FARM_BROKER_URL="redis://:hunter2@127.0.0.1:1/0")
    refused(done, 3, "127.0.0.1:1", "FARM_BROKER_URL")
    assert "hunter2" not in done.stderr
    assert stored(engine)["campaigns"] == 0


def test_a_database_at_another_revision_is_left_alone(command: Command, database_url: str) -> None:
    refused(command("status"), 5, "farm db upgrade", migrate.head())
    assert json.loads(command("db", "upgrade", "--json").stdout) == {"before": None, "after": migrate.head()}
    assert command("status").returncode == 0


def test_a_type_without_rows_is_named_before_the_broker_is_needed(command: Command, engine: Engine) -> None:
    refused(command("train", "nvidia-h200", FARM_BROKER_URL="redis://127.0.0.1:1/0"), 2, "nvidia-h200: no measurements")


def test_a_model_that_does_not_exist_is_named(command: Command) -> None:
    refused(command("predict", "--type", "nvidia-h200", "tiled(tile=16) 64x64x64 f32"), 4, "gemm-forest-nvidia-h200")
    refused(command("models", "pull", "nvidia-h200"), 4, "gemm-forest-nvidia-h200", "farm train")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("status", "nothing"), 4, "nothing"),
        (("cancel", "nothing"), 4, "nothing"),
        (("watch", "nothing"), 4, "nothing"),
        (("pause", "nothing"), 4, "nothing"),
        (("resume", "nothing"), 4, "nothing"),
        (("retry", "nothing"), 4, "nothing"),
        (("retry", "nothing", "--state", "done"), 2, "'dead', 'invalid'"),
        (("jobs",), 2, "--campaign"),
        (("jobs", "-c", "nothing"), 4, "nothing"),
        (("jobs", "-c", "nothing", "--state", "lost"), 2, "'pending'"),
        (("jobs", "-c", "nothing", "--class", "odd"), 2, "'killed'"),
        (("devices", "drain"), 2, "{which}"),
        (("devices", "drain", "GPU-1"), 4, "none yet"),
        (("devices", "resume", "host:gpu01"), 4, "none yet"),
        (("devices", "quarantine", "GPU-1"), 2, "--reason"),
        (("results", "--sort", "speed"), 2, "error: --sort speed: no such column. Columns: "),
        (("plan", "llama-3.1-8b", "--max-latency", "soon"), 2, "error: --max-latency soon: write a time"),
        (("results", "-o", "rows.xlsx"), 2, ".parquet"),
        (("results", "-o", "no/such/folder/rows.csv"), 2, "no/such/folder"),
        (("results", "--format", "parquet"), 2, "--output"),
        (("results", "--campaign", "nothing"), 4, "nothing"),
        (("predict",), 2, "--file"),
        (("predict", "tiled(tile=40) 64x64x64 f32"), 2, "1 to 32"),
        (("predict", "tiles 64"), 2, "tiled(tile=16)"),
        (("predict", "--shape", "64x64"), 2, "64x64"),
        (("predict", "--shape", "64x64x64", "-p", "tile=big"), 2, "tile=16"),
        (("predict", "--shape", "64x64x64", "--family", "magic"), 2, "magic"),
        (("predict", "--shape", "64x64x64", "--scale", "2x128"), 2, "'1x128:128x128'"),
        (("predict", "tiled(tile=16) 64 f32 fused=swish"), 2, "bias+gelu"),
        (("recommend", "64x64x64", "--scale", "2x128"), 2, "'1x128:128x128'"),
        (("recommend", "64x64x64", "--fused", "swish"), 2, "'bias+gelu'"),
        (("measure", "cublaslt() 64 f16 scale=2x128"), 2, "1x128:128x128"),
        (("predict", "--shape", "64x64x64", "--groups", "32*3"), 2, "they have 96 rows together, and m is 64"),
        (("recommend", "64x64x64", "--groups", "32,x"), 2, "write for example 16*8,3,0"),
        (("measure", "cublaslt() 64 f16 tn groups=32*2"), 2, "the layout is nn or nt, not tn"),
    ],
)
def test_a_mistyped_command_says_what_would_be_right(
    command: Command, engine: Engine, arguments: tuple[str, ...], code: int, says: str
) -> None:
    refused(command(*arguments), code, says)


def test_an_empty_farm_says_what_to_do_next(command: Command, program: Command, engine: Engine) -> None:
    assert "farm submit" in program("status").stdout
    assert "farm-worker" in command("devices").stdout
    assert "No measurements" in command("results").stdout
    assert json.loads(command("results", "--json").stdout) == []
    assert json.loads(command("status", "--json").stdout)["campaigns"] == []


@pytest.mark.parametrize("words", [words for words, _ in every_command()], ids=" ".join)
def test_every_command_explains_itself(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = farm_here(tmp_path, NOWHERE)(*words, "--help")
    assert done.returncode == 0
    assert re.search(r"Usage: .*" + r" ".join(words), done.stdout)
    assert "<bool>" not in done.stdout, "a flag takes no value"

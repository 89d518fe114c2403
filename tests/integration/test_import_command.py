"""`farm import dataset`: rows that were measured elsewhere come in whole, once, and stay apart from the farm's own."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

import farm
from farm.campaign import Campaign, PoolSpec, plan
from farm.db import campaigns, devices, gauges, measurements, trainings
from farm.db.campaigns import Stored
from farm.db.states import DeviceState
from farm.devices import Backend, DeviceIdentity
from farm.errors import BadRecording, ImportNotAllowed, NoSuchTarget, RowNotImported
from farm.gemm import ADDED_COLUMNS
from farm.importers import files
from farm.importers.dataset import look
from farm.importers.landing import Import, Outcome, import_table
from farm.kernels import Configuration
from support.batch_steps import land, leased
from support.commands import Command, farm_here, refused
from support.homes import environment, eventually
from support.samples import cpu, document
from trainer.choice import CHOSEN
from trainer.reading import read_test_table, read_training_table
from trainer.table import configurations

PUBLISHED = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
DOMAIN = PUBLISHED.with_name("nvidia-h200-domain.parquet")
GIVEN: list[dict[str, Any]] = pq.read_table(PUBLISHED).to_pylist()
ROWS = len(GIVEN)
CONFIGURATIONS = len({row["configuration_id"] for row in GIVEN})
OF_THE_FILE = f"IMP-{hashlib.sha256(PUBLISHED.read_bytes()).hexdigest()[:16]}-"
CARDS = Counter(OF_THE_FILE + row["device_uuid"] for row in GIVEN)
"""Rows of each device, by the UUID that it has here."""

DERIVED = ("tflops", "energy_mj", "gflops_per_w", "intensity")
OF_THE_IMPORT = ("campaign", "host", "device_uuid", "source", "measurement_id")
TABLES = ("measurements", "configurations", "environments", "devices", "hosts")


KERNELS = PUBLISHED.with_name("nvidia-h200-domain-kernels.parquet")


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def load(engine: Engine, path: Path, **options: Any) -> Import:
    return import_table(engine, look(path), **{"dry_run": False, "progress": lambda _: None, **options})


def counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in TABLES}


NOTHING = dict.fromkeys(TABLES, 0)


def rows_here(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return measurements.read(connection)


def changed(path: Path, **columns: Callable[[list[Any]], list[Any]]) -> Path:
    """The published recording with columns changed, and empty ones of numbers added where it has none of the name."""
    table = pq.read_table(PUBLISHED)
    for name, change in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), pa.float64()))
        at = table.schema.get_field_index(name)
        table = table.set_column(
            at, table.schema.field(at), pa.array(change(table[name].to_pylist()), table.schema.types[at])
        )
    pq.write_table(table, path)
    return path


def with_value(number: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [value if n == number else v for n, v in enumerate(values, start=1)]


# --- what comes in -----------------------------------------------------------------------------------


def test_every_row_comes_in_with_its_columns_in_its_order(engine: Engine) -> None:
    done = load(engine, PUBLISHED)
    assert done.outcome is Outcome.IMPORTED
    assert (done.configurations, done.new_configurations) == (CONFIGURATIONS, CONFIGURATIONS)
    objects = ("parameters", "details", "environment")
    given = [{**row, **{name: json.loads(row[name]) for name in objects}} for row in GIVEN]
    found = rows_here(engine)
    kept = [name for name in given[0] if name not in (*DERIVED, *OF_THE_IMPORT)]
    assert len(kept) == len(given[0]) - len(DERIVED) - len(OF_THE_IMPORT)
    assert [{n: row[n] for n in kept} for row in given] == [
        {n: str(row[n]) if n == "configuration_id" else row[n] for n in kept} for row in found
    ]
    for name in DERIVED:
        assert [row[name] for row in found] == pytest.approx([row[name] for row in given])
    assert {row["source"] for row in found} == {"imported"}
    assert [row["device_uuid"] for row in found] == [OF_THE_FILE + row["device_uuid"] for row in given]
    assert [(row["campaign"], row["host"]) for row in found] == [(None, f"imported:{row['host']}") for row in given]


def test_energy_is_derived_anew_by_the_time_while_power_was_read(engine: Engine, tmp_path: Path) -> None:
    path = changed(
        tmp_path / "slower.parquet",
        power_w=lambda values: [100.0, 200.0, *values[2:]],
        runtime_settled_ms=lambda values: [None, 1000.0, *values[2:]],
    )
    load(engine, path)
    first, second, *_ = rows_here(engine)
    assert (first["runtime_settled_ms"], second["runtime_settled_ms"]) == (None, 1000.0)
    assert first["energy_mj"] == pytest.approx(100 * GIVEN[0]["runtime_ms"])
    assert second["energy_mj"] == pytest.approx(200 * 1000)


def test_repeats_stay_repeats(engine: Engine, tmp_path: Path) -> None:
    table = pq.read_table(PUBLISHED)
    pq.write_table(pa.concat_tables([table, table.slice(0, 30)]), tmp_path / "twice.parquet")
    done = load(engine, tmp_path / "twice.parquet")
    assert (done.configurations, sum(device.rows for device in done.devices)) == (CONFIGURATIONS, ROWS + 30)
    assert counts(engine)["measurements"] == ROWS + 30


def test_a_row_without_a_time_counts_as_measured_when_it_was_imported(engine: Engine, tmp_path: Path) -> None:
    load(engine, changed(tmp_path / "timeless.parquet", measured_at=with_value(3, None)))
    found = [row["measured_at"] for row in rows_here(engine)]
    with engine.connect() as connection:
        now = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    assert timedelta() <= now - found[2] < timedelta(minutes=1)
    assert found[2] not in found[:2] + found[3:]


def test_the_same_content_comes_in_once_and_a_changed_file_is_another_import(engine: Engine, tmp_path: Path) -> None:
    first = load(engine, PUBLISHED)
    (tmp_path / "copy.parquet").write_bytes(PUBLISHED.read_bytes())
    before = counts(engine)
    again = load(engine, tmp_path / "copy.parquet")
    assert (again.outcome, again.uuids) == (Outcome.KNOWN, tuple(sorted(first.uuids)))
    assert counts(engine) == before
    other = load(engine, changed(tmp_path / "other.parquet", seed=with_value(1, 7)))
    assert (other.outcome, other.new_configurations) == (Outcome.IMPORTED, 0)
    assert counts(engine) == {**before, "measurements": 2 * ROWS, "devices": 2 * len(CARDS)}


def test_of_two_imports_at_a_time_one_brings_the_rows(engine: Engine) -> None:
    outcomes = list[Outcome]()
    together = threading.Barrier(2)

    def run() -> None:
        together.wait()
        outcomes.append(load(engine, PUBLISHED).outcome)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [Outcome.IMPORTED, Outcome.KNOWN]
    assert counts(engine)["measurements"] == ROWS


def test_an_export_of_imported_rows_is_a_recording_too(command: Command, engine: Engine, tmp_path: Path) -> None:
    load(engine, PUBLISHED)
    assert command("results", "--type", "nvidia-h200", "-o", "again.parquet").returncode == 0
    facts = [device.identity.facts for device in load(engine, tmp_path / "again.parquet").devices]
    assert {fact["device_uuid"]: fact["sources"] for fact in facts} == {
        uuid: {"imported": rows} for uuid, rows in CARDS.items()
    }


# --- whole or not at all -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("samples", 0, "samples is 0, and must be above 0"),
        ("power_w", -1.0, "power_w is -1.0, and must be above 0"),
        ("runtime_settled_ms", 0.0, "runtime_settled_ms is 0.0, and must be above 0"),
        ("runtime_ms", 0.0, "runtime_ms is 0.0, and must be above 0"),
        ("kernel_hash", "zero\0byte", "kernel_hash holds the character '\\x00', which cannot be stored"),
        ("details", '{"text": "zero\\u0000byte"}', "details holds the character '\\x00', which cannot be stored"),
        ("details", '{"half": ["\\ud800"]}', "details holds the character '\\ud800', which cannot be stored"),
        ("details", '{"waves": NaN}', "details holds the number nan, which JSON does not have"),
        ("environment", '{"cuda": 1e999}', "environment holds the number inf, which JSON does not have"),
        ("family", "magic", "no kernel family 'magic'"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named_and_nothing_is_imported(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: Any, why: str
) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 100)
    path = changed(tmp_path / "bad.parquet", **{column: with_value(242, value)})
    for dry_run in (True, False):
        with pytest.raises(RowNotImported) as raised:
            load(engine, path, dry_run=dry_run)
        assert f"{path}: row 242 cannot be imported: " in str(raised.value)
        assert why in str(raised.value)
    assert counts(engine) == NOTHING
    assert load(engine, PUBLISHED).outcome is Outcome.IMPORTED


def with_added(path: Path, **values: Any) -> Path:
    """The published recording, with these values in its first row and none in the others."""
    table = pq.read_table(PUBLISHED)
    for name, value in values.items():
        column = pa.array([value, *[None] * (len(table) - 1)])
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    pq.write_table(table, path)
    return path


def test_batches_scale_factors_and_fused_operations_come_in(engine: Engine, tmp_path: Path) -> None:
    given = {"batch": 8, "scale": "1x128:128x128", "fused": "bias+silu"}
    load(engine, with_added(tmp_path / "added.parquet", **given))
    first, second, *_ = rows_here(engine)
    assert {name: first[name] for name in given} == given
    assert {name: second[name] for name in ADDED_COLUMNS} == ADDED_COLUMNS
    assert first["configuration_id"] == Configuration.from_columns(first).id


def test_groups_come_in_under_their_usual_text(engine: Engine, tmp_path: Path) -> None:
    m = pq.read_table(PUBLISHED)["m"][0].as_py()
    load(engine, with_added(tmp_path / "added.parquet", groups=f"1,1,{m - 2},0"))
    first, second, *_ = rows_here(engine)
    assert (first["groups"], second["groups"]) == (f"1*2,{m - 2},0", "none")
    assert first["configuration_id"] == Configuration.from_columns(first).id


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"scale": "2x128"},
            "scale is '2x128', which is not the name of scale factors: use one of none, tensor, row, 1x128",
        ),
        (
            {"fused": "swish"},
            "fused is 'swish', which is not the name of fused operations: use one of none, bias, relu",
        ),
        ({"groups": "8,x"}, "The groups 8,x do not work: 'x' is not a number of rows"),
        ({"groups": "8,0"}, "The groups 8,0 do not work: they have 8 rows together, and m is"),
        ({"batch": 0}, "batch is 0; it must be a whole number from 1"),
    ],
)
def test_what_the_farm_does_not_know_of_a_problem_is_named(
    engine: Engine, tmp_path: Path, value: dict[str, Any], why: str
) -> None:
    with pytest.raises(RowNotImported, match=re.escape(f"row 1 cannot be imported: {why}")):
        load(engine, with_added(tmp_path / "bad.parquet", **value))
    assert counts(engine) == NOTHING


def test_an_interrupted_import_leaves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 100)
    seen = list[int]()

    def interrupt(rows: int) -> None:
        seen.append(rows)
        if rows == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(engine, PUBLISHED, progress=interrupt)
    assert seen == [100, 200]
    assert counts(engine) == NOTHING
    assert load(engine, PUBLISHED).outcome is Outcome.IMPORTED


def test_ctrl_c_in_the_middle_ends_the_command_and_leaves_nothing(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "long.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(PUBLISHED)] * 400), path)  # some 10 s
    program = subprocess.Popen(
        [sys.executable, "-m", "farm", "import", "dataset", str(path)],
        env=environment(tmp_path / ".farm", FARM_DATABASE_URL=database_url),
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_copying() -> bool:
        with engine.connect() as connection:
            query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^COPY'"
            return bool(connection.execute(text(query)).scalar_one())

    eventually(is_copying, 60)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=120)
    assert said.strip() == f"Interrupted. Nothing of {path} was imported."
    # A shell says 130 of both: Python may end by the signal itself where it came while a module was being loaded.
    assert program.returncode in (130, -signal.SIGINT)
    assert counts(engine) == NOTHING


def test_a_file_that_changes_while_it_is_read_is_not_imported(engine: Engine, tmp_path: Path) -> None:
    path = changed(tmp_path / "moving.parquet", seed=with_value(1, 7))
    with pytest.raises(BadRecording, match="it was changed while it was read"):
        load(engine, path, progress=lambda _: path.write_bytes(PUBLISHED.read_bytes()))
    assert counts(engine) == NOTHING


def test_a_lost_connection_leaves_nothing_and_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 100)

    def lose(_: int) -> None:
        with engine.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND xact_start < now()"
                    " AND datname = current_database()"
                )
            )

    with pytest.raises(OperationalError) as raised:
        load(engine, PUBLISHED, progress=lose)
    assert raised.value.connection_invalidated
    assert counts(engine) == NOTHING


def test_a_dry_run_says_what_would_come_and_stores_nothing(command: Command, engine: Engine) -> None:
    done = command("import", "dataset", str(PUBLISHED), "--dry-run", "--json")
    (said,) = json.loads(done.stdout)
    assert (said["outcome"], said["rows"], said["new_configurations"]) == ("importable", ROWS, CONFIGURATIONS)
    assert {device["uuid"]: device["rows"] for device in said["devices"]} == CARDS
    assert f"{ROWS:,} rows of {CONFIGURATIONS:,} configurations (0 known here) would be imported" in done.stderr
    assert load(engine, PUBLISHED, dry_run=True).outcome is Outcome.IMPORTABLE
    assert counts(engine) == NOTHING


def test_a_role_that_may_not_write_is_told_so(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("REVOKE INSERT ON measurements FROM CURRENT_USER"))
    with pytest.raises(ImportNotAllowed, match="permission denied for table measurements"):
        load(engine, PUBLISHED)
    assert counts(engine) == NOTHING


# --- apart from the farm's own -----------------------------------------------------------------------


def test_devices_of_an_import_are_never_live(engine: Engine) -> None:
    load(engine, PUBLISHED)
    with engine.begin() as connection:
        for resumed in (False, True):
            assert devices.live(connection, silent_after=1e6) == []
            assert devices.live_hosts(connection, silent_after=1e6) == set()
            assert sum(n["live"] for n in gauges.read(connection, silent_after=1e6).devices.values()) == 0
            if not resumed:
                for row in devices.overview(connection, silent_after=15):
                    assert devices.set_state(connection, row["device_id"], DeviceState.ACTIVE, None)


@pytest.mark.parametrize(
    "target",
    [
        "any",
        {"type": "nvidia-h200"},
        {"each": "nvidia-h200"},
        {"host": f"imported:{GIVEN[0]['host']}"},
        {"device": OF_THE_FILE + GIVEN[0]["device_uuid"]},
    ],
    ids=["any", "type", "each", "host", "device"],
)
def test_devices_of_an_import_are_no_targets(engine: Engine, target: str | dict[str, str]) -> None:
    assert set(load(engine, PUBLISHED).uuids) == set(CARDS)
    with engine.connect() as connection:
        hosts = connection.execute(text("SELECT name FROM hosts")).scalars().all()
    assert f"imported:{GIVEN[0]['host']}" in hosts
    asked = Campaign.from_document(
        document(targets=[target] if isinstance(target, dict) else target, kernels=[{"family": "tiled", "tile": 16}])
    )
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    with pytest.raises(NoSuchTarget, match="no worker has announced a device yet"):
        plan(asked, known, allow_missing=False)


def test_a_campaign_for_any_device_has_the_pool_of_the_farms_own(
    engine: Engine, announce: Callable[[DeviceIdentity], int]
) -> None:
    load(engine, PUBLISHED)
    traits = look(PUBLISHED).provenance.traits
    announce(replace(cpu(), uuid="GPU-1", type="nvidia-l4", backend=Backend.CUDA, traits=traits))
    asked = Campaign.from_document(document(kernels=[{"family": "tiled", "tile": 16}]))
    with engine.connect() as connection:
        known = campaigns.known_devices(connection)
    jobs = list(plan(asked, known, allow_missing=False).jobs())
    assert {job.pool for job in jobs} == {PoolSpec.of_types(["nvidia-l4"])}


def test_models_learn_from_imported_rows_only_when_asked(engine: Engine) -> None:
    load(engine, PUBLISHED)
    with engine.connect() as connection:
        assert trainings.trainable_types(connection, campaign_id=None, any_source=False) == []
        assert len(read_training_table(engine, "nvidia-h200")) == 0
        assert trainings.trainable_types(connection, campaign_id=None, any_source=True) == ["nvidia-h200"]
        table = read_training_table(engine, "nvidia-h200", any_source=True)
    assert (len(table), set(table["source"])) == (ROWS, {"imported"})


def test_models_learn_what_a_library_chose_from_imported_rows(engine: Engine, tmp_path: Path) -> None:
    recorded = pq.read_table(DOMAIN, filters=[("family", "=", "cublaslt")]).slice(0, 5)
    pq.write_table(recorded, tmp_path / "cublaslt.parquet")
    load(engine, tmp_path / "cublaslt.parquet")
    table = read_training_table(engine, "nvidia-h200", any_source=True)
    stored, of_file = (configurations(each)[list(CHOSEN)] for each in (table, recorded.to_pandas()))
    assert stored.notna().any(axis=None)
    assert np.array_equal(stored, of_file, equal_nan=True)


def test_rows_of_an_imported_test_set_evaluate_models_and_none_learns_from_their_problems(
    engine: Engine, tmp_path: Path
) -> None:
    learned, tested = (
        pq.read_table(DOMAIN.with_name(f"nvidia-h200-{name}.parquet")) for name in ("domain", "domain-test")
    )
    details = tested.schema.get_field_index("details")
    unlabelled = tested.set_column(details, "details", pa.array(["{}"] * len(tested)))
    files = {"learned": learned.slice(0, 30), "tested": tested.slice(0, 20), "unlabelled": unlabelled.slice(0, 5)}
    for name, rows in files.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    assert [load(engine, tmp_path / f"{name}.parquet").test_rows for name in files] == [0, 20, 0]
    table = read_training_table(engine, "nvidia-h200", any_source=True)
    test = read_test_table(engine, "nvidia-h200", any_source=True)
    assert len(read_test_table(engine, "nvidia-h200")) == 0
    assert sorted(table["m"]) == sorted(files["learned"]["m"].to_pylist())
    assert sorted(test["m"]) == sorted(files["tested"]["m"].to_pylist())


def test_the_farms_own_rows_keep_their_source_beside_imported_ones(
    engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document()))
    land(engine, leased(engine, device))
    load(engine, PUBLISHED)
    found = rows_here(engine)
    assert [row["source"] for row in found] == ["measured"] * 12 + ["imported"] * ROWS
    assert {row["device_uuid"] for row in found[:12]} == {"CPU-1"}


# --- the command -------------------------------------------------------------------------------------


def test_the_command_says_how_many_rows_are_of_a_test_set(command: Command, engine: Engine) -> None:
    done = command("import", "dataset", str(KERNELS), "--dry-run")
    assert "1,204 of them are of a test set: models do not learn from their problems." in done.stderr
    assert json.loads(command("import", "dataset", str(KERNELS), "--dry-run", "--json").stdout)[0]["test_rows"] == 1204


def test_the_command_says_what_came_and_lists_show_it_as_imported(command: Command, engine: Engine) -> None:
    done = command("import", "dataset", str(PUBLISHED))
    assert done.returncode == 0
    assert f"{ROWS:,} rows of {CONFIGURATIONS:,} configurations (0 known here) are imported" in done.stderr
    assert {uuid: done.stdout.count(uuid) for uuid in CARDS} == dict.fromkeys(CARDS, 1)
    assert done.stdout.count("IMP-") == len(CARDS)
    assert "of a test set" not in done.stderr
    again = command("import", "dataset", str(PUBLISHED), str(PUBLISHED), "--json")
    assert [(one["outcome"], one["device_uuids"]) for one in json.loads(again.stdout)] == [("known", sorted(CARDS))] * 2
    assert again.stderr.count("was imported before") == 2
    hidden = command("devices")
    assert "IMP-" not in hidden.stdout
    assert f"{len(CARDS)} imported devices are not listed. To list all devices: farm devices --all" in hidden.stderr
    listed = command("devices", "--all").stdout
    assert listed.count(f"imported from {PUBLISHED.name}") == len(CARDS)
    here = json.loads(command("devices", "--json").stdout)
    assert {device["uuid"]: device["measurements"] for device in here} == CARDS
    assert {(device["live"], device["facts"]["imported_from"]) for device in here} == {(False, PUBLISHED.name)}
    assert "Some rows are recorded or imported" in command("results").stdout


def test_no_file_is_begun_where_one_is_not_there_or_none_is_a_recording(
    command: Command, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("m,n,k\n")
    (tmp_path / "more.csv").write_text("m,n,k\n")
    refused(command("import", "dataset", str(PUBLISHED), "no.parquet"), 2, "there is no such file")
    refused(command("import", "dataset", "rows.csv", "more.csv"), 2, "rows.csv is not a", "more.csv is not a")
    assert counts(engine) == NOTHING


def test_all_files_of_the_datasets_come_in_but_those_of_sentinels_which_are_named(
    command: Command, engine: Engine
) -> None:
    files = sorted(PUBLISHED.parent.glob("*compare-cards*.parquet"))
    of_sentinels = [path.name for path in files if path.stem.endswith("-sentinels")]
    assert len(of_sentinels) == 2
    done = command("import", "dataset", "--json", *map(str, files))
    assert done.returncode == 0, done.stderr
    outcomes = {Path(one["file"]).name: one["outcome"] for one in json.loads(done.stdout)}
    assert {name for name, outcome in outcomes.items() if outcome == "left out"} == set(of_sentinels)
    assert {outcomes[path.name] for path in files if path.name not in of_sentinels} == {"imported"}
    for name in of_sentinels:
        assert f"{name} lacks the columns family, parameters, m, n, k" in done.stderr
    assert counts(engine)["measurements"] == 612


def test_a_refused_row_leaves_the_other_files_imported(command: Command, engine: Engine, tmp_path: Path) -> None:
    changed(tmp_path / "bad.parquet", samples=with_value(9, 0))
    done = command("import", "dataset", "bad.parquet", str(PUBLISHED))
    assert done.returncode == 2
    assert f"{CONFIGURATIONS:,} configurations (0 known here) are imported" in done.stderr
    assert "bad.parquet: row 9 cannot be imported" in done.stderr
    assert counts(engine)["measurements"] == ROWS

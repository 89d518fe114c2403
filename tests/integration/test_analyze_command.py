"""`farm analyze tiles` by hand: on a campaign in Postgres, and on the recording in the project."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

import farm
from farm.campaign import Campaign
from farm.db import measurements
from farm.db.campaigns import Stored
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits
from support.commands import NOWHERE, Command, farm_here, farm_in, refused
from support.samples import document, row

RECORDING = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
SHAPE = ["m", "n", "k"]
TIMES_MS = {4: 4.0, 8: 1.0, 16: 2.0}
POWERS_W = {4: 100.0, 8: 300.0, 16: 110.0}


@pytest.fixture
def on_file(tmp_path: Path) -> Command:
    """`farm` where no database answers."""
    return farm_here(tmp_path, NOWHERE)


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


def card(number: int) -> DeviceIdentity:
    traits = DeviceTraits(
        kind=DeviceKind.CUDA,
        memory_bytes=2**34,
        compute_capability=(9, 0),
        max_threads_per_block=1024,
        shared_memory_per_block_bytes=49152,
    )
    return DeviceIdentity(uuid=f"GPU-{number}", type="test-card", name="Card", backend=Backend.CUDA, traits=traits)


@pytest.fixture
def measured(engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]) -> Engine:
    """Three tiles on two cards, of which the second takes three times as long."""
    cards = [announce(card(1)), announce(card(2))]
    problems = {"m": 64, "n": 64, "k": 64, "types": "f32"}
    kernels = [{"family": "tiled", "tile": list(TIMES_MS)}]
    asked = document(name="tiles", problems=problems, kernels=kernels, targets=[{"each": "test-card"}])
    campaign_id = submit(Campaign.from_document(asked)).campaign_id
    with engine.begin() as connection:
        found = connection.execute(text("SELECT id, (parameters->>'tile')::int FROM configurations")).all()
        rows = [
            (None, campaign_id, UUID(str(i)), device_id,
             row(TIMES_MS[tile] * scale, power_w=POWERS_W[tile], details={"occupancy": tile / 16, "registers": 32}))
            for i, tile in found for device_id, scale in zip(cards, (1, 3), strict=True)
        ]  # fmt: skip
        measurements.insert(connection, rows)
    return engine


def test_a_campaign_is_studied_over_its_devices_and_on_one(command: Command, measured: Engine) -> None:
    done = command("analyze", "tiles", "tiles", "--json")
    assert done.returncode == 0, done.stderr
    assert "tile 1 was not measured; the baseline is tile 4" in done.stderr
    (kind,) = json.loads(done.stdout)["device_types"]
    assert (kind["device_type"], kind["rows"], kind["devices"], kind["baseline"]) == ("test-card", 6, 2, 4)
    (problem,) = kind["problems"]
    assert (problem["m"], problem["ab"], problem["layout"], problem["beta"]) == (64, "f32", "nn", 0)
    assert (problem["fastest"], problem["thriftiest"], problem["trade"]["time_change_pct"]) == (8, 16, 100)
    eight = problem["tiles"][1]
    assert (eight["runtime_ms"], eight["speed_up"], eight["power_change_pct"], eight["energy_change_pct"]) == (
        2,
        4,
        200,
        -25,
    )
    assert (eight["occupancy"], eight["registers"], eight["shared_bytes"]) == (0.5, 32, 512)

    one = json.loads(command("analyze", "tiles", "tiles", "--device", "GPU-2", "--baseline", "8", "--json").stdout)
    (problem,) = one["device_types"][0]["problems"]
    assert [(tile["runtime_ms"], tile["devices"]) for tile in problem["tiles"]] == [(12, 1), (3, 1), (6, 1)]
    assert problem["baseline"] == 8


def test_energy_of_a_tile_is_that_of_the_time_while_power_was_read(command: Command, measured: Engine) -> None:
    with measured.begin() as connection:
        (device_id,) = connection.execute(text("SELECT id FROM devices WHERE uuid = 'GPU-1'")).one()
        i = connection.execute(text("SELECT id FROM configurations WHERE parameters->>'tile' = '8'")).scalar_one()
        campaign_id = connection.execute(text("SELECT id FROM campaigns")).scalar_one()
        slower = row(TIMES_MS[8], power_w=POWERS_W[8], runtime_settled_ms=1.5 * TIMES_MS[8])
        measurements.insert(connection, [(None, campaign_id, UUID(str(i)), device_id, slower)])
    done = command("analyze", "tiles", "tiles", "--device", "GPU-1", "--json")
    (problem,) = json.loads(done.stdout)["device_types"][0]["problems"]
    eight = problem["tiles"][1]
    assert (eight["rows"], eight["runtime_ms"]) == (2, TIMES_MS[8])
    assert eight["energy_mj"] == pytest.approx(1.25 * TIMES_MS[8] * POWERS_W[8])


def test_people_read_where_the_fastest_tile_is_not_the_thriftiest(command: Command, measured: Engine) -> None:
    done = command("analyze", "tiles", "tiles")
    assert "test-card: 64x64x64 f32 nn, against tile 4" in done.stdout
    assert "Tile 16 takes 26.7% less energy than tile 8, and 100% more time." in done.stdout
    assert "1 problem, 6 rows of 2 devices" in done.stdout


def test_what_a_campaign_does_not_have_is_named(command: Command, measured: Engine) -> None:
    refused(command("analyze", "tiles", "nothing"), 4, "nothing", "tiles")
    refused(command("analyze", "tiles", "tiles", "--device-type", "h9000"), 4, "h9000", "test-card")
    refused(command("analyze", "tiles", "tiles", "--device", "GPU-7"), 4, "GPU-7", "GPU-1, GPU-2")
    refused(command("analyze", "tiles", "tiles", "--device", "GPU"), 2, "GPU-1, GPU-2")


def test_a_campaign_without_rows_of_the_family_says_so(
    command: Command, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]
) -> None:
    announce(card(1))
    submit(Campaign.from_document(document(kernels=[{"family": "tiled", "tile": 8}])))
    refused(command("analyze", "tiles", "small"), 4, "Campaign small", "no measurements of the family tiled")


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    """The rows of `RECORDING`, and the tile of each."""
    rows: pd.DataFrame = pq.read_table(RECORDING).to_pandas()
    return rows.assign(tile=[json.loads(parameters)["tile"] for parameters in rows["parameters"]])


@pytest.fixture(scope="module")
def medians(recorded: pd.DataFrame) -> pd.DataFrame:
    """By shape and tile, the median over devices of their medians; energy as the file has it."""
    figures = ["runtime_ms", "power_w", "energy_mj"]
    of_devices = recorded.groupby([*SHAPE, "tile", "device_uuid"])[figures].median()
    return of_devices.groupby([*SHAPE, "tile"]).median()


@pytest.fixture(scope="module")
def summary(medians: pd.DataFrame) -> pd.DataFrame:
    """By tile, what `medians` come to over all shapes, against tile 1."""
    times, powers, energies = (medians[name].unstack("tile") for name in medians)
    columns = {
        "problems": times.count(),
        "fastest": times.idxmin(axis="columns").value_counts(),
        "thriftiest": energies.idxmin(axis="columns").value_counts(),
        "speed_up": np.exp(-np.log(times.div(times[1], axis="index")).mean()),
        "energy_ratio": np.exp(np.log(energies.div(energies[1], axis="index")).mean()),
        "power_min_w": powers.min(),
        "power_max_w": powers.max(),
    }
    return pd.DataFrame(columns, index=times.columns).fillna({"fastest": 0, "thriftiest": 0})


def test_a_recording_is_studied_without_a_database(on_file: Command, recorded: pd.DataFrame) -> None:
    done = on_file("analyze", "tiles", "--recording", str(RECORDING), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(pq.read_schema(RECORDING).metadata[b"gemm-farm"])["provenance"] in done.stderr
    (kind,) = json.loads(done.stdout)["device_types"]
    devices, shapes = recorded["device_uuid"].nunique(), len(recorded[SHAPE].drop_duplicates())
    assert (kind["device_type"], kind["baseline"]) == ("nvidia-h200", 1)
    assert (kind["rows"], kind["devices"], len(kind["problems"])) == (len(recorded), devices, shapes)
    assert [tile["tile"] for tile in kind["paper"]["tiles"]] == [1, 4, 8, 16, 32]


def test_figures_of_a_recording_are_those_of_its_rows(
    on_file: Command, recorded: pd.DataFrame, medians: pd.DataFrame, summary: pd.DataFrame
) -> None:
    (kind,) = json.loads(on_file("analyze", "tiles", "--recording", str(RECORDING), "--json").stdout)["device_types"]
    tiles = [{**problem, **tile} for problem in kind["problems"] for tile in problem["tiles"]]
    found = pd.DataFrame(tiles).set_index([*SHAPE, "tile"]).sort_index()
    of = medians.index.to_frame()
    flops = 2 * of["m"] * of["n"] * of["k"]
    against_one = medians / medians.groupby(SHAPE).transform(lambda of_shape: of_shape.iloc[0])
    rows = recorded.groupby([*SHAPE, "tile"])["device_uuid"]
    expected = medians.assign(
        rows=rows.size(),
        devices=rows.nunique(),
        tflops=flops / medians["runtime_ms"] / 1e9,
        gflops_per_w=flops / medians["energy_mj"] / 1e6,
        shared_bytes=2 * of["tile"] ** 2 * 4,
        speed_up=1 / against_one["runtime_ms"],
        power_change_pct=100 * against_one["power_w"] - 100,
        energy_change_pct=100 * against_one["energy_mj"] - 100,
    )
    pd.testing.assert_frame_equal(found[list(expected)], expected, check_dtype=False, rtol=1e-9, atol=1e-9)
    over_shapes = pd.DataFrame(kind["summary"]).set_index("tile")
    pd.testing.assert_frame_equal(over_shapes, summary, check_dtype=False, rtol=1e-9)

    problems = pd.DataFrame(kind["problems"]).set_index(SHAPE).sort_index()
    fastest, thriftiest = (medians[name].unstack("tile").idxmin(axis="columns") for name in ("runtime_ms", "energy_mj"))
    assert problems["fastest"].to_dict() == fastest.to_dict()
    assert problems["thriftiest"].to_dict() == thriftiest.to_dict()
    assert problems["trade"].notna().to_dict() == (fastest != thriftiest).to_dict()


def cells(line: str) -> list[str]:
    """What stands in a row of a printed table."""
    return re.split(r"\s{2,}", line.strip())


def test_people_read_a_recording_as_tables(on_file: Command, recorded: pd.DataFrame, summary: pd.DataFrame) -> None:
    done = on_file("analyze", "tiles", "--recording", str(RECORDING))
    shapes = recorded[SHAPE].drop_duplicates()
    devices = recorded["device_uuid"].nunique()
    lines = done.stdout.splitlines()
    titles = {line.strip() for line in lines if line.rstrip().endswith("f32 nn, against tile 1")}
    assert titles == {f"nvidia-h200: {m}x{n}x{k} f32 nn, against tile 1" for m, n, k in shapes.to_numpy()}
    counted = f"{len(shapes)} problems, {len(recorded):,} rows of {devices} device{'' if devices == 1 else 's'};"
    assert any(line.startswith(counted) for line in lines)

    over_all = lines.index(next(line for line in lines if line.startswith("nvidia-h200: all problems, against tile 1")))
    beside = lines.index(next(line for line in lines if line.startswith("nvidia-h200 compared with the paper")))
    over_shapes = {tile: rest for tile, *rest in map(cells, lines[over_all:beside])}
    beside_paper = {tile: rest for tile, *rest in map(cells, lines[beside:])}
    for tile, of_tile in summary.iterrows():
        problems, fastest, thriftiest = (f"{of_tile[name]:.0f}" for name in ("problems", "fastest", "thriftiest"))
        speed_up, energy_ratio = f"{of_tile['speed_up']:.4g}", f"{of_tile['energy_ratio']:.4g}"
        power = f"{of_tile['power_min_w']:.0f}–{of_tile['power_max_w']:.0f}"
        assert over_shapes[str(tile)] == [problems, fastest, speed_up, thriftiest, energy_ratio, power]
        if tile in (1, 4, 8, 16, 32):
            ours = [speed_up, f"{fastest} of {problems}", energy_ratio, f"{thriftiest} of {problems}", power]
            assert beside_paper[str(tile)][::2] == ours


def test_pictures_are_drawn_and_their_paths_printed(command: Command, measured: Engine, tmp_path: Path) -> None:
    done = command("analyze", "tiles", "tiles", "--plot", "pictures")
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.endswith(".png")]
    assert printed == ["pictures/test-card_64x64x64_f32_nn.png", "pictures/test-card_tiles.png"]
    assert all((tmp_path / path).stat().st_size > 10_000 for path in printed)


def test_a_new_process_reads_a_recording_within_its_bound_of_memory(tmp_path: Path) -> None:
    """Arrow's allocator reserves memory and its threads start when the first file is read."""
    done = farm_in(tmp_path, NOWHERE, timeout_s=120)("analyze", "tiles", "--recording", str(RECORDING), "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "--recording FILE"),
        (("some", "--recording", "rows.parquet"), 2, "either a campaign"),
        (("--recording", "rows.parquet"), 2, "there is no such file"),
        (("--recording", str(RECORDING), "--device-type", "h9000"), 4, "nvidia-h200"),
        (("--recording", str(RECORDING), "--device", "none"), 4, "GPU-"),
        (("--recording", str(RECORDING), "--baseline", "33"), 2, "--baseline"),
        (("some",), 3, "127.0.0.1:1"),
    ],
    ids=lambda value: " ".join(value)[-30:] if isinstance(value, tuple) else None,
)
def test_a_mistake_has_one_clear_message(on_file: Command, arguments: tuple[str, ...], code: int, says: str) -> None:
    refused(on_file("analyze", "tiles", *arguments), code, says)

"""The views that docs/sql.md describes: what they say, and that the document is true."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.coordinator.rounds import Rounds
from farm.db import batches, campaigns, roles, sentinels, throughput
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.fusion import Fusion
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.groups import Groups
from farm.kernels import Configuration, problem_columns, problem_of
from farm.measurement import Source
from farm.report import best
from farm.scale import Scale
from farm.sparsity import Sparsity
from support.batch_steps import claim, form, land, leased
from support.samples import card, document, landed, row
from support.searches import measure, wanted
from support.sql_document import DOCUMENT, statements

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]


def asked(engine: Engine, statement: str, **parameters: Any) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(found) for found in connection.execute(text(statement), parameters).mappings()]


# --- v_best_kernels ------------------------------------------------------------------------------------

SQUARE = "64x64x64 f32"


def test_the_fastest_kernel_by_the_median_of_its_rows_beside_cublaslts_choice(
    engine: Engine, announce: Announce
) -> None:
    first, second, third = (announce(card(number)) for number in (1, 2, 3))
    for device, ms in ((first, 1.0), (second, 5.0), (third, 6.0)):  # once by luck the fastest of all
        landed(engine, device, [(f"tiled(tile=16) {SQUARE}", row(ms))])
    for device, ms, power in ((first, 2.0, 100.0), (second, 4.0, 300.0), (third, 3.0, None)):
        changes = {} if power is None else {"power_w": power, "runtime_settled_ms": 2 * ms}
        landed(engine, device, [(f"tiled(tile=32) {SQUARE}", row(ms, **changes))])
    landed(
        engine, first, [(f"cublaslt(algorithm=0) {SQUARE}", row(4.5)), (f"cublaslt(algorithm=1) {SQUARE}", row(4.0))]
    )
    landed(engine, first, [(f"tiled(tile=8) {SQUARE}", row(0.1, source=Source.SENTINEL))])
    (found,) = asked(engine, "SELECT * FROM v_best_kernels")
    assert (found["family"], found["parameters"], found["runtime_ms"]) == ("tiled", {"tile": 32}, 3.0)
    assert (found["rows"], found["kernels"], found["power_w"]) == (3, 4, 200.0)
    assert found["energy_mj"] == pytest.approx((100 * 4 + 300 * 8) / 2)
    assert found["tflops"] == pytest.approx(2 * 64**3 / 3e-3 / 1e12)
    assert (found["cublaslt_ms"], found["speed_up"]) == (4.5, 1.5)


def test_what_cannot_be_compared_has_a_best_kernel_of_its_own(engine: Engine, announce: Announce) -> None:
    device, other = announce(card(1)), announce(card(2, kind="nvidia-other"))
    conditions: list[dict[str, Any]] = [
        {},
        {"source": Source.RECORDED},
        {"distribution": "zeros"},
        {"l2": "warm"},
        {"clock_policy": "locked:1000"},
    ]
    for ms, changes in enumerate(conditions, 1):
        landed(engine, device, [(f"tiled(tile=16) {SQUARE}", row(ms, **changes))])
    landed(engine, other, [(f"tiled(tile=32) {SQUARE}", row(6)), (f"tiled(tile=16) {SQUARE} tn", row(7))])
    landed(engine, other, [("tiled(tile=16) 64x64x64 f32 nn alpha=2 beta=1", row(8))])
    found = asked(engine, "SELECT runtime_ms, kernels, cublaslt_ms, speed_up FROM v_best_kernels ORDER BY runtime_ms")
    assert [tuple(one.values()) for one in found] == [(n, 1, None, None) for n in range(1, 9)]


def test_short_rounds_are_left_out_and_the_view_agrees_with_farm_best(
    engine: Engine, announce: Announce, submit: Submit
) -> None:
    device = announce(card(capability=(9, 0)))
    campaign = wanted()
    stored = submit(campaign)
    measure(engine, device)
    assert asked(engine, "SELECT * FROM v_best_kernels") == []
    for _ in range(2):
        Rounds(engine).reconcile()
        measure(engine, device)
    with engine.connect() as connection:
        expected = best.best(connection, stored.campaign_id, campaign)
    found = asked(
        engine, "SELECT m, family, parameters, runtime_ms, cublaslt_ms, kernels FROM v_best_kernels ORDER BY m"
    )
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        # There, cuBLASLt is what a search without it in its grid is held against; here it is a kernel like others.
        assert other.baseline is not None
        assert one["cublaslt_ms"] == other.baseline.runtime_ms
        assert (one["family"], one["runtime_ms"]) == ("cublaslt", other.baseline.runtime_ms)
        assert one["kernels"] == 5


# --- v_device_health -----------------------------------------------------------------------------------


def health(engine: Engine) -> dict[str, dict[str, Any]]:
    return {found["device_uuid"]: found for found in asked(engine, "SELECT * FROM v_device_health")}


def test_a_device_that_did_nothing_has_a_line(engine: Engine, announce: Announce) -> None:
    announce(card())
    found = health(engine)["GPU-1"]
    assert (found["host"], found["state"], found["rows"], found["rows_last_day"]) == ("here", "active", 0, 0)
    assert 0 <= found["silent_s"] < 600
    for name in ("sm_clock_mhz", "temperature_c", "power_w", "throttled_share", "power_ratio", "sentinel_ratio"):
        assert found[name] is None, name


def test_what_landed_is_counted_before_and_after_it_is_folded(engine: Engine, device: int, small: Stored) -> None:
    land(engine, leased(engine, device, size=5))
    for _ in range(2):
        found = health(engine)["CPU-1"]
        assert (found["rows"], found["rows_last_hour"], found["rows_last_day"]) == (5, 5, 5)
        with engine.begin() as connection:
            batches.fold(connection)
    with engine.begin() as connection:
        connection.execute(text("UPDATE batches SET finished_at = finished_at - interval '2 hours'"))
    found = health(engine)["CPU-1"]
    assert (found["rows"], found["rows_last_hour"], found["rows_last_day"]) == (5, 0, 5)


def test_clocks_heat_throttling_and_power_of_the_latest_rows_beside_others_of_the_type(
    engine: Engine, announce: Announce
) -> None:
    shapes = [f"tiled(tile=16) {m}x64x64 f32" for m in (32, 64, 96, 128)]
    power = {1: 100.0, 2: 100.0, 3: 120.0}
    for number, drawn in power.items():
        device = announce(card(number))
        old = [(shapes[0], row(1, sm_clock_mhz=1, temperature_c=1, power_w=1.0, throttle_reasons="old"))] * 200
        landed(engine, device, old)
        for n in range(200):
            changes = {"sm_clock_mhz": 1500 + n % 2 * 100, "temperature_c": 60 + number, "power_w": drawn + n % 4}
            reasons = None if n < 100 else "sw_power_cap" if n < 125 else "none"
            landed(engine, device, [(shapes[n % 4], row(1, throttle_reasons=reasons, **changes))])
    landed(engine, announce(card(9, kind="nvidia-alone")), [(shapes[0], row(1, power_w=5.0))])
    found = health(engine)
    assert (found["GPU-1"]["sm_clock_mhz"], found["GPU-1"]["temperature_c"]) == (1550, 61)
    assert found["GPU-1"]["throttled_share"] == pytest.approx(0.25)
    assert found["GPU-1"]["power_ratio"] == pytest.approx(1)
    assert found["GPU-3"]["power_ratio"] == pytest.approx(1.2, abs=0.01)
    assert [found[uuid]["power_configurations"] for uuid in sorted(found)] == [4, 4, 4, 0]
    assert found["GPU-9"]["power_ratio"] is None


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"throttle_reasons": "sw_power_cap"}, 1.0),
        ({"throttle_reasons": "sw_power_cap", "power_limited": False}, 0.0),
        ({"throttle_reasons": "none", "power_limited": True}, 1.0),
        ({"throttle_reasons": "sw_power_cap,hw_thermal", "power_limited": False}, 1.0),
        ({"throttle_reasons": "none"}, 0.0),
        ({"power_limited": False}, 0.0),
        ({}, None),
    ],
)
def test_the_power_limit_s_clock_event_counts_only_where_rows_do_not_say_whether_it_slows_them(
    engine: Engine, announce: Announce, changes: dict[str, Any], share: float | None
) -> None:
    landed(engine, announce(card(1)), [("tiled(tile=16) 64x64x64 f32", row(1, **changes))])
    assert health(engine)["GPU-1"]["throttled_share"] == share


def test_power_is_not_compared_with_that_of_another_protocol(engine: Engine, announce: Announce) -> None:
    for number, protocol in ((1, "farm"), (2, "fixed-frequency")):
        landed(
            engine, announce(card(number)), [("tiled(tile=16) 64x64x64 f32", row(1, power_w=5.0, protocol=protocol))]
        )
    assert [found["power_configurations"] for found in health(engine).values()] == [0, 0]


def test_power_is_compared_under_the_same_conditions_alone(engine: Engine, announce: Announce) -> None:
    first, second = announce(card(1)), announce(card(2))
    conditions = ({}, {"clock_policy": "locked:900"}, {"distribution": "zeros"}, {"source": Source.RECORDED})
    for n, changes in enumerate(conditions):
        landed(
            engine,
            first if n == 0 else second,
            [(f"tiled(tile=16) {SQUARE}", row(1, power_w=100.0 * (n + 1), **changes))],
        )
    assert [one["power_configurations"] for one in health(engine).values()] == [0, 0]


def test_sentinels_are_those_that_farm_sentinels_shows(engine: Engine, device: int, submit: Submit) -> None:
    old = submit(Campaign.from_document(document(name="old"))).campaign_id
    new = submit(
        Campaign.from_document(document(name="new", problems={"m": 32, "n": 32, "k": 32, "types": "f32"}))
    ).campaign_id
    submit(Campaign.from_document(document(name="none", problems={"m": 16, "n": 32, "k": 32, "types": "f32"})))

    def sentinel(campaign_id: int, ms: float, shape: str = SQUARE) -> None:
        rows = [(f"blas(threads=1) {shape}", row(ms, source=Source.SENTINEL))]
        landed(engine, device, rows, campaign_id=campaign_id)

    for ms in (9.0, 9.0, 9.0):
        sentinel(old, ms)
    sentinel(new, 77.0, "32x32x32 f32")
    for ms in (2.0, 1.0, 3.0, 50.0, 60.0, 2.2, 2.4, 2.6):
        sentinel(new, ms)
    found = health(engine)["CPU-1"]
    assert found["sentinel_campaign"] == "new"
    assert (found["sentinel_first_ms"], found["sentinel_last_ms"]) == (2.0, 2.4)
    assert found["sentinel_ratio"] == pytest.approx(1.2)
    with engine.connect() as connection:
        (seen,) = sentinels.series_of_devices(connection)
    assert seen.drift is not None
    assert (seen.drift.base_ms, seen.drift.latest_ms) == (2.0, 2.4)
    assert seen.rows[-1].measured_at == found["sentinel_last_at"]


# --- v_campaign_progress -------------------------------------------------------------------------------

STATES = ("pending", "queued", "running", "later", "done", "invalid", "dead", "cancelled")


def agrees(engine: Engine, stored: Stored) -> dict[str, Any]:
    """The campaign's line, which has the counts and the pace of `farm status`."""
    (found,) = asked(engine, "SELECT * FROM v_campaign_progress WHERE campaign_id = :id", id=stored.campaign_id)
    with engine.connect() as connection:
        assert {state: found[state] for state in STATES} == campaigns.counts(connection, stored.campaign_id)
        pace = throughput.of_campaigns(connection, [stored.campaign_id])[stored.campaign_id].lately
    if found["state"] in ("active", "paused"):
        assert (found["jobs_per_minute"] is None) == (pace is None)
        assert found["jobs_per_minute"] == (None if pace is None else pytest.approx(pace, rel=0.2))
    return found


def test_progress_is_what_status_says_in_every_state(engine: Engine, device: int, submit: Submit) -> None:
    small = submit(Campaign.from_document(document(measure={"max_attempts": 1})))
    found = agrees(engine, small)
    assert (found["campaign"], found["owner"], found["jobs"], found["pending"]) == ("small", "ann", 12, 12)
    assert (found["ended_share"], found["jobs_per_minute"], found["left_s"]) == (0, None, None)
    batch_id = form(engine, 5)
    assert agrees(engine, small)["queued"] == 5
    assert batch_id is not None
    lease = claim(engine, batch_id, device)
    assert lease is not None
    assert agrees(engine, small)["running"] == 5
    failed = {
        lease.jobs[0].id: Failure(FailureKind.INVALID, "no"),
        lease.jobs[1].id: Failure(FailureKind.FAILED, "no"),
    }
    land(engine, lease, failed)
    for _ in range(2):
        found = agrees(engine, small)
        assert (found["done"], found["invalid"], found["dead"], found["pending"]) == (3, 1, 1, 7)
        assert found["ended_share"] == pytest.approx(5 / 12)
        assert found["left_s"] == pytest.approx(60 * 7 / found["jobs_per_minute"])
        with engine.begin() as connection:
            batches.fold(connection)
    with engine.begin() as connection:
        batches.cancel(connection, small.campaign_id)
    found = agrees(engine, small)
    assert (found["state"], found["cancelled"], found["pending"], found["left_s"]) == ("cancelled", 7, 0, None)


def test_progress_of_a_search_has_what_is_still_to_come(engine: Engine, announce: Announce, submit: Submit) -> None:
    device = announce(card(capability=(9, 0)))
    stored = submit(wanted())
    assert agrees(engine, stored)["later"] > 0
    for _ in range(3):
        measure(engine, device)
        agrees(engine, stored)
        Rounds(engine).reconcile()
    found = agrees(engine, stored)
    assert (found["state"], found["later"], found["ended_share"]) == ("done", 0, 1)


# --- the document --------------------------------------------------------------------------------------


def documented() -> dict[str, dict[str, str]]:
    """By view the columns that docs/sql.md describes, with their types."""
    found: dict[str, dict[str, str]] = {}
    for section in re.split(r"^### ", DOCUMENT, flags=re.MULTILINE)[1:]:
        view = section.split("\n", 1)[0].strip("` ")
        lines = re.findall(
            r"^\| ((?:`\w+`(?:, )?)+) \| ([a-z ]+) \|(?: [^|]* \|)? [^|]+ \|$", section, flags=re.MULTILINE
        )
        found[view] = {name: kind for names, kind in lines for name in re.findall(r"`(\w+)`", names)}
    return found


def test_the_document_has_every_view_and_every_column_with_its_type(engine: Engine) -> None:
    columns = asked(
        engine,
        """
        SELECT v.relname AS view, a.attname AS name, format_type(a.atttypid, NULL) AS type
        FROM pg_class v JOIN pg_attribute a ON a.attrelid = v.oid AND a.attnum > 0
        WHERE v.relkind = 'v' AND v.relnamespace = 'public'::regnamespace
        """,
    )
    short = {"double precision": "double", "timestamp with time zone": "timestamptz"}
    there: dict[str, dict[str, str]] = {}
    for column in columns:
        there.setdefault(column["view"], {})[column["name"]] = short.get(column["type"], column["type"])
    said = documented()
    assert said["v_all_measurements"] == {}, "it says that it has the columns of v_measurements but one"
    said["v_all_measurements"] = {name: kind for name, kind in said["v_measurements"].items() if name != "round"}
    said["v_sentinels"] = dict(said["v_all_measurements"])
    assert said == there
    assert set(there) == set(roles.VIEWS)


@pytest.mark.parametrize("number", range(len(statements())))
def test_the_documents_queries_find_something(engine: Engine, announce: Announce, submit: Submit, number: int) -> None:
    device = announce(card(1, kind="nvidia-h200"))
    campaign = submit(Campaign.from_document(document(kernels=[{"family": "tiled", "tile": [16, 32]}])))
    rows = [("tiled(tile=16) 4096x4096x4096 f16:f16:f32", row(2.0, power_w=400.0, sm_clock_mhz=1500))]
    rows += [("cublaslt(algorithm=0) 4096x4096x4096 f16:f16:f32", row(3.0, power_w=500.0))]
    landed(engine, device, rows, campaign_id=campaign.campaign_id)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(statements()[number].replace("%", "%%")).all()


def test_the_documents_python_runs(
    database_url: str, engine: Engine, announce: Announce, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed(engine, announce(card(1, kind="nvidia-h200")), [(f"tiled(tile=16) {SQUARE}", row(2.0))])
    (block,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    block, urls = re.subn(r"\"postgresql\+psycopg://[^\"]+\"", "os.environ['READER_URL']", block)
    assert urls == 1
    monkeypatch.setenv("READER_URL", database_url)
    names: dict[str, Any] = {"os": os}
    exec(compile(block, "docs/sql.md", "exec"), names)
    names["engine"].dispose()
    assert isinstance(names["best"], pd.DataFrame)
    assert list(names["best"]["runtime_ms"]) == [2.0]


# --- what configurations are made of ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "groups"),
    [
        (scale, groups)
        for scale in Scale
        for groups in ("none", "300", "100*2,0*3,99,1")
        if groups == "none" or scale is not Scale.BLOCK_GROUP
    ],
)
def test_the_database_counts_the_bytes_that_a_problem_does(engine: Engine, scale: Scale, groups: str) -> None:
    for fused in Fusion:
        for beta, batch, sparsity in (
            (0.0, 1, "none"),
            (0.0 if fused.gated else 1.0, 1 if groups != "none" else 3, "2:4"),
        ):
            shape, types = Shape(300, 200, 258), ElementTypes.parse("f16i4" if scale.of_weights else "f8e4m3:f16:f32")
            problem = Problem(
                shape, types, Layout.NT, 1.0, beta, batch, scale, fused, Groups.parse(groups), Sparsity(sparsity)
            )
            (found,) = asked(
                engine,
                "SELECT gemm_bytes(:m, :n, :k, :ab, :cd, :beta, :batch, :scale, :fused, :groups, :sparsity) AS bytes",
                **problem_columns(problem),
            )
            assert found["bytes"] == problem.bytes


@pytest.mark.parametrize(
    "kind", ["batch=2 scale=1x128:128x128 fused=bias+silu", "fused=relu groups=100*2,0,99,1", "sparsity=2:4"]
)
def test_views_have_the_kind_of_a_problem_and_its_traffic(engine: Engine, announce: Announce, kind: str) -> None:
    configuration = Configuration.parse(f"cublaslt(algorithm=0) 300x208x272 f8e4m3 nt beta=1 {kind}")
    landed(engine, announce(card(1)), [(configuration.canonical, row(1.0))])
    for view in ("v_measurements", "v_best_kernels"):
        (found,) = asked(engine, f"SELECT * FROM {view}")
        assert problem_of(found) == configuration.problem
    (found,) = asked(engine, "SELECT flops, bytes FROM v_measurements")
    assert (found["flops"], found["bytes"]) == (configuration.problem.flops, configuration.problem.bytes)

"""`farm results --where` and its short forms: which rows they choose, and what they say of a mistake."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.campaign.constraints import parse_constraint
from farm.db import devices, filters, measurements
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.engine import make_engine
from farm.db.states import FailureKind
from farm.devices import DeviceIdentity
from farm.errors import BadFilter, BadMoment
from farm.expressions.python import compile_all
from farm.measurement import Source
from farm.schema.results import EXPORTED
from farm.services import ServiceUrls
from farm.time_parsing import moment
from support.batch_steps import land, leased
from support.commands import Command, farm_here, refused
from support.databases import database
from support.samples import card, cpu, document, landed, row

Announce = Callable[[DeviceIdentity], int]

TIMED = [
    ("tiled(tile=16) 512x512x512 f32", {"power_w": 300.0, "throttle_reasons": "sw_power_cap,hw_slowdown"}),
    ("tiled(tile=32) 512x512x512 f32", {"power_w": None, "details": {"registers": 40, "timed_by": "graph", "late": None}}),
    ("tiled(tile=16) 1024x96x512 f32", {"power_w": 100.0, "throttle_reasons": "none", "power_disagrees": True}),
    ("cublaslt(algorithm=0) 512x512x512 f16:f16:f32 tn", {"power_w": 500.0, "power_disagrees": False}),
]  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def rows(engine: Engine, announce: Announce) -> dict[int, int]:
    """Four rows of a card, which take 1, 2, 3 and 4 ms; by these the ids of their measurements."""
    device = announce(card())
    landed(engine, device, [(written, row(n, **changes)) for n, (written, changes) in enumerate(TIMED, 1)])
    return {round(found["runtime_ms"]): found["measurement_id"] for found in read(engine)}


@pytest.fixture(scope="module")
def filled(farm_services: ServiceUrls) -> Iterator[Engine]:
    """A database with the same rows, for all tests that only read."""
    with database(farm_services, migrated=True) as url:
        engine = make_engine(url, application="test")
        with engine.begin() as connection:
            device = devices.register(connection, host="here", host_facts={}, device=card())
        landed(engine, device, [(written, row(n, **changes)) for n, (written, changes) in enumerate(TIMED, 1)])
        yield engine
        engine.dispose()


def read(engine: Engine, *where: str, **more: Any) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return measurements.read(connection, only=filters.chosen(where=where, **more))


def matching(engine: Engine, *where: str, **more: Any) -> list[int]:
    return [round(found["runtime_ms"]) for found in read(engine, *where, **more)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("runtime_ms > 1", [2, 3, 4]),
        ("2 <= runtime_ms < 4", [2, 3]),
        ("m == 512 and n * k > 100000", [1, 2, 4]),
        ("m // 500 == 2 or m % 512 == 1", [3]),
        ("-7 // 2 == -4 and -7 % 3 == 2", [1, 2, 3, 4]),
        ("flops >= 2**28", [1, 2, 4]),
        ("m ** 2 > 2 ** 19", [3]),
        ("min(m, n) < 100", [3]),
        ("m < 2 ** 200 and m < 18446744073709551615 and not m < -5.5", [1, 2, 3, 4]),
        ("abs(runtime_ms - 3) <= 1 and max(m, n, k) > 1000", [3]),
        ("family == 'tiled'", [1, 2, 3]),
        ("layout in ('tn', 'tt') and ab != acc", [4]),
        ("details.registers in (40, 'x') and '1h' < measured_at in (measured_at,)", [2]),
        ("family not in ['tiled']", [4]),
        ("tile == 16", [1, 3]),
        ("not tile == 16", [2]),  # cublaslt has no tile
        ("has(tile) or algorithm == 0", [1, 2, 3, 4]),
        ("not has(tile)", [4]),
        ("power_w > 200", [1, 4]),
        ("not power_w > 200", [3]),  # what has no power is neither
        ("power_w > 200 or runtime_ms == 2", [1, 2, 4]),
        ("has(power_w)", [1, 3, 4]),
        ("not has(power_w)", [2]),
        ("min(power_w, 50) == 50", [1, 3, 4]),
        ("power_disagrees", [3]),
        ("not power_disagrees", [4]),
        ("'power' in throttle_reasons", [1]),
        ("'power' not in throttle_reasons", [3]),
        ("throttle_reasons != 'none'", [1]),
        ("details.registers > 32", [2]),
        ("details.timed_by == 'graph' and 'gra' in details.timed_by", [2]),
        ("details.timed_by > 3 or details.registers == 'x'", []),
        ("has(details.registers)", [2]),
        ("not has(details.late)", [1, 2, 3, 4]),
        ("environment.library == '1.0'", [1, 2, 3, 4]),
        ("measured_at > '2020-01-01' and '1h' < measured_at", [1, 2, 3, 4]),
        ("measured_at < '1h'", []),
        ("runtime_ms / (m - 512) > 0", [3]),  # a division by zero has no value
        ("host == 'here' and source == 'measured' and device_type == 'nvidia-test'", [1, 2, 3, 4]),
        ("host == \"x' OR 1=1 --\"", []),
        ("host == ':where_0'", []),
        ("verify_error == 0", []),
        ("round == 0 and seed == 0", [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_rows_for_which_a_condition_holds(filled: Engine, where: str, expected: list[int]) -> None:
    assert matching(filled, where) == expected


def test_conditions_all_hold_and_ids_are_found(engine: Engine, rows: dict[int, int]) -> None:
    assert matching(engine, "runtime_ms > 1", "has(power_w)", "tile == 16") == [3]
    wanted = read(engine, f"measurement_id == {rows[2]}")[0]
    assert matching(engine, f"configuration_id == '{wanted['configuration_id']}'") == [2]
    assert matching(engine, f"configuration_id in ('{wanted['configuration_id']}',)") == [2]


NUMBERS = st.sampled_from(["m", "n", "k", "alpha", "beta", "flops", "bytes", "intensity", "1", "2.5", "7", "96", "512"])
BIGGER = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda a: f"abs(-{a})"),
    ),
    max_leaves=4,
)
HOLDS = st.recursive(
    st.one_of(
        st.tuples(BIGGER, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), BIGGER).map(" ".join),
        st.tuples(st.sampled_from(["layout", "ab"]), st.sampled_from(["==", "!="])).map(
            lambda t: f"{t[0]} {t[1]} '{'tn' if t[0] == 'layout' else 'f16'}'"
        ),
        BIGGER.map(lambda a: f"{a} in (512, 96, m)"),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda a: f"(not {a})"),
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(written=HOLDS)
def test_a_campaigns_constraint_chooses_the_same_configurations(filled: Engine, written: str) -> None:
    names = ("m", "n", "k", "alpha", "beta", "flops", "bytes", "intensity", "layout", "ab")
    holds = compile_all([parse_constraint(written)], names)
    with filled.connect() as connection:
        every = connection.execute(
            text(f"SELECT runtime_ms, {', '.join(names)} FROM v_measurements ORDER BY runtime_ms")
        ).all()
    try:
        expected = [round(time) for time, *values in every if holds(*values)]
    except ArithmeticError:
        return  # an error for a campaign, no value here
    assert matching(filled, written) == expected


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("m > ", "is not an expression"),
        ("m = 3", "write == to compare"),
        ("m > 3 && n > 3", "write and, or, not"),
        ("m", "at character 1, m is a number where a comparison is needed"),
        ("runtime > 3", "at character 1, there is no column runtime; did you mean runtime_ms?"),
        ("m > 3 and powr_w > 3", "at character 11, there is no column powr_w; did you mean power_w?"),
        ("layout == nn", "at character 11, nn stands without quotes; write 'nn'"),
        ("ähm > 3", "at character 1, there is no column"),
        ("'ä' == host and zzzzzz > 3", "at character 17, there is no column zzzzzz; if it is a word, write 'zzzzzz'. "
         "Columns: campaign, device_type"),
        ("zzzzzz > 3", "Kernel parameters: algorithm, align"),
        ("m > 'x'", "m is a number and 'x' a word; they never compare"),
        ("source == 'sentinel'", "source is never 'sentinel'; it is one of measured, recorded, imported"),
        ("ab < 'f32'", "orders words"),
        ("power_w is None", "write not has(power_w)"),
        ("power_w != None", "write has(power_w)"),
        ("power_disagrees == True", "write power_disagrees, or not power_disagrees"),
        ("parameters == 3", "name the parameter itself, as in tile == 16"),
        ("details == 3", "name a part of it, as in details.registers > 128"),
        ("details", "name a part of it"),
        ("m.x == 3", "only details and environment have parts"),
        ("parameters.tile == 3", "only details and environment have parts"),
        ("details.a == details.b", "with a column, a number or a word"),
        ("details.a == measured_at", "compare details.a with a column, a number or a word"),
        ("has(details.a) == details", "details is an object; name a part of it"),
        ("measured_at > 'soon'", "'soon' is not a time. Write 2026-11-22"),
        ("configuration_id == '12'", "'12' is not an id"),
        ("configuration_id > '00000000-0000-0000-0000-000000000000'", "orders words"),
        ("m in ()", "the list is empty"),
        ("m in n", "n is not a list"),
        ("has(3)", "has takes one column"),
        ("has(m, n)", "has takes one column"),
        ("pg_sleep(9) > 0", "pg_sleep(…) is not allowed"),
        ("__import__('os').system('x') == 0", "is not allowed"),
        ("(lambda: 1)() == 1", "is not allowed"),
        ("m[0] > 1", "m[0] is not allowed"),
        ("[m for m in (1,)]", "is not allowed"),
        ("m & 3 == 0", "the operators are"),
        ("2 ** 99999999 > m", "too large"),
        ("2 ** 4000 > m", "too large"),
        ("2 ** 1500 > m", "write a number"),
        ("1e400 > m", "write a number"),
        ("host == 'a\\x00b'", "cannot be printed"),
        ("host == '\\ud800'", "cannot be printed"),
        ("m > 1 \x00", "is not an expression"),
        ("m ** k ** n > 1", "cannot be computed for a row: value out of range: overflow"),
        ("(0 - m) ** 0.5 > 1", "cannot be computed for a row"),
        (" or ".join(["m > 1"] * 150), "longer than 1000 characters"),
        ("n > " + "m % (" * 60 + "m" + ")" * 60, "nested too deeply"),
        ("m > " + "-" * 900 + "1", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(filled: Engine, where: str, says: str) -> None:
    with pytest.raises(BadFilter) as raised:
        read(filled, where)
    assert str(raised.value).startswith("where")
    assert says in str(raised.value)


@settings(max_examples=150)
@given(st.text(alphabet="mnk tile has()[]{}<>=!+-*/%&|~^.,:;'\"\\0123456789andornotif_details$", max_size=50))
def test_no_text_becomes_a_broken_statement(filled: Engine, written: str) -> None:
    try:
        found = read(filled, written)
    except BadFilter:
        return
    assert len(found) <= 4


def test_a_filter_names_every_column_of_an_export_as_what_the_database_holds(engine: Engine) -> None:
    assert set(EXPORTED) == set(filters.COLUMNS) - {"flops", "bytes"}
    kinds = {
        "text": "word", "bigint": "number", "smallint": "number", "double precision": "number", "boolean": "truth",
        "timestamp with time zone": "time", "uuid": "id", "jsonb": "object",
    }  # fmt: skip
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'v_measurements'")
        )
        types = {name: kinds[data_type] for name, data_type in found}
    assert {name: types[name] for name in filters.COLUMNS} == dict(filters.COLUMNS)


# --- times -------------------------------------------------------------------------------------------


def test_a_time_is_a_day_a_moment_or_an_age() -> None:
    assert moment("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert moment("2026-01-31 08:30") == datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    assert moment("2026-01-31T08:30+02:00") == datetime(2026, 1, 31, 6, 30, tzinfo=UTC)
    for age, span in (("90min", timedelta(minutes=90)), ("2h", timedelta(hours=2)), ("1.5d", timedelta(hours=36))):
        assert abs(datetime.now(UTC) - moment(age) - span) < timedelta(minutes=10)
    for wrong in ("", "tomorrow", "2026-02-30", "3 fortnights", "99999999999w", "2h "[::-1]):
        with pytest.raises(BadMoment):
            moment(wrong)


# --- the command -------------------------------------------------------------------------------------


def times(done: Any) -> list[int]:
    assert done.returncode == 0, done.stderr
    return [round(found["runtime_ms"]) for found in json.loads(done.stdout)]


def test_the_short_forms_choose_rows(
    command: Command, engine: Engine, rows: dict[int, int], announce: Announce
) -> None:
    other = announce(cpu(7))
    landed(engine, other, [("blas(threads=1) 64x64x64 f32", row(9, source=Source.RECORDED))])
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO hosts (name) VALUES ('there')"))
        connection.execute(
            text("UPDATE devices SET host_id = (SELECT id FROM hosts WHERE name = 'there') WHERE id = :id"),
            {"id": other},
        )
    for options, expected in (
        (("--host", "there"), [9]),
        (("--host", "there", "--host", "here"), [1, 2, 3, 4, 9]),
        (("--device", "cpu-7"), [9]),
        (("-d", "GPU-1", "-d", "CPU"), [1, 2, 3, 4, 9]),
        (("--host", "here", "--device", "CPU-7"), []),
        (("--source", "recorded"), [9]),
        (("--source", "measured", "--source", "recorded"), [1, 2, 3, 4, 9]),
        (("--since", "1h"), [1, 2, 3, 4, 9]),
        (("--until", "1h"), []),
        (("--since", "2020-01-01", "--until", f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"), [1, 2, 3, 4, 9]),
        (("--until", f"{datetime.now(UTC):%Y-%m-%d}"), []),
        (("--where", "runtime_ms < 4", "--type", "nvidia-test", "--family", "tiled", "-s", "-runtime_ms", "-n", "2"), [3, 2]),
        (("-w", "runtime_ms > 1", "-w", "runtime_ms < 3"), [2]),
        (("-w", "runtime_ms == 2", "--short-rounds"), [2]),
    ):  # fmt: skip
        assert times(command("results", "--json", *options)) == expected, options
    refused(command("results", "--device", "GPU-9"), 4, "GPU-9", "CPU-7")
    refused(command("results", "--host", "nowhere"), 4, "nowhere", "here, there")
    refused(command("results", "--source", "sentinel"), 2, "'recorded'")
    refused(command("results", "--since", "soon"), 2, "'soon' is not a time")
    refused(command("results", "--where", "powr_w > 3"), 2, "did you mean power_w?", "Columns:")


def test_every_format_has_the_rows_that_match(
    command: Command, engine: Engine, rows: dict[int, int], tmp_path: Path
) -> None:
    only = ("results", "--where", "power_w >= 300")
    assert "512" in command(*only).stdout
    assert "No measurements match" in command("results", "-w", "m == 1").stdout
    found = list(csv.DictReader(io.StringIO(command(*only, "--format", "csv").stdout)))
    assert [float(one["power_w"]) for one in found] == [300, 500]
    command(*only, "-o", "some.parquet")
    assert pq.read_table(tmp_path / "some.parquet").column("power_w").to_pylist() == [300, 500]
    lines = command(*only, "--format", "commands").stdout.splitlines()
    assert ["cublaslt" in line for line in lines] == [False, True]


def test_t4_has_the_jobs_that_match_and_failed_ones_only_by_what_they_have(
    command: Command, engine: Engine, announce: Announce, submit: Callable[[Campaign], Stored]
) -> None:
    device = announce(cpu())
    submit(Campaign.from_document(document(measure={"max_attempts": 1})))
    lease = leased(engine, device, size=12)
    failed = next(job for job in lease.jobs if job.configuration.problem.shape.m == 128)
    land(engine, lease, {failed.id: Failure(FailureKind.FAILED, "wrong")})

    def results(*options: str) -> list[str]:
        done = command("results", "--campaign", "small", "--format", "t4", *options)
        assert done.returncode == 0, done.stderr
        return sorted(one["invalidity"] for one in json.loads(done.stdout)["results"])

    assert len(results()) == 12
    assert results("--where", "m == 128") == ["correct"] * 3 + ["runtime"]
    assert results("--where", "m == 128", "--where", "runtime_ms > 0") == ["correct"] * 3
    assert results("--since", "1h", "-w", "flops > 2 * 127 * 64 * 32 and campaign == 'small'").count("runtime") == 1
    assert results("--host", "here", "-w", "not has(power_w)").count("runtime") == 1
    refused(command("results", "--campaign", "small", "--format", "t4", "-w", "m == 1"), 2, "no job that matches")

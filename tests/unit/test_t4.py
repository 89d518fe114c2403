"""T4 documents of rows as the database has them: what a result holds, and why one is invalid."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from farm.db.states import FailureKind
from farm.errors import (
    BuildFailed,
    DeviceOutOfMemory,
    DevicePoisoned,
    DoesNotCompile,
    ElementNotWritten,
    FarmError,
    InvalidOnDevice,
    MeasurementFailed,
    ResultCorrupted,
    WrongResult,
)
from farm.kernels import FAMILIES, Configuration
from farm.measurement import Measurement, MeasuringRules
from farm.report.t4_format import PROBLEM, UNITS, Origin, Space, documents, invalidity
from farm.schema.results import EXPORTED
from workers.runner import EXIT_HUNG
from workers.tasks import how_it_ended

CONFIGURATION = Configuration.parse("tiled(tile=16) 512x256x128 f32 nt alpha=0.5 beta=1")
WHEN = datetime(2026, 3, 4, 5, 6, 7, 890000, tzinfo=timezone(timedelta(hours=2)))
WHEN_TEXT = "2026-03-04 03:06:07.890000+00:00"
ORIGIN = Origin(campaign="small", digest="ab12", rules=MeasuringRules(), devices={})
WRONG = {"row": 1, "column": 2, "error": 0.5, "bound": 0.1}


def measured(**changes: Any) -> dict[str, Any]:
    """A row as `farm.db.outcomes.measured` reads it, in which nothing that may be missing is known."""
    known = Measurement(
        runtime_ms=2.0, runtime_q1_ms=1.9, runtime_q3_ms=2.1, runtime_min_ms=1.8, runtime_rse=0.01, samples=10,
        stop_reason="converged", l2="cold", cost_s=0.5, window_s=0.375,
    )  # fmt: skip
    row = {**dict.fromkeys(EXPORTED), **asdict(known), **CONFIGURATION.columns()}
    row |= {"device_type": "nvidia-h200", "device_uuid": "GPU-1", "only_device": None, "measured_at": WHEN, "job_id": 1}
    return {**row, **changes}


def failed(kind: FailureKind, error: FarmError | str, **changes: Any) -> dict[str, Any]:
    """A row as `farm.db.outcomes.without_result` reads it."""
    row = {**CONFIGURATION.columns(), "job_id": 2, "device_type": "nvidia-h200", "device_uuid": None}
    row |= {"only_device": None, "error_class": kind.value, "error": str(error), "failed_at": WHEN}
    return {**row, **changes}


def only_result(*, rows: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[str, Any]:
    (document,) = documents(rows, without, ORIGIN).values()
    (result,) = document["results"]
    return json.loads(json.dumps(result))  # type: ignore[no-any-return]


def by_name(result: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    named = {one["name"]: (one["value"], one["unit"]) for one in result["measurements"]}
    assert len(named) == len(result["measurements"])
    return named


# --- one that was measured ---------------------------------------------------------------------------


def test_a_row_is_a_correct_result_of_its_problem_and_parameters() -> None:
    result = only_result(rows=[measured()], without=[])
    configuration = result["configuration"]
    assert configuration == {
        **{"m": 512, "n": 256, "k": 128, "ab": "f32", "cd": "f32", "acc": "f32", "layout": "nt"},
        **{
            "alpha": 0.5,
            "beta": 1,
            "batch": 1,
            "scale": "none",
            "fused": "none",
            "groups": "none",
            "sparsity": "none",
            "tile": 16,
        },
    }
    assert (result["invalidity"], result["correctness"]) == ("correct", 1)
    assert result["timestamp"] == WHEN_TEXT


def test_the_phases_of_a_row_add_up_to_what_it_cost_in_ms() -> None:
    times = only_result(rows=[measured()], without=[])["times"]
    assert times.pop("runtimes") == [2.0]
    assert times == {"compilation": 0, "benchmark": 375, "framework": 125, "search_algorithm": 0, "validation": 0}


def test_the_objective_is_the_time_and_is_among_the_measurements_once() -> None:
    result = only_result(rows=[measured()], without=[])
    assert result["objectives"] == ["time"]
    assert by_name(result)["time"] == (2.0, "ms")


def test_what_was_measured_has_its_unit_and_what_was_not_is_left_out() -> None:
    row = measured(power_w=400.5, energy_mj=801.0, sm_clock_mhz=1980, temperature_c=50, power_disagrees=True)
    found = by_name(only_result(rows=[row], without=[]))
    assert found["power_w"] == (400.5, "W")
    assert found["energy_mj"] == (801.0, "mJ")
    assert found["sm_clock_mhz"] == (1980, "MHz")
    assert found["temperature_c"] == (50, "°C")
    assert found["power_disagrees"] == (1, "")
    assert type(found["power_disagrees"][0]) is int  # the schema takes no truth value
    assert "idle_power_w" not in found


def test_every_column_of_a_row_has_its_place() -> None:
    elsewhere = {*PROBLEM, "family", "parameters", "campaign", "device_type", "device_uuid", "host", "environment"}
    elsewhere |= {"measured_at", "runtime_ms", "cost_s", "window_s"}
    left_out = {"measurement_id", "configuration_id", "details"}
    assert set(EXPORTED) == UNITS.keys() | elsewhere | left_out
    assert not UNITS.keys() & (elsewhere | left_out)


def test_no_parameter_of_a_family_hides_a_part_of_the_problem() -> None:
    assert not {p.name for family in FAMILIES.values() for p in family.parameters} & set(PROBLEM)


# --- one that was not --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "expected", "kernel_tuner"),
    [
        (FailureKind.INVALID, InvalidOnDevice(why="tiled needs …"), "constraints", "InvalidConfig"),
        (FailureKind.INVALID, DoesNotCompile(why="no", binary="b"), "compile", "CompilationFailedConfig"),
        (
            FailureKind.INVALID,
            InvalidOnDevice(why=str(DoesNotCompile(why="no", binary="b"))),
            "compile",
            "CompilationFailedConfig",
        ),
        (FailureKind.FAILED, BuildFailed(why="too long", binary="b"), "compile", "CompilationFailedConfig"),
        (FailureKind.FAILED, WrongResult(**WRONG), "correctness", "RuntimeFailedConfig"),
        (FailureKind.FAILED, ElementNotWritten(**WRONG), "correctness", "RuntimeFailedConfig"),
        (
            FailureKind.CORRUPTED,
            ResultCorrupted(launch="the last launch", difference="one bit"),
            "correctness",
            "RuntimeFailedConfig",
        ),
        (FailureKind.FAILED, MeasurementFailed(why="no clock"), "runtime", "RuntimeFailedConfig"),
        (FailureKind.FAILED, DeviceOutOfMemory(why="full"), "runtime", "RuntimeFailedConfig"),
        (FailureKind.FAILED, "ValueError: (job_seconds)", "runtime", "RuntimeFailedConfig"),
        (FailureKind.KILLED, DevicePoisoned(why="illegal address"), "runtime", "RuntimeFailedConfig"),
        (FailureKind.KILLED, "it was being measured when its process died", "runtime", "RuntimeFailedConfig"),
    ],
)
def test_a_failure_says_why_in_both_languages(
    kind: FailureKind, error: FarmError | str, expected: str, kernel_tuner: str
) -> None:
    result = only_result(rows=[], without=[failed(kind, error)])
    assert (result["invalidity"], result["correctness"]) == (expected, 0)
    found = by_name(result)
    assert found["time"] == (kernel_tuner, "ms")
    assert found["__error__"] == (kernel_tuner, "")
    assert found["error"] == (str(error), "")
    assert found["error_class"] == (kind.value, "")


def test_a_job_that_a_worker_ended_as_hung_is_a_timeout() -> None:
    ended = how_it_ended(f"Worker exited prematurely: exitcode {EXIT_HUNG} Job: 1.")
    assert invalidity(FailureKind.KILLED, f"it was being measured when its process {ended}") == "timeout"


def test_a_failure_has_the_form_of_a_result_without_runtimes() -> None:
    result = only_result(rows=[], without=[failed(FailureKind.FAILED, "no")])
    good = only_result(rows=[measured()], without=[])
    assert result.keys() == good.keys()
    assert result["configuration"] == good["configuration"]
    assert result["timestamp"] == WHEN_TEXT
    assert result["times"].keys() == good["times"].keys()
    assert result["times"].pop("runtimes") == []
    assert set(result["times"].values()) == {0}


# --- documents ---------------------------------------------------------------------------------------


def test_measured_rows_come_first() -> None:
    (document,) = documents([measured()], [failed(FailureKind.FAILED, "no")], ORIGIN).values()
    assert [result["invalidity"] for result in document["results"]] == ["correct", "runtime"]


def test_each_kernel_and_device_type_is_a_document_and_a_device_that_a_target_names_is_its_own() -> None:
    rows = [
        measured(),
        measured(device_type="nvidia-a100", device_uuid="GPU-2"),
        measured(only_device="GPU-1"),
        measured(family="blas", parameters={"threads": 1}),
    ]
    found = documents(rows, [failed(FailureKind.FAILED, "no")], ORIGIN)
    assert {space.file_name: len(document["results"]) for space, document in found.items()} == {
        "blas-nvidia-h200.json": 1,
        "tiled-nvidia-a100.json": 1,
        "tiled-nvidia-h200.json": 2,
        "tiled-nvidia-h200-GPU-1.json": 1,
    }
    assert [str(space) for space in found][-1] == "tiled on nvidia-h200 GPU-1"


def test_a_file_s_name_leads_nowhere_else() -> None:
    name = Space("tiled", "unknown", "../../etc/GPU 1").file_name
    assert name == "tiled-unknown-.._.._etc_GPU_1.json"
    assert Path(name).name == name


def test_metadata_say_what_was_measured_where_and_with_what() -> None:
    device = {name: f"the {name}" for name in ("uuid", "type", "name", "backend", "host", "traits", "facts", "state")}
    origin = Origin(
        campaign="small", digest="ab12", rules=MeasuringRules(power="all"), devices={"GPU-1": device, "GPU-2": device}
    )
    linux = {"os": "Linux-6", "numpy": "2.0"}
    rows = [measured(environment=linux), measured(environment=dict(linux)), measured(environment={"os": "Linux-7"})]
    (document,) = documents(rows, [], origin).values()
    metadata = document["metadata"]
    assert document["schema_version"] == "1.0.0"
    assert metadata["timeunit"] == "milliseconds"
    assert (metadata["campaign"], metadata["kernel"], metadata["device_type"]) == ("small", "tiled", "nvidia-h200")
    assert metadata["measuring_rules"]["power"] == "all"
    assert metadata["hardware"]["operating_system"] == "Linux-6, Linux-7"
    (described,) = metadata["hardware"]["hardware_description"]
    assert described.keys() == device.keys() - {"facts", "state"}
    assert metadata["environment"] == {"versions": [linux, {"os": "Linux-7"}]}


def test_what_no_row_says_of_the_system_is_left_out() -> None:
    (document,) = documents([], [failed(FailureKind.FAILED, "no")], ORIGIN).values()
    assert document["metadata"]["hardware"] == {"hardware_description": []}

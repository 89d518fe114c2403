"""Administration over the API: tokens, sessions, worker hosts, the audit, imports, kernels and trainings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm import signing_keys
from farm.api.kernels import BuiltKernel
from farm.builds.record import Built
from farm.db import audit
from farm.settings import settings
from farm.signing import Purpose
from farm.web.limits import MAX_BODY_BYTES
from support.api_farm import KERNEL, Asking, Served, operation_called, told
from support.kernel_builds import SIGNER, built_of

RECORDING = Path(__file__).parents[2] / "examples/datasets/nvidia-h200-paper-all-tiles.parquet"


@pytest.fixture
def operator(api_with_tokens: Served) -> Asking:
    return api_with_tokens.asking("operate")


@pytest.fixture
def admin(api_with_tokens: Served) -> Asking:
    return api_with_tokens.asking("admin")


def ask(asking: Asking, operation: str, status: int = 200, /, **given: Any) -> Any:
    answer = asking.ask(operation_called(operation), given)
    assert answer.status_code == status, answer.text
    return answer.json()


def scalar(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar_one()


def last_record(engine: Engine) -> audit.ChangeRecord:
    with engine.connect() as connection:
        return audit.records(connection, limit=1)[0]


# --- tokens and sessions -----------------------------------------------------------------------------


def test_a_token_is_shown_once_and_in_no_log_and_no_record(
    api_with_tokens: Served, admin: Asking, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "farm")
    made = ask(admin, "tokens_create", new_token={"name": "eve", "role": "operate", "expires": "1h"})["token"]
    api_with_tokens.tokens["eve"] = made
    eve = api_with_tokens.asking("eve")
    assert eve.get("/api/v1/devices").status_code == 200
    assert (last_record(engine).operation, last_record(engine).who) == ("tokens_create", "admin")
    listed = admin.ask(operation_called("tokens_list")).text
    assert '"eve"' in listed
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT CAST(to_jsonb(audit) AS text) FROM audit")).scalars().all()
    for kept in (listed, caplog.text, *rows):
        assert made not in kept
    ask(admin, "tokens_revoke", token_name="eve")
    assert eve.get("/api/v1/devices").status_code == 401


def test_an_operator_makes_no_token_and_ends_no_session(operator: Asking) -> None:
    for name in ("tokens_create", "tokens_list", "tokens_revoke", "sessions_revoke", "hosts_add", "audit_trim"):
        ask(operator, name, 403)


def test_without_tokens_nobody_administers(api: Asking) -> None:
    for name in ("tokens_create", "tokens_list", "sessions_list", "hosts_add", "audit_trim"):
        assert told(api.ask(operation_called(name)))["kind"] == "RoleTooSmall"


def test_an_administrator_ends_sessions(admin: Asking, engine: Engine) -> None:
    (found,) = ask(admin, "sessions_list")
    assert (found["name"], found["valid"]) == ("spare", True)
    assert ask(admin, "sessions_revoke", sessions={"ids": [found["id"]]}) == {"ended": 1}
    assert last_record(engine).operation == "sessions_revoke"
    assert ask(admin, "sessions_list") == []
    assert ask(admin, "sessions_list", all=True)[0]["valid"] is False
    for wrong in ({}, {"ids": [1], "of": "spare"}, {"ids": [0]}, {"ids": [2**63]}):
        ask(admin, "sessions_revoke", 422, sessions=wrong)


# --- imports -----------------------------------------------------------------------------------------


def test_a_file_is_imported_completely_and_once(operator: Asking, engine: Engine) -> None:
    given = {"upload": RECORDING.read_bytes(), "name": "folder/tiles.parquet"}
    dry = ask(operator, "imports_import", **given, dry_run=True)
    assert (dry["outcome"], scalar(engine, "SELECT count(*) FROM measurements WHERE source = 'imported'")) == (
        "importable",
        0,
    )
    done = ask(operator, "imports_import", **given)
    assert done["outcome"] == "imported"
    assert done["file"] == "folder/tiles.parquet"
    rows = scalar(engine, "SELECT count(*) FROM measurements WHERE source = 'imported'")
    assert rows == sum(device["rows"] for device in done["devices"]) > 0
    record = last_record(engine)
    assert (record.operation, record.name, record.who, record.way) == (
        "imports_import", "tiles.parquet", "operate", "api",
    )  # fmt: skip
    assert ask(operator, "imports_import", **given)["outcome"] == "known"
    assert scalar(engine, "SELECT count(*) FROM measurements WHERE source = 'imported'") == rows


def test_nothing_of_a_file_that_is_cut_off_or_something_else_is_imported(operator: Asking, engine: Engine) -> None:
    whole = RECORDING.read_bytes()
    for content in (whole[: len(whole) // 2], whole[4:], b"PAR1" * 100, b"\x00", b"{}"):
        answer = operator.ask(operation_called("imports_import"), {"upload": content, "name": "mine.parquet"})
        assert answer.status_code == 400, answer.text
        message = told(answer)["message"]
        assert message.startswith("mine.parquet")
        assert "/tmp" not in message
    for file_format in ("gpperf", "aiconfigurator"):
        answer = operator.ask(operation_called("imports_import"), {"file_format": file_format, "upload": whole})
        assert answer.status_code == 400, answer.text
    ask(operator, "imports_import", 422, file_format="nothing")
    assert scalar(engine, "SELECT count(*) FROM measurements WHERE source = 'imported'") == 0


def test_a_file_is_no_form_and_has_a_limit(operator: Asking, engine: Engine) -> None:
    path, content = "/api/v1/imports/dataset?name=mine", RECORDING.read_bytes()
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json",
    ):
        answer = operator.request("POST", path, content=content, headers={"Content-Type": kind})
        assert answer.status_code in (400, 422), kind
    too_large = {"Content-Type": "application/octet-stream", "Content-Length": str(MAX_BODY_BYTES + 1)}
    assert operator.request("POST", path, headers=too_large).status_code == 413
    assert scalar(engine, "SELECT count(*) FROM measurements WHERE source = 'imported'") == 0


# --- kernels and trainings ---------------------------------------------------------------------------


def added(asking: Asking, built: Built, **changed: Any) -> dict[str, Any]:
    document = BuiltKernel.of(built).model_dump() | changed
    found: dict[str, Any] = ask(asking, "kernels_add", built_kernel=document)
    return found


def test_a_kernel_is_added_only_as_a_trusted_key_signed_it(operator: Asking, engine: Engine) -> None:
    signed = built_of(KERNEL).signed(signing_keys.signer(settings(), Purpose.KERNEL))
    other = BuiltKernel.of(built_of(KERNEL, b"other code"))
    for refused, why in (
        (added(operator, built_of(KERNEL).signed(SIGNER)), "signed by none of FARM_KERNEL_KEYS"),
        (added(operator, signed, signature=""), "signed by none of FARM_KERNEL_KEYS"),
        (added(operator, signed, code=other.code), "its SHA-256 is not the recorded one"),
        (added(operator, signed, record=other.record.model_dump()), "its SHA-256 is not the recorded one"),
        (added(operator, signed, code="!"), "base64"),
    ):
        assert refused["outcome"] == "refused"
        assert why in refused["why"]
    assert scalar(engine, "SELECT count(*) FROM kernel_code") == 0
    assert added(operator, signed)["outcome"] == "added"
    assert added(operator, signed)["outcome"] == "known"
    assert (last_record(engine).operation, last_record(engine).key) == ("kernels_add", signed.record.hash)
    (listed,) = ask(operator, "kernels_list", state=["built"])["kernels"]
    assert listed["hash"] == signed.record.hash


def test_a_training_is_requested_of_types_that_have_rows(operator: Asking, engine: Engine) -> None:
    types = ask(operator, "trainings_types")
    assert "nvidia-test" in types
    (made,) = ask(operator, "trainings_request", wanted={"device_types": ["nvidia-test"]})
    assert (made["device_type"], made["state"]) == ("nvidia-test", "requested")
    assert ask(operator, "trainings_show", training=made["id"]) == made
    assert (last_record(engine).operation, last_record(engine).name) == ("trainings_request", "nvidia-test")
    answer = operator.ask(operation_called("trainings_request"), {"wanted": {"device_types": ["nvidia-none"]}})
    assert "nvidia-none: no measurements" in told(answer)["message"]
    ask(operator, "trainings_show", 404, training=999)


def test_a_training_may_be_of_another_protocol_that_has_rows(operator: Asking, engine: Engine) -> None:
    def refused(**wanted: Any) -> str:
        answer = operator.ask(
            operation_called("trainings_request"), {"wanted": {"device_types": ["nvidia-test"]} | wanted}
        )
        message: str = told(answer)["message"]
        return message

    assert "'bench' is no protocol. The protocols: farm, fixed-power" in refused(protocol="bench")
    assert refused(protocol="nvbench").startswith("There are no measured rows of the protocol nvbench of nvidia-test.")
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL farm.deleting = 'on'"))  # rows may change
        connection.execute(text("UPDATE measurements SET protocol = 'nvbench', source = 'imported'"))
    assert "--any-source --protocol nvbench` learns from recorded and imported ones" in refused(protocol="nvbench")
    wanted = {"device_types": ["nvidia-test"], "protocol": "nvbench", "any_source": True}
    (made,) = ask(operator, "trainings_request", wanted=wanted)
    assert scalar(engine, f"SELECT protocol FROM trainings WHERE id = {made['id']}") == "nvbench"
    assert last_record(engine).after == {"any_source": True, "protocol": "nvbench"}


def test_the_audit_is_trimmed_by_administrators_alone(admin: Asking, operator: Asking, engine: Engine) -> None:
    ask(operator, "devices_drain")
    ask(operator, "audit_trim", 403)
    assert ask(admin, "audit_trim", trimming={"before": "0s"})["removed"] >= 1
    assert last_record(engine).operation == "audit_trim"

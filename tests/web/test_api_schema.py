"""The API against its own description: schemathesis asks a real server what it makes of that, the same each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from farm import signing_keys
from farm.api import PREFIX
from farm.api.access import Access
from farm.db import tokens
from farm.db.states import Role
from farm.settings import settings
from farm.signing import Purpose
from support.serving_process import serving

EXAMPLES = 3
"""Requests of each operation that are drawn, beside those that go through its description line by line."""

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "missing_required_header", "unsupported_method", "ignored_auth",
    "use_after_free", "ensure_resource_availability",
)  # fmt: skip
"""All but `positive_data_acceptance`: that words are words does not make a shape of them, or the name of a campaign."""


THERE = """
[parameters]
"path.campaign" = "small"
"path.name" = "nvidia-h200"
"""
"""What the farm has, so that more is tried than what is said of things that it has not."""


def check(address: str, folder: Path, token: str) -> None:
    """Whether the farm answers as it says; the other half of the requests is made to be refused."""
    (folder / "schemathesis.toml").write_text(THERE)
    # Read here: schemathesis waits for it for 10 s only, which a busy machine may need.
    described = httpx.get(f"{address}{PREFIX}/openapi.json", timeout=120).raise_for_status()
    (folder / "openapi.json").write_bytes(described.content)
    # One worker: two threads that parse Python at the same time fail in CPython 3.11 (its issue 106905).
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", address, "--phases", "examples,coverage,fuzzing",
            "--max-examples", str(EXAMPLES), "--generation-deterministic", "--no-shrink", "--request-timeout", "60",
            "--checks", ",".join(CHECKS), "--continue-on-failure", "--no-color",
            "--header", f"Authorization: Bearer {token}",
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.long
def test_every_operation_answers_as_it_is_described(
    api_access_with_model: Access, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        made = tokens.create(connection, "ann", Role.OPERATE, by="test")
    variables = {
        "MLFLOW_TRACKING_URI": api_access_with_model.settings.tracking_uri,
        "FARM_MODEL_KEYS": signing_keys.signer(settings(), Purpose.MODEL).public,
    }
    with serving(tmp_path, database_url, "--tokens", **variables) as served:
        try:
            check(served.address, tmp_path, made)
        except AssertionError as error:
            error.add_note(served.said)
            raise
        assert served.stop() == 0
    assert "Traceback" not in served.said
    assert made not in served.said

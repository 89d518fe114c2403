"""The API against its own description: schemathesis asks a real server what it makes of that, the same each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from serving_process import serving
from sqlalchemy import Engine

from farm.api import PREFIX
from farm.api.access import Access
from farm.db import tokens
from farm.db.tables import Role

EXAMPLES = 15
"""Requests of each operation that are drawn, beside those that go through its description line by line."""

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "missing_required_header", "unsupported_method", "ignored_auth",
    "use_after_free", "ensure_resource_availability",
)  # fmt: skip
"""All but `positive_data_acceptance`: that words are words does not make a shape of them, or the name of a campaign."""


def check(address: str, folder: Path, *options: str) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{address}{PREFIX}/openapi.json", "--phases", "coverage,fuzzing",
            "--max-examples", str(EXAMPLES), "--generation-deterministic", "--no-shrink",
            "--checks", ",".join(CHECKS), "--workers", "2", "--continue-on-failure", "--no-color", *options,
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.parametrize("with_tokens", [False, True])
def test_every_operation_answers_as_it_is_described(
    api_access_with_model: Access, engine: Engine, database_url: str, tmp_path: Path, with_tokens: bool
) -> None:
    made, options, asking = None, list[str](), list[str]()
    if with_tokens:
        with engine.begin() as connection:
            made = tokens.create(connection, "ann", Role.OPERATE, by="test")
        options, asking = ["--tokens"], ["--header", f"Authorization: Bearer {made}"]
    variables = {"MLFLOW_TRACKING_URI": api_access_with_model.settings.tracking_uri}
    with serving(tmp_path, database_url, *options, **variables) as served:
        check(served.address, tmp_path, *asking)
        assert served.stop() == 0
    assert "Traceback" not in served.said
    assert made is None or made not in served.said

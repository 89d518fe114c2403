"""The estimate of a training's memory: as the documents have it, and named where it is too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm import host_memory
from farm.errors import TooLittleMemory
from trainer.memory import (
    CONFIGURATION_BYTES,
    MANY_CONFIGURATIONS,
    MORE_CONFIGURATION_BYTES,
    ROW_BYTES,
    require_memory,
)

MODELS = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_the_documents_have_the_bytes_of_rows_and_configurations() -> None:
    assert (
        f"| each row | {ROW_BYTES:,} |\n"
        f"| each of the first {MANY_CONFIGURATIONS:,} configurations | {CONFIGURATION_BYTES:,} |\n"
        f"| each further configuration | {MORE_CONFIGURATION_BYTES:,} |\n"
    ) in MODELS


def test_a_refusal_names_rows_and_memory_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2 * 2**30)
    require_memory("nvidia-h200", rows=1_000_000, configurations=100_000)
    with pytest.raises(TooLittleMemory) as refused:
        require_memory("nvidia-h200", rows=4_000_000, configurations=400_000)
    message = str(refused.value)
    assert "nvidia-h200 is not trained: 4,000,000 rows of 400,000 configurations take about 4.6 GiB" in message
    assert "2.0 GiB available" in message
    assert "Start a trainer where more memory is free" in message

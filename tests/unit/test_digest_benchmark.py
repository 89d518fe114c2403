"""benchmarks.digests: what it injects, what it counts, on a processor and on a card without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import common, digests
from farm.kernels import Configuration
from support.fake_cuda import FakeCupy, FakePynvml
from workers.devices import discover, host, open_device


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> digests.OnProcessor:
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 2**20)
    monkeypatch.setattr(digests, "CPU_ROWS", ["blas(threads=1) 16x16x16 f32"])
    return digests.OnProcessor()


@pytest.fixture
def on_card(pynvml: FakePynvml, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> Iterator[digests.OnCard]:
    monkeypatch.setattr(digests, "TYPES", ("f32", "f64"))  # what this card's verification knows
    monkeypatch.setattr(digests.OnCard, "configurations", ["tiled(tile=16) 40x33x64 f32", "tiled(tile=16) 33x40x8 f64"])
    monkeypatch.setattr(digests, "RULES", digests.QUICK)
    monkeypatch.setattr(digests.OnCard, "full_rows", 1)
    device = open_device(discover("cuda")[0])
    device.open()
    yield digests.OnCard(device)
    device.close()


@pytest.mark.parametrize("fault", digests.FAULTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_fault_changes_bits(fault: str, dtype: Any) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        bits = random.integers(0, 200, (6, 5)).astype(dtype)
        before = bits.copy()
        digests.FAULTS[fault](bits, random)
        assert (bits != before).any()


def test_the_digest_finds_every_fault_on_a_processor(on_processor: digests.OnProcessor) -> None:
    found = digests.faults(on_processor, 1)
    assert {of["type"] for of in found} == {types.split()[0] for types in digests.TYPES}
    assert len({of["fault"] for of in found}) == len(digests.FAULTS) + 1
    assert all(of["digest"] == of["injected"] == 1 for of in found)
    assert all(of["tolerance"] == 1 for of in found if of["fault"] == digests.NAN)
    (missed,) = (of for of in digests.summed(found, "fault") if of["fault"] == "one bit")
    assert missed["missed_by_digest_pct"] == 0


def test_a_benchmark_on_a_card_counts_faults_alarms_and_costs(
    on_card: digests.OnCard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = digests.measured(on_card, 2, 6, 60)
    assert figures["faults"]["digest"] == figures["faults"]["injected"] == 2 * 7 * 2 * 2
    assert 0 < figures["missed_by_tolerance"] < figures["faults"]["injected"]
    assert (figures["alarms"]["rows"], figures["false_alarms"]) == (6, 0)
    assert figures["alarms"]["full_rows_without_a_digest"] == []
    assert [of["pct_of_row"] > 0 for of in figures["costs"]] == [True, True]
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    common.write("digests", figures, digests.table(figures), repetitions=2, show=False)
    assert json.loads((tmp_path / "digests.json").read_text())["missed_by_digest"] == 0
    assert "2 full rows" in (tmp_path / "digests.md").read_text()


def test_a_result_that_changes_is_an_alarm(on_card: digests.OnCard, cupy: FakeCupy) -> None:
    launches = iter(range(10**6))

    def sometimes_off(a: Any, b: Any) -> Any:
        d = a @ b
        if next(launches) == 0:
            d.view(f"u{d.itemsize}")[0, 0] ^= 1
        return d

    cupy.gemm = sometimes_off
    found = digests.false_alarms(on_card, 2, float("inf"))
    assert found["false_alarms"] == 1
    assert str(Configuration.parse(on_card.configurations[0])) in found["alarms"][0]


def test_no_row_begins_after_the_limit(on_card: digests.OnCard) -> None:
    assert digests.false_alarms(on_card, 100, 0.0)["rows"] == 0

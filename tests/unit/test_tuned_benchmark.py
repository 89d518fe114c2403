"""The benchmark of tuned kernels: its search, its proofs and its later run, with cards that are made up."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from benchmarks import tuned as benchmark
from farm.campaign import load
from farm.devices import traits_of_capability
from farm.exporters.tuned import TunedChoice, read_proofs
from farm.kernels import Configuration
from farm.paired import PairedResult, Verdict

CARDS = [
    SimpleNamespace(uuid=f"GPU-{number}", type="nvidia-h200", name="NVIDIA H200", traits=traits_of_capability((9, 0)))
    for number in (1, 2)
]


def ms_of(configuration: Configuration) -> float:
    """The best kernel has tiles of 16 x 64 x 128; the default takes 1 ms."""
    if configuration == benchmark.FORMAT.default(configuration.problem):
        return 1.0
    p = dict(configuration.kernel.parameters)
    tiles = abs(math.log2(p["tile_m"] / 16)) + abs(math.log2(p["tile_n"] / 64)) + abs(math.log2(p["tile_k"] / 128))
    return 0.8 + 0.1 * tiles + 0.01 * p["stages"] + 0.001 * p["warps"] + 0.0001 * p["group_m"]


class Process:
    """In place of `workers.check.ArmProcess`. Kernels with four stages fail."""

    measured: ClassVar[Counter[tuple[str, str]]] = Counter()
    left: ClassVar[int] = 10**9

    def __init__(self, request: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._uuid = request["device"]

    def measure(self, configuration: Configuration) -> dict[str, Any]:
        if not Process.left:
            raise benchmark.DeviceUnusable({"failure": {"kind": "killed", "message": "gone"}})
        Process.left -= 1
        Process.measured[self._uuid, configuration.canonical] += 1
        if dict(configuration.kernel.parameters)["stages"] == 4:
            return {"failure": {"kind": "invalid", "message": "too large"}}
        return {"row": {"ms": ms_of(configuration)}}

    def close(self) -> None:
        pass


compared: list[tuple[str, str]] = []
LOSES_LATER = "128x512x7168"
NOT_PROVEN = " 16x512x7168"


def in_turn(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """In place of `measured_in_turn`. One pair shows nothing, and one winner is slower when it is measured again."""
    yield {"opened": {"uuid": request["device"], "type": "nvidia-h200", "name": "NVIDIA H200"}, "of": 1}
    for number, pair in enumerate(request["pairs"]):
        base, head = (Configuration.parse(pair[arm]) for arm in ("base", "head"))
        ratio = ms_of(head) / ms_of(base)
        if LOSES_LATER in pair["head"] and any(name == pair["head"] for _, name in compared):
            ratio = 1.01
        wide = 0.3 if NOT_PROVEN in pair["head"] else 0.002
        compared.append((request["device"], pair["head"]))
        yield {"progress": {"pair": number, "rounds": 5, "seconds": 1.0}}
        result = {"verdict": "faster", "ratio": ratio, "interval": [ratio - wide, ratio + wide], "rounds": 5}
        yield {"pair": number, "result": result}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The results, once the benchmark writes them. Nothing is compiled."""
    found: dict[str, Any] = {}
    monkeypatch.setenv("FARM_DEVICE_LOCKS", str(tmp_path))
    benchmark.settings.cache_clear()
    monkeypatch.setattr(benchmark, "discover", lambda _: CARDS)
    monkeypatch.setattr(benchmark, "build", lambda *_: None)
    monkeypatch.setattr(benchmark, "ArmProcess", Process)
    monkeypatch.setattr(benchmark, "measured_in_turn", in_turn)
    monkeypatch.setattr(benchmark, "write", lambda name, figures, table, **_: found.update(figures, table=table))
    Process.measured.clear()
    Process.left = 10**9
    compared.clear()
    yield found
    benchmark.settings.cache_clear()


def asked(folder: Path, *phases: str, seconds: float = 60) -> Namespace:
    return Namespace(
        folder=folder, phase=list(phases or benchmark.PHASES), model="deepseek-v3", tp=8, tokens=[16, 128], kernels=24,
        cards=2, seconds=seconds,
    )  # fmt: skip


def test_kernels_are_tuned_proven_and_measured_again_on_the_other_card(tmp_path: Path, written: dict[str, Any]) -> None:
    Process.left = 100
    with pytest.raises(benchmark.Refused, match="gone"):
        benchmark.run(asked(tmp_path))
    with pytest.raises(benchmark.Refused, match="tune is not over"):
        benchmark.run(asked(tmp_path, "prove"))
    Process.left = 10**9
    assert not benchmark.run(asked(tmp_path, "tune"))
    rounds = Counter(row["round"] for row in benchmark.Lines(tmp_path / "rows.jsonl").read())
    assert rounds[0] == 14 * 24
    assert max(Process.measured.values()) == len(rounds)  # nothing of an earlier call is measured again
    assert not benchmark.run(asked(tmp_path, "prove", seconds=-1))
    with pytest.raises(benchmark.Refused, match="prove is not over"):
        benchmark.run(asked(tmp_path, "later"))
    assert benchmark.run(asked(tmp_path, "prove", "later"))

    assert (written["problems"], written["proven"]) == (14, 13)
    assert written["best_speed_up"] == pytest.approx(1 / 0.83, abs=0.05)
    assert (written["still_win"], written["still_win_pct"]) == (12, 92.3)
    assert written["later_worst_speed_up"] == pytest.approx(1 / 1.01, abs=1e-4)
    assert written["failed"] > 0
    assert written["other_card"]
    cards = dict[str, list[str]]()
    for uuid, name in compared:
        cards.setdefault(name, []).append(uuid)
    assert Counter(tuple(sorted(used)) for used in cards.values()) == {("GPU-1", "GPU-2"): 13, ("GPU-2",): 1}

    files = [file for file in (tmp_path / "vllm").iterdir() if file.name.startswith("N=")]
    assert len(files) == 7
    assert all(json.loads(file.read_text()).keys() == {"16", "128"} for file in files)
    assert len(read_proofs(tmp_path / "prove.json", "nvidia-h200")) == 14  # as farm export vllm --proof reads them


def test_the_campaign_of_the_space_can_be_read_and_keeps_the_default(tmp_path: Path) -> None:
    problems = benchmark.problems_of("deepseek-v3", 8, (1, 64))
    assert {one.shape.m for one in problems} == {1, 64}
    (tmp_path / "campaign.yaml").write_text(json.dumps(benchmark.campaign_of(problems)))
    campaign = load(tmp_path / "campaign.yaml", limit=10**6)
    found = benchmark.drawn(campaign, problems[0], 8, CARDS[0])
    assert found[0] == benchmark.FORMAT.default(problems[0]).canonical
    assert len(set(found)) == 8
    assert all("tile_m=16," in name for name in found[1:])  # one token
    assert benchmark.problems_of("qwen3-30b-a3b", 1, (64,)) == []


def test_a_winner_that_fails_later_does_not_win() -> None:
    (problem,) = benchmark.problems_of("deepseek-v3", 8, (64,))[:1]
    default = benchmark.FORMAT.default(problem)
    kernel = Configuration.parse(default.canonical.replace("stages=2", "stages=3"))
    proven = TunedChoice(default, kernel, PairedResult(0.8, (0.79, 0.81), 5, Verdict.FASTER))
    found = benchmark.figures([proven, TunedChoice(default, default)], [])
    assert (found["compared"], found["proven"], found["still_win_pct"], found["proven_again_pct"]) == (1, 1, 0.0, 0.0)
    assert benchmark.wilson_pct(50, 50) == [92.9, 100.0]
    assert benchmark.wilson_pct(0, 0) is None

"""The examples in docs/extending.md work: each is executed, and then used as a user would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.campaign import KnownDevice, load, plan
from farm.campaign.strategies import STRATEGIES
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import CampaignFileError

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"

CPU = KnownDevice(
    "CPU-1", "cpu-x", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=8), Backend.CPU
)


def run_example(section: str) -> dict[str, Any]:
    """Executes the Python blocks of a section; returns the names that they define."""
    body = re.split(r"^## ", EXTENDING.read_text(), flags=re.M)
    (text,) = (part for part in body if part.startswith(f"{section}\n"))
    names: dict[str, Any] = {"__name__": "example"}
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    exec(compile(code, str(EXTENDING), "exec", dont_inherit=True), names)
    return names


@contextmanager
def unchanged_after(registry: dict[str, Any]) -> Iterator[None]:
    """Forgets what an example registers."""
    before = dict(registry)
    try:
        yield
    finally:
        registry.clear()
        registry.update(before)


def test_the_files_to_touch_exist() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \|", EXTENDING.read_text(), re.M))
    files = {name for name in named if "/" in name}
    assert files
    assert [name for name in sorted(files) if not (EXTENDING.parents[1] / name).exists()] == []


def test_a_search_strategy_of_one_s_own_is_read_and_used(tmp_path: Path) -> None:
    with unchanged_after(STRATEGIES):
        run_example("Add a search strategy")
        file = tmp_path / "thinned.yaml"
        text = (
            "name: thinned\nproblems: {shapes: 64x64x64, types: f32}\nkernels: {family: blas, threads: 1..8}\nsearch: "
        )
        file.write_text(f"{text}{{strategy: thinned, step: 4}}\n")
        campaign = load(file, limit=100)
        jobs = plan(campaign, [CPU], allow_missing=False).jobs()
        assert [str(job.configuration.kernel) for job in jobs] == ["blas(threads=1)", "blas(threads=5)"]
        assert campaign.document["search"] == {"strategy": "thinned", "step": 4}
        file.write_text(f"{text}{{strategy: thinned, keep: 0.5}}\n")
        with pytest.raises(
            CampaignFileError, match=r"4: search.keep: thinned does not read it; remove it, or use halving"
        ):
            load(file, limit=100)
        file.write_text(f"{text}{{strategy: best}}\n")
        with pytest.raises(CampaignFileError, match=r"write grid or .* or thinned \(all kernels, .* or every n-th\)"):
            load(file, limit=100)

"""Memory that is there and memory that is left: of the host, or of a control group with a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from farm import host_memory

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files of a host with 64 MB, of which 32 MB are available, and without a limit."""
    monkeypatch.setattr(host_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "SYS", tmp_path / "sys")
    host = SimpleNamespace(total=64_000_000, available=32_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: host)

    def written(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return written


def test_without_a_limit_the_memory_is_that_of_the_host(write: Write) -> None:
    write("proc/self/cgroup", "0::/farm/trainer\n")
    write("sys/fs/cgroup/farm/trainer/memory.max", "max\n")
    assert (host_memory.total_bytes(), host_memory.available_bytes()) == (64_000_000, 32_000_000)


V1, V2 = "sys/fs/cgroup/memory/old/memory", "sys/fs/cgroup/farm/memory"


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/farm/trainer\n",
            "sys/fs/cgroup/farm/trainer/memory.max": "max\n",
            f"{V2}.max": "10000000\n",
            f"{V2}.current": "7000000\n",
            f"{V2}.stat": "anon 3000000\nfile 4500000\nactive_file 1500000\ninactive_file 2500000\n",
        },
        {
            "proc/self/cgroup": "4:cpu,memory:/old\n3:cpu:/old\n",
            f"{V1}.limit_in_bytes": "10000000\n",
            f"{V1}.usage_in_bytes": "5000000\n",
            f"{V1}.stat": "active_file 9\ntotal_active_file 1000000\ntotal_inactive_file 1000000\n",
        },
    ],
    ids=["cgroup v2, of the group above", "cgroup v1"],
)
def test_the_limit_of_a_control_group_counts_less_what_the_kernel_cannot_drop(
    write: Write, files: dict[str, str]
) -> None:
    for path, content in files.items():
        write(path, content)
    assert (host_memory.total_bytes(), host_memory.available_bytes()) == (10_000_000, 7_000_000)


def test_a_container_sees_its_own_group_as_the_topmost(write: Write) -> None:
    write("proc/self/cgroup", "0::/\n")
    write("sys/fs/cgroup/memory.max", "5000000\n")
    write("sys/fs/cgroup/memory.current", "6000000\n")
    assert (host_memory.total_bytes(), host_memory.available_bytes()) == (5_000_000, 0)


def test_the_host_counts_where_it_has_less_than_a_limit_leaves(write: Write) -> None:
    write("sys/fs/cgroup/memory.max", "50000000\n")
    write("sys/fs/cgroup/memory.current", "1000000\n")
    assert (host_memory.total_bytes(), host_memory.available_bytes()) == (50_000_000, 32_000_000)

"""Looking for devices again and again: what is missing hides nothing else, and a driver in trouble takes nothing away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import BadRecording, CudaUnavailable, MeasurementFailed, UnknownDeviceSelection
from farm.kernels import Configuration
from farm.provenance import Provenance
from workers.device_watcher import DeviceWatcher, Scan
from workers.devices import cards, discover, discovery_process
from workers.devices.discovery_process import DiscoveryProcess
from workers.devices.recording import write_recording


class Driver:
    """NVML for a host whose cards come and go, or whose driver is in trouble."""

    def __init__(self) -> None:
        self.uuids: list[str] = []
        self.trouble: Exception | None = None
        self.open_sessions = 0
        self.sessions = 0

    def session(self) -> Driver:
        if self.trouble is not None:
            raise self.trouble
        self.sessions += 1
        return self

    def __enter__(self) -> Driver:
        self.open_sessions += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open_sessions -= 1

    driver = "580.159.04"

    def cards(self) -> list[Any]:
        return [
            SimpleNamespace(
                uuid=uuid,
                name="NVIDIA H200",
                memory_bytes=2**37,
                compute_capability=(9, 0),
                multiprocessors=None,
                pci_bus_id=None,
                power_limit_w=700.0,
                default_power_limit_w=700.0,
                slowdown_c=89.0,
                is_slice=False,
            )
            for uuid in self.uuids
        ]


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discovery without a process of its own, which takes a second to import what it needs each time.

    The test of that process parametrizes this fixture with False.
    """
    if getattr(request, "param", True):
        discover_here = lambda words: discovery_process._read(discovery_process._written(discover, words))  # noqa: E731
        monkeypatch.setattr(discovery_process, "_discover", discover_here)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cards, "Nvml", made.session)
    monkeypatch.setattr(cards, "require_cupy", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


@pytest.fixture
def record(tmp_path: Path) -> Callable[[int], Path]:
    def recorded(rows: int) -> Path:
        path = tmp_path / f"{rows}.parquet"
        traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**30, threads=2)
        content = [
            {"configuration": Configuration.parse(f"blas(threads=1) {n + 1}x8x8 f32"), "runtime_ms": 1.0}
            for n in range(rows)
        ]
        origin = Provenance(device_type="cpu-x", device_name="X", traits=traits, provenance="a test")
        write_recording(path, content, origin)
        return path

    return recorded


def uuids(look: Scan) -> list[str]:
    return [identity.uuid for identity in look.found]


def backends(look: Scan) -> list[Backend]:
    return [identity.backend for identity in look.found]


@pytest.mark.parametrize("in_this_process", [False], indirect=True)
def test_a_process_of_its_own_finds_the_same(record: Callable[[int], Path]) -> None:
    there, nowhere = f"recorded:{record(1)}", "recorded:nowhere.parquet"
    found = DiscoveryProcess().find([there, nowhere, "gpu"])
    assert found[there] == discover(there)
    assert isinstance(found[nowhere], BadRecording)
    assert "no such file" in str(found[nowhere])
    assert isinstance(found["gpu"], UnknownDeviceSelection)


def test_a_recording_that_is_gone_hides_no_other_and_is_found_again(record: Callable[[int], Path]) -> None:
    one, two = record(1), record(2)
    watcher = DeviceWatcher(f"recorded:{one}, recorded:{two}?scale=0.5")
    both = uuids(watcher.first())
    content = one.read_bytes()
    one.unlink()
    look = watcher.scan()
    assert (uuids(look), look.unknown) == (both[1:], frozenset())
    assert "no such file" in look.problems[f"recorded:{one}"]
    one.write_bytes(b"half of it")
    assert uuids(watcher.scan()) == both[1:]
    one.write_bytes(content)
    look = watcher.scan()
    assert (uuids(look), look.problems) == (both, {})


def test_where_nothing_is_found_at_first_it_says_why_as_discover_does(
    driver: Driver, record: Callable[[int], Path]
) -> None:
    with pytest.raises(BadRecording, match="no such file"):
        DeviceWatcher("recorded:nowhere.parquet").first()
    with pytest.raises(CudaUnavailable, match="shows no card"):
        DeviceWatcher("cuda").first()
    # One that is missing at first does not keep the others from work.
    look = DeviceWatcher(f"cuda,GPU-1,recorded:nowhere.parquet,recorded:{record(1)}").first()
    assert backends(look) == [Backend.RECORDED]
    assert look.problems.keys() == {"cuda", "GPU-1", "recorded:nowhere.parquet"}


@pytest.mark.parametrize("selection", ["", " ,", "gpu", "cpu,recorded:x?speed=1"])
def test_a_selection_that_cannot_be_read_is_refused(selection: str, driver: Driver) -> None:
    with pytest.raises(UnknownDeviceSelection):
        DeviceWatcher(selection).first()


def test_a_device_that_two_words_name_is_one(driver: Driver) -> None:
    driver.uuids = ["GPU-a", "GPU-b"]
    assert uuids(DeviceWatcher("GPU-B,cuda,auto").scan()) == ["GPU-b", "GPU-a"]


def test_cards_come_and_go_each_look_in_a_session_of_its_own(driver: Driver) -> None:
    driver.uuids = ["GPU-a", "GPU-b"]
    watcher = DeviceWatcher("auto,cuda,GPU-b,GPU-c")
    assert uuids(watcher.first()) == ["GPU-a", "GPU-b"]
    driver.uuids = ["GPU-b", "GPU-c"]
    assert uuids(watcher.scan()) == ["GPU-b", "GPU-c"]
    assert (driver.sessions, driver.open_sessions) == (2, 0)
    driver.uuids = []
    look = watcher.scan()
    assert (look.found, look.unknown, look.cards_known) == ([], frozenset(), True)


@pytest.mark.parametrize(
    "trouble", [CudaUnavailable(why="no driver"), MeasurementFailed(why="error 999"), OSError("a defect")]
)
@pytest.mark.parametrize("selection", ["auto", "cuda", "GPU-a,GPU-b"])
def test_a_driver_in_trouble_makes_cards_unknown_and_not_gone(
    driver: Driver, selection: str, trouble: Exception, record: Callable[[int], Path]
) -> None:
    watcher = DeviceWatcher(f"{selection},recorded:{record(1)}")
    driver.uuids = ["GPU-a", "GPU-b"]
    both = uuids(watcher.first())[:2]
    driver.uuids = ["GPU-a"]
    watcher.scan()
    driver.trouble = trouble
    look = watcher.scan()
    assert backends(look) == [Backend.RECORDED]
    # The one that the last look missed too: a look that failed says nothing more of it.
    assert look.unknown == set(both)
    assert not look.cards_known
    driver.trouble = None
    assert uuids(watcher.scan())[:1] == ["GPU-a"]


def test_the_cpu_stands_in_for_cards_that_never_were_here_but_not_for_lost_ones(driver: Driver) -> None:
    (processor,) = discover("cpu")
    driver.trouble = CudaUnavailable(why="nvidia-ml-py is not installed")
    watcher = DeviceWatcher("auto")
    for look in (watcher.first(), watcher.scan()):
        assert (look.found, look.unknown, look.cards_known) == ([processor], frozenset(), False)
    driver.trouble = None
    assert watcher.scan().found == [processor]
    driver.uuids = ["GPU-a"]  # the driver was late
    assert uuids(watcher.scan()) == ["GPU-a"]
    driver.uuids = []
    assert watcher.scan().found == []
    driver.trouble = CudaUnavailable(why="no driver")
    look = watcher.scan()
    assert look.found == []
    assert look.unknown == {"GPU-a", processor.uuid}


def test_numbers_in_cuda_visible_devices_mean_the_cards_that_they_meant_at_first(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    watcher = DeviceWatcher("cuda")
    assert uuids(watcher.scan()) == []
    driver.uuids = ["GPU-of-another", "GPU-a", "GPU-b", "GPU-of-a-third"]
    assert uuids(watcher.first()) == ["GPU-a", "GPU-b"]
    driver.uuids.remove("GPU-a")
    assert uuids(watcher.scan()) == ["GPU-b"]
    driver.uuids.insert(0, "GPU-a")
    assert uuids(watcher.scan()) == ["GPU-a", "GPU-b"]


def test_a_lost_card_of_cuda_visible_devices_does_not_hide_those_after_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    driver.uuids = ["GPU-b", "GPU-c"]
    for selection in ("auto", "GPU-b"):
        assert uuids(DeviceWatcher(selection).first()) == ["GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CudaUnavailable):
        DeviceWatcher("cuda").first()


def test_a_selection_asks_for_cards_by_word_or_by_uuid() -> None:
    assert DeviceWatcher("auto").asks_for("GPU-a", "cuda")
    assert DeviceWatcher("cpu,cuda").asks_for("GPU-a", "cuda")
    assert DeviceWatcher("gpu-A").asks_for("GPU-a", "cuda")
    assert not DeviceWatcher("GPU-b,cpu").asks_for("GPU-a", "cuda")
    assert not DeviceWatcher("auto").asks_for("CPU-a", "cpu")
    assert not DeviceWatcher("auto,recorded:x").asks_for("REC-a", "recorded")

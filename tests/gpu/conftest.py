"""What every test on a card needs. Without CuPy and a card each module is skipped, with the reason.

    farm kernels build tests/gpu/cutlass.yaml --arch sm_90a -o kernels
    farm kernels build examples/campaigns/hopper-few.yaml --arch sm_90a -o kernels
    farm kernels build tests/gpu/triton.yaml --arch sm_90a -o kernels
    FARM_TEST_KERNELS=kernels pytest tests/gpu --numprocesses 2

Without `FARM_TEST_KERNELS` each kernel is compiled by the first test that needs it; those of Triton with the version that is installed. `FARM_TEST_CARD` chooses the card,
as `CUDA_VISIBLE_DEVICES` does elsewhere.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from farm.errors import FarmError
from farm.settings import settings
from workers.devices import cards, open_device
from workers.devices.cuda import CudaDevice


@cache
def _why_not() -> str | None:
    """Why there is no card to test on. Neither imports CuPy nor creates a context."""
    try:
        return None if cards.find_cards() else "the driver shows no card"
    except FarmError as error:
        return str(error)


class _Skipped(pytest.Item):
    """Stands for all tests of a module."""

    def runtest(self) -> None:
        pytest.skip(str(_why_not()))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class _SkippedModule(pytest.Module):
    """A module that is not imported: it has one test, which is skipped."""

    def collect(self) -> list[pytest.Item]:
        return [_Skipped.from_parent(self, name="all tests, which need a card")]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if _why_not() is None else _SkippedModule.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            # CuPy warns of parts of CUDA that it looks for at import; they are not what is tested.
            item.add_marker(pytest.mark.filterwarnings("default"))


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@pytest.fixture(scope="package", autouse=True)
def given() -> Iterator[None]:
    """What the user chose for these tests. Other tests have the environment that `environment` made."""
    chosen = {
        "FARM_KERNELS": os.environ.get("FARM_TEST_KERNELS"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("FARM_TEST_CARD"),
        "FARM_TRITON_VERSION": _installed_version("triton"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in chosen.items():
            if value is not None:
                patch.setenv(name, value)
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture(autouse=True)
def share_of_the_card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `alone` compares times, so no other process of these tests uses a card meanwhile."""
    alone = request.node.get_closest_marker("alone") is not None
    folder = Path(tempfile.gettempdir())
    with (
        (folder / "gemm-farm-gpu-tests.turn").open("a") as turn,
        (folder / "gemm-farm-gpu-tests.lock").open("a") as lock,
    ):
        fcntl.flock(turn, fcntl.LOCK_EX)  # who waits for the others comes before those that come later
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    opened = open_device(cards.find_cards()[0])
    assert isinstance(opened, CudaDevice)
    opened.open()
    yield opened
    opened.close()

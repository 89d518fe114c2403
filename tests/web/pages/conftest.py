"""A farm whose pages are looked at: in this process without a browser, and as a real one with all its programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from farm.api.access import Access
from farm.db.engine import make_engine
from farm.services import ServiceUrls
from farm.services.background import stop_in_background
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from farm.services.session import Session
from farm.settings import Settings
from farm.web.app import make_app
from farm.web.security import Policy
from support.browsing import IMPORTED, BrowsedFarm, record
from support.cheap_training import cheap_trainings
from support.folders import open_folder
from support.homes import embedded_settings, need_embedded_services
from support.model_records import record_models
from support.page_samples import filled_farm
from support.training_tables import tiled_table
from support.visiting import visitor
from trainer.forest import ForestSettings
from trainer.registry import train_and_register

MODELLED = "nvidia-h200"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """On a migrated database: `database_url` copies one for a test that has an engine."""
    made = make_engine(database_url, application="test")
    yield made
    made.dispose()


@pytest.fixture
def filled(engine: Engine) -> int:
    """A device and a campaign of twelve jobs, of which some were measured and one failed for good; the device's id."""
    return filled_farm(engine)


@pytest.fixture(scope="session")
def registry_with_a_model(tmp_path_factory: pytest.TempPathFactory, new_registry: Callable[[Path], str]) -> Path:
    """A folder with a registry, `mlflow.db`, that has a champion of nvidia-h200."""
    folder = tmp_path_factory.mktemp("models")
    uri = new_registry(folder)
    table = tiled_table((256, 512, 1024), tiles=(8, 16, 32)).assign(device_type=MODELLED)
    with cheap_trainings():
        train_and_register(table, MODELLED, tracking_uri=uri, code_version="1.0", settings=ForestSettings(trees=10))
    return folder


@pytest.fixture
def access(engine: Engine, database_url: str, registry_with_a_model: Path) -> Access:
    uri = f"sqlite:///{registry_with_a_model / 'mlflow.db'}"
    settings = Settings.model_construct(**{**Settings().model_dump(), "mlflow_tracking_uri": uri})
    record_models(uri, engine)
    return Access(settings, who="test", opened=Session(settings, ServiceUrls(database_url, None, uri), engine))


@pytest.fixture
def browser_like(access: Access) -> Iterator[httpx.Client]:
    """Somebody who asks for pages, of a farm without tokens."""
    with visitor(make_app(access, policy=Policy(tokens=False))) as client:
        yield client


@pytest.fixture
def browser_with_tokens(access: Access) -> Iterator[httpx.Client]:
    with visitor(make_app(access, policy=Policy(tokens=True))) as client:
        yield client


@pytest.fixture(scope="session")
def browsed_farm(registry_with_a_model: Path) -> Iterator[BrowsedFarm]:
    """A farm with all its programs, two recorded devices and a model, served on a free port."""
    need_embedded_services()
    with open_folder() as folder:
        home = folder / ".farm"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_"))}
        environment = {
            **kept,
            "FARM_HOME": str(home),
            # Batches that land while somebody looks.
            "FARM_BATCH_SECONDS": "0.5",
            "FARM_DEVICES": f"recorded:{folder / 'a.parquet'},recorded:{folder / 'b.parquet'}",
            "MLFLOW_TRACKING_URI": f"sqlite:///{registry_with_a_model / 'mlflow.db'}",
            "FARM_MODEL_SIGNING_KEY": os.environ["FARM_TEST_MODEL_KEY"],
        }
        farm = (sys.executable, "-m", "farm")
        try:
            for name, runtime_ms in (("a", 2.0), ("b", 3.0)):
                record(folder / f"{name}.parquet", f"card-{name}", runtime_ms=runtime_ms)
            subprocess.run(
                [*farm, "up", "--no-trainer", "--no-builder"],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
            )
            subprocess.run(
                [*farm, "import", "dataset", str(IMPORTED[0])],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
            )
            subprocess.run(
                [*farm, "models", "sign", f"gemm-forest-{MODELLED}", "1"],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
            )
            with subprocess.Popen(
                [*farm, "serve", "--port", "0", "--no-tokens"],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as server:
                assert server.stdout is not None
                try:
                    yield BrowsedFarm(server.stdout.readline().strip())
                finally:
                    server.terminate()
                    server.wait(120)
        finally:
            stop_in_background(embedded_settings(home))
            remove_cluster(Home(home))

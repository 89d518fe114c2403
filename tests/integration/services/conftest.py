"""Homes in which Postgres ran, or nothing yet."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.services import cluster, services
from farm.services.embedded import stop_unused_services
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from support.folders import open_folder
from support.homes import (
    embedded_settings,
    need_embedded_services,
    processes_under,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder that every account can enter. At the end nothing may run in it."""
    need_embedded_services()
    with open_folder() as made:
        try:
            yield made
            assert processes_under(made) == []
        finally:
            for run in made.rglob("run"):
                stop_unused_services(embedded_settings(run.parent))
                cluster.remove_cluster(Home(run.parent))


@pytest.fixture
def new_home(folder: Path) -> Path:
    """A home that nothing was ever started in."""
    return folder / ".farm"


@pytest.fixture(scope="session")
def made_home() -> Iterator[Path]:
    """A home in which Postgres ran once: to set up its data takes ten times as long as to start it."""
    need_embedded_services()
    with open_folder() as folder:
        home = folder / ".farm"
        with services(embedded_settings(home)):
            pass
        yield home
        cluster.remove_cluster(Home(home))


@pytest.fixture
def home(folder: Path, made_home: Path) -> Path:
    """A home in which Postgres ran before."""
    home = folder / ".farm"
    # Owners too: for root, the data belong to another account.
    subprocess.run(["cp", "-a", "--", made_home, home], check=True)
    shutil.rmtree(home / "logs")
    EmbeddedPostgres(Home(home))._note_password()
    return home

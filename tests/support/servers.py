"""Postgres and Redis of the tests' own, for a session or a module."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.services import ServiceUrls, postgres, services
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from support.homes import embedded_settings, need_embedded_services

_UNSAFE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""No test needs what a crash of the machine would lose, and on a busy disk a database for each test takes seconds."""

WITH_PASSWORDS = "local all all scram-sha-256\n"
"""The `pg_hba.conf` of a server in which every role logs in with its password."""


@contextmanager
def own_services(*, hba: str = postgres._HBA, create: str = postgres._CREATE) -> Iterator[ServiceUrls]:
    """Postgres, which is set up by `hba` and the SQL `create`, and Redis.

    The folder has a short name, as sockets need, and is open to the account that Postgres runs as.
    """
    need_embedded_services()
    folder = Path(tempfile.mkdtemp(prefix="farm-", dir="/tmp"))
    folder.chmod(0o755)
    settings = embedded_settings(folder / ".farm")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(postgres, "_HBA", hba)
            patch.setattr(postgres, "_CREATE", create)
            patch.setattr(postgres, "SETTINGS", postgres.SETTINGS | _UNSAFE)
            with services(settings, broker=True) as urls:
                yield urls
    finally:
        remove_cluster(Home.of(settings))
        shutil.rmtree(folder)

"""Postgres and Redis of the tests' own, for a session or a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from farm.services import ServiceUrls, postgres, services
from farm.services.cluster import remove_cluster
from farm.services.home import Home
from support.folders import open_folder
from support.homes import embedded_settings, need_embedded_services

_FOR_TESTS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_wal_size": "64MB",
}
"""No test needs what a crash of the machine would lose. The log must not fill the memory that it may be in."""

WITH_PASSWORDS = "local all all scram-sha-256\n"
"""The `pg_hba.conf` of a server in which every role logs in with its password."""


@contextmanager
def own_services(*, hba: str = postgres._HBA, create: str = postgres._CREATE) -> Iterator[ServiceUrls]:
    """Postgres, which is set up by `hba` and the SQL `create`, and Redis."""
    need_embedded_services()
    with open_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "SETTINGS", postgres.SETTINGS | _FOR_TESTS)
        settings = embedded_settings(folder / ".farm")
        try:
            with ExitStack() as running:
                with pytest.MonkeyPatch.context() as making:  # clusters that tests make meanwhile are not set up so
                    making.setattr(postgres, "_HBA", hba)
                    making.setattr(postgres, "_CREATE", create)
                    urls = running.enter_context(services(settings, broker=True))
                yield urls
        finally:
            remove_cluster(Home.of(settings))

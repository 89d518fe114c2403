"""What attacks on the farm need: a migrated database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from farm.db.engine import make_engine


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = make_engine(database_url, application="test")
    yield made
    made.dispose()

"""What every command needs: the services, the database at the right revision, and the campaign it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from farm.db import migrate
from farm.db.engine import DURABLE, make_engine
from farm.errors import NotThroughTheApi
from farm.services import ServiceUrls, prepare_database, services
from farm.settings import Settings, settings


@dataclass(frozen=True)
class Session:
    settings: Settings
    urls: ServiceUrls
    engine: Engine


@contextmanager
def session(
    *, broker: bool = False, statements: Mapping[str, str] = DURABLE, connections: int = 5
) -> Iterator[Session]:
    """The services of this farm, started where they are embedded and do not run.

    The embedded database belongs to this version and is brought to its revision. One that FARM_DATABASE_URL names
    is left as it is: raises `WrongRevision` where it is at another. Raises `NotThroughTheApi` where only FARM_API_URL
    says where the farm is. `statements` are settings of each connection, of which that many are kept.
    """
    current = settings()
    require_own(current)
    with services(current, broker=broker) as urls:
        engine = make_engine(urls.database_url, application="farm", pool_size=connections, session=statements)
        try:
            if migrate.current(engine) != migrate.head():
                prepare_database(current, urls)
            yield Session(current, urls, engine)
        finally:
            engine.dispose()


def require_own(current: Settings) -> None:
    """Raises `NotThroughTheApi` where only FARM_API_URL says where the farm is."""
    if current.api_url is not None and current.embedded_database:
        raise NotThroughTheApi

"""Session of a command: the services, and the database at the right revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from farm.completion_names import remember
from farm.db import audit, migrate
from farm.db.audit import Change
from farm.db.engine import DURABLE, make_engine
from farm.devices import IMPORTED_PREFIX
from farm.errors import NotThroughTheApi
from farm.services import ServiceUrls, services
from farm.settings import Settings, settings


@dataclass(frozen=True)
class Session:
    settings: Settings
    urls: ServiceUrls
    engine: Engine

    @contextmanager
    def change(self, operation: str) -> Iterator[Change]:
        """Opens a transaction for a recorded change of the farm: see `farm.db.audit`."""
        with audit.change(self.engine, audit.local_actor(), operation) as change:
            yield change


@contextmanager
def session(
    *, broker: bool = False, statements: Mapping[str, str] = DURABLE, connections: int = 5
) -> Iterator[Session]:
    """The services of this farm, started where they are embedded and do not run.

    The embedded database belongs to this version and is brought to its revision. One that FARM_DATABASE_URL names
    is not changed: raises `WrongRevision` where it is at another. Raises `NotThroughTheApi` where only FARM_API_URL
    says where the farm is. `statements` are settings of each connection; that many connections are kept.
    """
    current = settings()
    require_own(current)
    with services(current, broker=broker) as urls:
        engine = make_engine(urls.database_url, application="farm", pool_size=connections, session=statements)
        try:
            if migrate.current(engine) != migrate.head():
                from farm.services import prepare_database

                prepare_database(current, urls)
            yield Session(current, urls, engine)
            _remember_names(current, engine)
        finally:
            engine.dispose()


_NAMES = text("""
SELECT ARRAY(SELECT name FROM (SELECT name, max(id) AS newest FROM campaigns GROUP BY name) c ORDER BY newest DESC LIMIT 500),
    ARRAY(SELECT uuid FROM devices WHERE vanished_at IS NULL AND uuid NOT LIKE :imported ORDER BY id DESC LIMIT 500),
    ARRAY(SELECT type FROM devices GROUP BY type ORDER BY max(id) DESC LIMIT 500),
    ARRAY(SELECT device_type FROM trainings WHERE state = 'done' GROUP BY device_type ORDER BY max(id) DESC LIMIT 500)
""")


def _remember_names(current: Settings, engine: Engine) -> None:
    """Stores the names for shell completion. Does not wait for a database that is away."""
    if not current.home.is_dir():
        return
    try:
        with engine.connect() as connection:
            campaigns, uuids, types, trained = connection.execute(_NAMES, {"imported": f"{IMPORTED_PREFIX}%"}).one()
    except SQLAlchemyError:
        return
    url = None if current.database_url is None else current.database_url.get_secret_value()
    from farm.registry import model_name

    models = [model_name(device_type) for device_type in trained]
    remember(current.home, url, {"campaigns": campaigns, "devices": uuids, "types": types, "models": models})


def require_own(current: Settings) -> None:
    """Raises `NotThroughTheApi` where only FARM_API_URL says where the farm is."""
    if current.api_url is not None and current.embedded_database:
        raise NotThroughTheApi

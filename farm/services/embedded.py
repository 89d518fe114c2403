"""Postgres, the broker and the model registry for one command: the configured servers, or embedded ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from sqlalchemy.exc import ProgrammingError

from farm.db.engine import check_reachable, make_engine
from farm.errors import BadServiceUrl, BrokerUnreachable, first_line
from farm.services import urls
from farm.services.home import Home
from farm.services.postgres import EmbeddedPostgres
from farm.services.redis import EmbeddedRedis, why_broker_takes_no_messages
from farm.services.usage import EmbeddedService, in_use, revive, stop_if_unused
from farm.settings import Settings

BROKER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ServiceUrls:
    """URLs of the services. `repr` omits URLs with passwords."""

    # postgresql+psycopg://…, as SQLAlchemy takes it.
    database_url: str = field(repr=False)
    # redis://, rediss:// or redis+socket://, as kombu takes it. None where the broker was not asked for.
    broker_url: str | None = field(repr=False)
    # MLflow's tracking and registry URI.
    tracking_uri: str = field(repr=False)


@contextmanager
def services(settings: Settings, *, broker: bool = False) -> Iterator[ServiceUrls]:
    """The services of this farm inside the block: Postgres, and with `broker` also Redis.

    Servers in the settings are checked. Embedded ones are started if they do not run, and stopped at the end unless another
    process of this home uses them.

    Raises `BadServiceUrl`, `DatabaseUnreachable`, `BrokerUnreachable`, `EmbeddedServiceMissing`,
    `EmbeddedServiceFailed`, `OtherPostgresVersion` or `HomeUnusable`.
    """
    with ExitStack() as held:
        database_url, broker_url = _named_database(settings), _named_broker(settings) if broker else None
        if database_url is None:
            postgres = EmbeddedPostgres(home := Home.open(settings))
            held.enter_context(in_use(postgres, home))
            database_url = postgres.url
        if broker and broker_url is None:
            redis = EmbeddedRedis(home := Home.open(settings))
            held.enter_context(in_use(redis, home))
            broker_url = redis.url
        yield ServiceUrls(database_url=database_url, broker_url=broker_url, tracking_uri=settings.tracking_uri)


def embedded_services(settings: Settings) -> list[EmbeddedService]:
    """The embedded services of this home, for which no URL is set. Starts nothing and creates no file."""
    home = Home.of(settings)
    found: list[EmbeddedService] = []
    if settings.embedded_database:
        found.append(EmbeddedPostgres(home))
    if settings.embedded_broker:
        found.append(EmbeddedRedis(home))
    return found


def revive_services(settings: Settings) -> list[str]:
    """Starts embedded services again that died, inside `services(…, broker=True)`. Returns their names."""
    return [service.name for service in embedded_services(settings) if revive(service, Home.of(settings))]


def stop_unused_services(settings: Settings) -> list[str]:
    """Stops unused embedded services. Returns their names."""
    return [service.name for service in embedded_services(settings) if stop_if_unused(service, Home.of(settings))]


def _named_database(settings: Settings) -> str | None:
    if settings.database_url is None:
        return None
    url = urls.database_url(settings.database_url.get_secret_value())
    engine = make_engine(url, application="farm check", pool_size=1)
    try:
        check_reachable(engine)
    except ProgrammingError as error:
        raise BadServiceUrl(variable="FARM_DATABASE_URL", url=urls.safe_url(url), why=first_line(error.orig)) from None
    finally:
        engine.dispose()
    return url


def _named_broker(settings: Settings) -> str | None:
    if settings.broker_url is None:
        return None
    url = urls.broker_url(settings.broker_url.get_secret_value())
    if (why := why_broker_takes_no_messages(url, timeout_s=BROKER_TIMEOUT_S)) is not None:
        raise BrokerUnreachable(url=urls.safe_url(url), why=why)
    return url

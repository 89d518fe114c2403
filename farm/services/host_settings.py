"""The settings of a worker host: its own login, the user of workers in Redis, and the public keys of builders.

Of the URLs of this process, a host gets the addresses and the TLS options. User names, passwords and all other options stay here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from sqlalchemy import make_url

from farm import signing_keys
from farm.addresses import stays_here
from farm.broker import redis_users
from farm.broker.redis_users import RedisUser
from farm.services import urls
from farm.settings import Settings
from farm.signing import Purpose

HOST, KEY, PASSWORD = "HOST", "KEY", "PASSWORD"
"""Stand for values that are not known here."""

DATABASE_OPTIONS = frozenset(
    {
        "host", "hostaddr", "port", "sslmode", "sslrootcert", "sslnegotiation", "ssl_min_protocol_version", "gssencmode",
        "channel_binding", "require_auth", "connect_timeout", "target_session_attrs",
    }
)  # fmt: skip
BROKER_OPTIONS = frozenset({"ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs"})
"""Options of the URLs that a host gets as well."""

_COMPOSE_NAMES = frozenset({"postgres", "redis"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetting:
    """A variable to set on a host. `notes` say what to replace in its value, or to do for it."""

    variable: str
    value: str
    notes: tuple[str, ...] = ()


def database(url: str, *, name: str, login: str, password: str | None, database: str) -> HostSetting:
    """FARM_DATABASE_URL of the host `name`. `password` is None where the login had one already."""
    given = make_url(url)
    options = {option: value for option, value in given.query.items() if option in DATABASE_OPTIONS}
    named = options.get("hostaddr") or options.get("host") or given.host
    own = given.set(
        drivername="postgresql", username=login, password=password or PASSWORD, database=database, query=options
    )
    if not named:
        own = own.set(host=HOST)
    notes = [
        note
        for host in (named if isinstance(named, tuple) else str(named or HOST).split(","))
        for note in _unreachable("FARM_DATABASE_URL", "Postgres", host, name)
    ]
    if password is None:
        notes.append(
            f"{PASSWORD} in FARM_DATABASE_URL was printed when the login was made. If it is lost: farm hosts revoke "
            f"{name}, then farm hosts add {name}"
        )
    if options.get("sslrootcert", "system") != "system":
        notes.append(f"{options['sslrootcert']} in FARM_DATABASE_URL is a file that {name} must have too")
    return HostSetting(
        variable="FARM_DATABASE_URL", value=own.render_as_string(hide_password=False), notes=tuple(notes)
    )


def broker(settings: Settings, *, name: str) -> HostSetting:
    """FARM_BROKER_URL of the host `name`. Raises `BadServiceUrl` for a broker here that cannot be used."""
    user, secret = redis_users.name_of(RedisUser.WORKER), settings.redis_worker_password
    given = urlsplit("" if settings.broker_url is None else urls.broker_url(settings.broker_url.get_secret_value()))
    options = {option: value for option, value in parse_qsl(given.query) if option in BROKER_OPTIONS}
    scheme, address, path = given.scheme, given.netloc.rpartition("@")[2], given.path
    if scheme not in ("redis", "rediss"):
        number = dict(parse_qsl(given.query)).get("virtual_host", "0").strip("/")
        scheme, address, path = "redis", f"{HOST}:6379", f"/{number or 0}"
    password = PASSWORD if secret is None else quote(secret.get_secret_value(), safe="")
    notes = [*_unreachable("FARM_BROKER_URL", "Redis", given.hostname or HOST, name)]
    if secret is None:
        notes.append(
            f"{PASSWORD} in FARM_BROKER_URL is that of Redis' user {user}: REDIS_WORKER_PASSWORD in .env of Compose, "
            "elsewhere the FARM_REDIS_WORKER_PASSWORD that farm redis users was given, or what it printed"
        )
    if "ssl_ca_certs" in options:
        notes.append(f"{options['ssl_ca_certs']} in FARM_BROKER_URL is a file that {name} must have too")
    value = urlunsplit((scheme, f"{user}:{password}@{address}", path, urlencode(options, safe="/"), ""))
    return HostSetting(variable="FARM_BROKER_URL", value=value, notes=tuple(notes))


def kernel_keys(settings: Settings) -> HostSetting:
    """FARM_KERNEL_KEYS of every host. Raises `BadSigningKey`."""
    known = signing_keys.known(settings, Purpose.KERNEL)
    notes: tuple[str, ...] = ()
    if not known:
        notes = (
            f"{KEY} in FARM_KERNEL_KEYS is the public key that farm keys prints on the builder's host, in the line kernel; "
            "docker compose run --rm builder farm keys in Compose. Several have commas between them. Without builders, leave "
            "this line out",
        )
    elif not settings.kernel_keys:
        notes = ("FARM_KERNEL_KEYS is this machine's key. Add what farm keys prints on the hosts of other builders",)
    return HostSetting(variable="FARM_KERNEL_KEYS", value=",".join(known) or KEY, notes=notes)


def _unreachable(variable: str, service: str, host: str, name: str) -> Iterator[str]:
    """What to do where no other machine reaches a service at the host that the URL here names."""
    if host == HOST:
        yield f"{HOST} in {variable} is the address at which {name} reaches {service}"
    elif stays_here(host) or host in _COMPOSE_NAMES:
        yield f"{host} in {variable} is known on this machine only. Write the address at which {name} reaches {service}"

"""The one place that reads environment variables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from farm.completion_names import default_home
from farm.errors import BadDuration, BadSettings, HomeUntrusted
from farm.masking import masked
from farm.ownership import why_untrusted
from farm.python_program import SAFE_PATH
from farm.time_parsing import duration
from farm.variables import IDLE_EXIT_SECONDS, INTERNAL_VARIABLES

PREFIX = "FARM_"

TEST_PREFIX = "FARM_TEST_"
"""Variables of the test suite."""

YEAR_S = 365 * 86_400.0
"""The upper limit of times. Postgres and `time.sleep` refuse much larger ones."""

Seconds = Annotated[FiniteFloat, Gt(0), Le(YEAR_S)]
"""A time in seconds."""


def _folder(value: object) -> object:
    """Checks that a path is a folder, or can become one."""
    text = os.fspath(value) if isinstance(value, (str, Path)) else ""
    if "\0" in text:
        raise ValueError("it holds a zero byte")
    if os.path.lexists(text) and not os.path.isdir(text):  # noqa: PTH112 - never raises
        raise ValueError("it is there already and is not a folder")
    # A path that is not UTF-8 stays as it is: pydantic would refuse it as text.
    return Path(text) if text else value


Folder = Annotated[Path, BeforeValidator(_folder)]


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]


def _weights(text: str) -> dict[str, float]:
    """`ann=2,bob=0.5` as weights by name."""
    found = {}
    for one in filter(None, map(str.strip, text.split(","))):
        owner, equals, weight = (part.strip() for part in one.rpartition("="))
        try:
            found[owner] = float(weight)
        except ValueError:
            found[owner] = math.nan
        if not owner or not equals or not _MIN_WEIGHT <= found[owner] <= _MAX_WEIGHT:
            raise ValueError(
                f"{one!r} is not an owner and a number from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:,.0f}, as ann=2"
            )
    return found


def _weights_are_numbers(text: str) -> str:
    _weights(text)
    return text


def _public_keys(text: str) -> str:
    for one in text.replace(",", " ").split():
        if not _PUBLIC_KEY.fullmatch(one):
            raise ValueError(f"{one!r} is not the 44 characters that farm keys make prints")
    return text


def _trace_endpoint(text: str) -> str:
    try:
        parts, valid = urlsplit(text), urlsplit(text).port != 0
    except ValueError:
        valid = False
    if not valid or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no URL of a collector, such as http://host:4318")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a password, which belongs into OTEL_EXPORTER_OTLP_HEADERS")
    return text


TraceEndpoint = Annotated[str, AfterValidator(_trace_endpoint)]
"""A URL of a collector, without the path of spans."""


def _age(text: str) -> str:
    if text:
        try:
            duration(text)
        except BadDuration as error:
            raise ValueError(str(error)) from None
    return text


Age = Annotated[str, AfterValidator(_age)]
"""How long, as in `90d`; empty: unset."""

PublicKeys = Annotated[str, AfterValidator(_public_keys)]
"""Keys of `farm.signing`, with commas or spaces between them."""

_PUBLIC_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
_MIN_WEIGHT, _MAX_WEIGHT = 0.001, 1000.0
_MAX_INT = 2**31 - 1


class Settings(BaseSettings):
    """Where the services are, and how the farm behaves. Unset URLs mean: the embedded services of this machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    home: Folder = Field(default_factory=default_home, description="folder of the embedded services and their data")
    database_url: SecretStr | None = Field(default=None, description="postgresql://user:password@host:5432/farm")
    broker_url: SecretStr | None = Field(default=None, description="redis://:password@host:6379/0")
    # Commands that can, ask the API there instead of the database; set where only the API is reached.
    api_url: str | None = Field(
        default=None, description="http://host:8000 of a farm serve, to ask instead of a database"
    )
    api_token: SecretStr | None = Field(default=None, description="the token that the API asks for")
    pull_token: SecretStr | None = Field(
        default=None, description="the token that the other farm of farm pull asks for"
    )
    # `farm serve` alone reads these, and checks them together: farm/web/oidc/configuration.py.
    public_url: str | None = Field(default=None, description="https://farm.example, where browsers reach farm serve")
    oidc_issuer: str | None = Field(default=None, description="URL of the OpenID provider that signs browsers in")
    oidc_client_id: str | None = Field(default=None, description="id of the farm at the provider")
    oidc_client_secret: SecretStr | None = Field(default=None, description="secret of the farm at the provider")
    oidc_name: str | None = Field(default=None, max_length=60, description="name of the provider on the sign-in page")
    oidc_scopes: str = Field(default="openid profile email", description="scopes that the farm asks for")
    oidc_groups_claim: str = Field(default="groups", description="claim with the groups of a person")
    oidc_roles: str = Field(default="", description="roles of groups, as gemm-admins=admin,gpu-users=submit")
    oidc_session_hours: float = Field(
        default=8.0, gt=0, le=168, description="hours after which such a session ends at latest"
    )
    mlflow_tracking_uri: str | None = Field(default=None, validation_alias="MLFLOW_TRACKING_URI", repr=False)
    # Which devices farm-worker serves: auto, or a list of cpu, cuda, GPU UUIDs, recorded:<file>.
    devices: str = Field(default="auto", description="devices a worker serves: auto, cpu, cuda, recorded:FILE, a UUID")
    log_level: LogLevel = Field(default="INFO", description="what is logged: this level and above")
    log_json: bool = Field(default=False, description="one JSON object per log line")
    log_max_mb: Annotated[float, Ge(0.01), Le(100_000)] = Field(
        default=10.0,
        description="MiB of a log in FARM_HOME/logs; above that it is rotated, and four earlier parts are kept",
    )
    # Prometheus metrics: host:port, or a port alone for this machine only. Unset: none are served.
    coordinator_metrics: str | None = Field(default=None, description="where the coordinator serves its metrics")
    worker_metrics: str | None = Field(default=None, description="where farm-worker serves those of its devices")
    web_metrics: str | None = Field(default=None, description="where farm serve serves its metrics")
    # Spans of OpenTelemetry. Unset: none are made.
    otel_endpoint: TraceEndpoint | None = Field(
        default=None, description="collector of spans over OTLP/HTTP, as http://host:4318"
    )
    otlp_endpoint: TraceEndpoint | None = Field(
        default=None,
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="the same, by OpenTelemetry's own name",
    )
    # Only `farm db worker-role` reads it.
    worker_password: SecretStr | None = Field(default=None, description="password of the workers' database role")
    # Only `farm db reader-role` does.
    reader_password: SecretStr | None = Field(default=None, description="password of the readers' database role")
    # Only `farm db roles` reads these.
    application_password: SecretStr | None = Field(
        default=None, description="password of the database role of coordinator and builders"
    )
    web_password: SecretStr | None = Field(default=None, description="password of the database role of farm serve")
    trainer_password: SecretStr | None = Field(default=None, description="password of the trainers' database role")
    # Only `farm redis users` reads these, and `farm hosts add` that of workers.
    redis_coordinator_password: SecretStr | None = Field(
        default=None, description="password of the coordinator's user of Redis"
    )
    redis_worker_password: SecretStr | None = Field(default=None, description="password of the workers' user of Redis")
    redis_builder_password: SecretStr | None = Field(
        default=None, description="password of the builders' user of Redis"
    )
    redis_trainer_password: SecretStr | None = Field(
        default=None, description="password of the trainers' user of Redis"
    )
    # Dispatch. Times are seconds.
    lease_seconds: Seconds = Field(default=30.0, description="a lease not renewed for this long has passed")
    batch_seconds: Seconds = Field(default=4.0, description="device time that one batch aims at")
    batch_max_jobs: int = Field(default=500, ge=1, le=1_000_000, description="maximum jobs in a batch")
    outstanding_batches: int = Field(
        default=2, ge=1, le=1_000, description="batches kept ready or running per live device"
    )
    owner_weights: Annotated[str, AfterValidator(_weights_are_numbers)] = Field(
        default="", description="shares of owners, as ann=2,bob=0.5; 1 for others"
    )
    quota_open_jobs: int = Field(
        default=1_000_000, ge=0, description="open jobs that an owner with the role submit may have; 0: no limit"
    )
    quota_device_seconds: float = Field(
        default=5_000_000.0,
        ge=0,
        description="estimated device time that such an owner may have in progress; 0: no limit",
    )
    quota_max_priority: int = Field(
        default=0, ge=-100, le=100, description="highest priority that such an owner may give a campaign"
    )
    heartbeat_seconds: Seconds = Field(default=4.0, description="how often a worker says that it lives")
    silent_after_seconds: Seconds = Field(
        default=20.0, description="a device without a heartbeat for this long is silent"
    )
    resend_after_seconds: Seconds = Field(default=15.0, description="an unclaimed batch is sent again after this")
    quarantine_after_jobs: int = Field(
        default=5,
        ge=1,
        le=_MAX_INT,
        description="a device that fails this many jobs which others then measure is quarantined",
    )
    quarantine_after_corrupted: int = Field(
        default=2,
        ge=1,
        le=_MAX_INT,
        description="a device that corrupts results of this many configurations in seven days is quarantined",
    )
    sentinel_jobs: int = Field(
        default=100, ge=0, le=_MAX_INT, description="a device measures its sentinel after this many jobs; 0: never"
    )
    train_new_rows: int = Field(
        default=200,
        ge=0,
        le=_MAX_INT,
        description="rows of campaigns that ended after which a model is made again; 0: never",
    )
    # Kernels that are built ahead of time.
    device_locks: Folder | None = Field(
        default=None, description="folder of the locks of this host's devices; shared by all its users"
    )
    kernels: Folder | None = Field(default=None, description="folder of this host's built kernels")
    kernel_store: str = Field(
        default="database", description="where built kernels are shared: database, or a URL of fsspec (file, s3)"
    )
    cutlass_version: str = Field(default="4.2.0", description="CUTLASS that kernels are built with")
    cuda_version: str = Field(default="13.0.88", description="nvcc that kernels are built with")
    triton_version: str = Field(default="3.9.0", description="Triton that kernels are built with")
    # Signatures (farm/signing_keys.py). Unset: each home has keys of its own, and trusts those.
    kernel_signing_key: Path | None = Field(
        default=None, description="file of the private key that kernels built here are signed with"
    )
    kernel_keys: PublicKeys = Field(default="", description="public keys of those whose built kernels are loaded")
    model_signing_key: Path | None = Field(
        default=None, description="file of the private key that models learned here are signed with"
    )
    model_keys: PublicKeys = Field(default="", description="public keys of those whose models are loaded")
    publish_signing_key: Path | None = Field(
        default=None, description="file of the private key that published folders are signed with"
    )
    publish_keys: PublicKeys = Field(default="", description="public keys of those whose published folders are used")
    build_slots: int = Field(
        default=0, ge=0, le=1_024, description="kernels a builder builds at a time; 0: as cores and memory allow"
    )
    max_configurations: int = Field(
        default=20_000_000, ge=1, le=10**12, description="maximum configurations in one campaign"
    )

    # `farm prune` reads these. Unset: it removes nothing of that kind.
    keep_deleted: Age = Field(default="", description="how long deleted campaigns, imports and models are kept, as 30d")
    keep_sessions: Age = Field(default="", description="how long sessions of browsers that ended are kept")
    keep_kernels: Age = Field(default="", description="how long built kernels that nothing uses are kept")
    keep_cache: Age = Field(default="", description="how long built kernels stay unused in this host's folder")
    keep_logs: Age = Field(default="", description="how long logs of this home are kept")

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        """Checks settings that limit each other."""
        problems = []
        if 2 * self.heartbeat_seconds >= self.lease_seconds:
            problems.append(
                f"{self._now('lease_seconds')} with {self._now('heartbeat_seconds')}: a lease must last longer than two "
                f"heartbeats. Set FARM_LEASE_SECONDS above {2 * self.heartbeat_seconds:g}, or FARM_HEARTBEAT_SECONDS "
                f"below {self.lease_seconds / 2:g}."
            )
        if self.heartbeat_seconds >= self.silent_after_seconds:
            problems.append(
                f"{self._now('silent_after_seconds')} with {self._now('heartbeat_seconds')}: a device would count as "
                f"silent between two heartbeats. Set FARM_SILENT_AFTER_SECONDS above {self.heartbeat_seconds:g}, or "
                f"FARM_HEARTBEAT_SECONDS below {self.silent_after_seconds:g}."
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _now(self, name: str) -> str:
        default = "" if name in self.model_fields_set else " (the default)"
        return f"{_variable(name)}={getattr(self, name):g}{default}"

    @property
    def in_force(self) -> dict[str, str]:
        """The variables that are set, with their values; passwords and tokens as `***`."""
        return {
            _variable(name): _shown(name, value)
            for name in type(self).model_fields
            if name in self.model_fields_set and (value := getattr(self, name)) is not None
        }

    @property
    def weights_of_owners(self) -> dict[str, float]:
        """The weights of those owners that have another one than 1."""
        return _weights(self.owner_weights)

    @property
    def log_max_bytes(self) -> int:
        """The size above which a log of the home is rotated."""
        return int(self.log_max_mb * 2**20)

    @property
    def trace_endpoint(self) -> str | None:
        """Where spans are exported to; None: nowhere."""
        return self.otel_endpoint or self.otlp_endpoint

    @property
    def embedded_database(self) -> bool:
        return self.database_url is None

    @property
    def embedded_broker(self) -> bool:
        return self.broker_url is None

    @property
    def kernel_cache(self) -> Path:
        """The folder of this host's built kernels."""
        return self.kernels or self.home.absolute() / "kernels"

    @property
    def tracking_uri(self) -> str:
        """MLflow's tracking and registry URI: the variable, or a SQLite store in the farm's home."""
        return self.mlflow_tracking_uri or f"sqlite:///{self.home.absolute() / 'mlflow.db'}"


@cache
def settings() -> Settings:
    """The settings of this process, read once from its environment.

    Raises:
        BadSettings: with every variable whose value cannot be used.
        HomeUntrusted: the home that was found, or would be made, in the current folder or above, could belong to another user.
    """
    try:
        found = Settings()
    except ValidationError as error:
        raise BadSettings(problems="\n".join(_problems(error))) from None
    if "home" not in found.model_fields_set and (why := why_untrusted(found.home)) is not None:
        raise HomeUntrusted(home=found.home, why=why)
    return found


def unknown_variables() -> list[str]:
    """One line for each `FARM_*` variable of the environment that is not a setting, with the names it resembles."""
    known = {_variable(name): name for name in Settings.model_fields}
    found = []
    for given in sorted(os.environ):
        name = given.upper()  # as pydantic-settings reads them
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in known or name in INTERNAL_VARIABLES:
            continue
        close = get_close_matches(name, known, n=2, cutoff=0.8)
        advice = f"Did you mean {' or '.join(close)}?" if close else "docs/operating.md lists the settings."
        found.append(f"{given} is not a setting of the farm and has no effect. {advice}")
    return found


@contextmanager
def environment(**variables: str | None) -> Iterator[Settings]:
    """The settings of this process inside the block, with these variables set, or unset where they are None.

    For a command that works on another farm than the one that its environment names.
    """
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    settings.cache_clear()
    try:
        yield settings()
    finally:
        _set(before)
        settings.cache_clear()


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def idle_exit_s() -> float | None:
    """After how many seconds without work this process ends; None for one that waits for ever."""
    given = os.environ.get(IDLE_EXIT_SECONDS)
    return None if given is None else float(given)


def environment_for_children(**urls: str) -> dict[str, str]:
    """This process's environment with the given variables set, for programs that the farm starts."""
    return {**os.environ, **SAFE_PATH, **urls}


# --- messages ----------------------------------------------------------------------------------------


def _variable(name: str) -> str:
    """The environment variable of a field."""
    alias = Settings.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else PREFIX + name.upper()


def _problems(error: ValidationError) -> Iterator[str]:
    """One line for each variable that is wrong: its name, its value, and what is allowed."""
    names = {_variable(name): name for name in Settings.model_fields}
    for one in error.errors(include_url=False):
        if not one["loc"]:
            yield from str(one["ctx"]["error"]).splitlines()
            continue
        first = str(one["loc"][0])
        name = names.get(first, first)
        own = f": {one['ctx']['error']}" if one["type"] == "value_error" else ""
        given = os.environ.get(_variable(name), one["input"])
        yield f"{_variable(name)} is {_shown(name, given)!r}{own}. It must be {_allowed(Settings.model_fields[name])}."


def _shown(name: str, value: object) -> str:
    """A value as messages show it: no secret, no password of a URL, and not endless."""
    if SecretStr in (kinds := _kinds(Settings.model_fields[name])) or isinstance(value, SecretStr):
        return "***"
    text = str(value).lower() if bool in kinds and isinstance(value, bool) else str(value)
    text = masked(text)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


_MAX_SHOWN = 100


def _kinds(field: FieldInfo) -> tuple[Any, ...]:
    return get_args(field.annotation) or (field.annotation,)


def _allowed(field: FieldInfo) -> str:
    """What a field takes, from its type and limits."""
    kinds = _kinds(field)
    if bool in kinds:
        return "true or false"
    if Path in kinds:
        return "the path of a folder"
    if float in kinds or int in kinds:
        limits = [*field.metadata]
        words = ["a number" if float in kinds else "a whole number"]
        words += [f"above {limit.gt:,g}" for limit in limits if isinstance(limit, Gt)]
        words += [f"of at least {limit.ge:,}" for limit in limits if isinstance(limit, Ge)]
        words += [f"and at most {limit.le:,.0f}" for limit in limits if isinstance(limit, Le)]
        return " ".join(words)
    if all(isinstance(kind, str) for kind in kinds):
        return " or ".join(kinds)
    return "text"

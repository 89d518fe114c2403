"""The one place that reads environment variables."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_home() -> Path:
    """`.farm` of this folder or of the nearest one above that has it, as git finds `.git`."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".farm").is_dir():
            return folder / ".farm"
    return here / ".farm"


class Settings(BaseSettings):
    """Where the services are, and how the farm behaves. Unset URLs mean: the embedded services of this machine."""

    model_config = SettingsConfigDict(env_prefix="FARM_", env_ignore_empty=True, extra="ignore", frozen=True)

    home: Path = Field(default_factory=_default_home, description="folder of the embedded services and their data")
    database_url: SecretStr | None = Field(default=None, description="postgresql://user:password@host:5432/farm")
    broker_url: SecretStr | None = Field(default=None, description="redis://:password@host:6379/0")
    # Commands that can, ask the API there instead of the database; set where only the API is reached.
    api_url: str | None = Field(
        default=None, description="http://host:8000 of a farm serve, to ask instead of a database"
    )
    api_token: SecretStr | None = Field(default=None, description="the token that the API asks for")
    mlflow_tracking_uri: str | None = Field(default=None, validation_alias="MLFLOW_TRACKING_URI")
    # Which devices farm-worker serves: auto, or a list of cpu, cuda, GPU UUIDs, recorded:<file>.
    devices: str = Field(default="auto", description="devices a worker serves: auto, cpu, cuda, recorded:FILE, a UUID")
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR")
    log_json: bool = Field(default=False, description="one JSON object per log line")
    # Prometheus metrics: host:port, or a port alone for this machine only. Unset: none are served.
    coordinator_metrics: str | None = Field(default=None, description="where the coordinator serves its metrics")
    worker_metrics: str | None = Field(default=None, description="where farm-worker serves those of its devices")
    # Only `farm db worker-role` reads it.
    worker_password: SecretStr | None = Field(default=None, description="password of the workers' database role")
    # Only `farm db reader-role` does.
    reader_password: SecretStr | None = Field(default=None, description="password of the readers' database role")
    # Dispatch. Times are seconds.
    lease_seconds: float = Field(default=30.0, gt=0, description="a lease not renewed for this long has passed")
    batch_seconds: float = Field(default=4.0, gt=0, description="device time that one batch aims at")
    batch_max_jobs: int = Field(default=500, ge=1, description="jobs in one batch at the most")
    outstanding_batches: int = Field(default=2, ge=1, description="batches kept ready or running per live device")
    heartbeat_seconds: float = Field(default=4.0, gt=0, description="how often a worker says that it lives")
    silent_after_seconds: float = Field(default=20.0, gt=0, description="a device not heard of for this long is silent")
    resend_after_seconds: float = Field(default=15.0, gt=0, description="an unclaimed batch is sent again after this")
    quarantine_after_jobs: int = Field(
        default=5, ge=1, description="a device that fails this many jobs which others then measure is quarantined"
    )
    sentinel_jobs: int = Field(
        default=100, ge=0, description="a device measures its sentinel after this many jobs; 0: never"
    )
    train_new_rows: int = Field(
        default=200, ge=0, description="rows of campaigns that ended after which a model is made again; 0: never"
    )
    # Kernels that are built ahead of time.
    kernels: Path | None = Field(default=None, description="folder of this host's built kernels")
    kernel_store: str = Field(
        default="database", description="where built kernels are shared: database, or a URL of fsspec (file, s3)"
    )
    cutlass_version: str = Field(default="4.2.0", description="CUTLASS that kernels are built with")
    cuda_version: str = Field(default="13.0.88", description="nvcc that kernels are built with")
    build_slots: int = Field(
        default=0, ge=0, description="kernels a builder builds at a time; 0: as cores and memory allow"
    )
    max_configurations: int = Field(default=20_000_000, ge=1, description="configurations in one campaign at the most")

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
    """The settings of this process, read once from its environment."""
    return Settings()


def environment_for_children(**urls: str) -> dict[str, str]:
    """This process's environment with the given variables set, for processes that the farm starts."""
    return {**os.environ, **urls}

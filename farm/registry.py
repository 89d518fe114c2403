"""Reading the model registry: which models there are, fetching one, and asking it.

MLflow is imported only when it is needed (about a second), and always through `load_mlflow`.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from farm.errors import BadInput, MissingColumns, MlflowMissing, NoSuchModel, NotPredictable, RegistryUnreachable
from farm.kernels import Configuration

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "gemm-forest-"
CHAMPION = "champion"
"""The alias of the version that other programs pull."""

OUTPUTS = ("runtime_ms", "power_w", "energy_mj", "tflops")
"""The columns that a model predicts. Energy is per GEMM; power and energy are NaN where power was never measured."""

CONNECT_SECONDS = 5.0
"""How long a registry server may take to accept a connection."""

_QUIET = {
    # No usage reports to anybody.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One registered model version, as its tags describe it. Numbers that a version has no tag for are None."""

    name: str
    version: str
    device_type: str
    aliases: tuple[str, ...]
    created_at: datetime
    run_id: str | None
    # Of the training table: measurements, different configurations, and shapes (m, n, k).
    rows: int | None
    configurations: int | None
    shapes: int | None
    sources: str | None
    table_hash: str | None
    # Of the runtime, on shapes held out of training.
    median_error_pct: float | None
    mean_error_pct: float | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "created_at": self.created_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says of one configuration. Power and energy are None where the model has not learned power."""

    configuration: str
    runtime_ms: float
    power_w: float | None
    energy_mj: float | None
    tflops: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def model_name(device_type: str) -> str:
    """The registered name of a device type's model; a name that already has that form stays as it is."""
    return device_type if device_type.startswith(PREFIX) else PREFIX + device_type


def load_mlflow() -> Any:
    """MLflow without usage telemetry, progress bars and informational lines. Raises `MlflowMissing`."""
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        import mlflow
    except ModuleNotFoundError:
        raise MlflowMissing from None
    for name in ("mlflow", "alembic"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
    return mlflow


@contextmanager
def mlflow_warnings_ignored() -> Iterator[None]:
    """Around calls in which MLflow warns about itself: its type hints, and what SQLAlchemy 2.1 and pandas 3 deprecate.

    Nobody who reads such a warning here could mend it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_pyfunc() -> Any:
    """The module `mlflow.pyfunc`. Raises `MlflowMissing`."""
    load_mlflow()
    with mlflow_warnings_ignored():
        return importlib.import_module("mlflow.pyfunc")


@contextmanager
def registry_client(uri: str) -> Iterator[Any]:
    """An `MlflowClient` on that tracking and registry URI. What goes wrong inside is a `RegistryUnreachable`."""
    _check_answers(uri)
    mlflow = load_mlflow()
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with mlflow_warnings_ignored():
            client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        yield client
    except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
        raise RegistryUnreachable(url=_without_password(uri), why=_first_line(error)) from error


def list_models(uri: str) -> list[ModelInfo]:
    """Every version of every model of the farm, by name and newest first."""
    if not _has_been_used(uri):
        return []
    with registry_client(uri) as client:
        found = [
            _info(version, aliases)
            for name, aliases in _models(client).items()
            for version in _pages(client.search_model_versions, filter_string=f"name = '{name}'")
        ]
    return sorted(found, key=lambda model: (model.name, -int(model.version)))


def model_info(uri: str, name: str, alias_or_version: str | int = CHAMPION) -> ModelInfo:
    """One version of a model, given by name or device type. Raises `NoSuchModel`, naming those there are."""
    name, wanted = model_name(name), str(alias_or_version)
    models = list_models(uri)
    for model in models:
        if model.name == name and wanted in (model.version, *model.aliases):
            return model
    same = [model for model in models if model.name == name]
    if same:
        known = ", ".join(" = ".join([f"version {model.version}", *model.aliases]) for model in same)
        raise NoSuchModel(name=f"{name} with the version or alias {wanted}", known=known)
    known = ", ".join(dict.fromkeys(model.name for model in models)) or "none"
    raise NoSuchModel(name=f"model {name}", known=known)


def pull(uri: str, name: str, alias_or_version: str | int = CHAMPION) -> Any:
    """The loaded model (an `mlflow.pyfunc.PyFuncModel`). Raises `NoSuchModel`."""
    model = model_info(uri, name, alias_or_version)
    with registry_client(uri):
        return load_pyfunc().load_model(_fetch(uri, model, None))


def download(uri: str, name: str, alias_or_version: str | int = CHAMPION, *, to: Path) -> Path:
    """Puts a model's files into the folder `to` and returns it; `mlflow.pyfunc.load_model(to)` loads them.

    Raises `NoSuchModel`, and `BadInput` where the folder has something in it.
    """
    model = model_info(uri, name, alias_or_version)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(detail=f"{to} exists and is not an empty folder. Name another, or remove it.")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(detail=f"{to} cannot be made: {_first_line(error)}") from None
    with registry_client(uri):
        _fetch(uri, model, to)
    return to


def predict(model: Any, configurations: Sequence[Configuration]) -> list[Prediction]:
    """What a pulled model says of each configuration. Raises `NotPredictable`, naming what the model knows."""
    if not configurations:
        return []
    import pandas as pd

    outputs = _ask(model, pd.DataFrame.from_records([_raw_columns(each) for each in configurations]))
    return [
        Prediction(configuration=each.canonical, **{name: _or_none(value) for name, value in row.items()})  # type: ignore[arg-type]
        for each, row in zip(configurations, outputs.to_dict("records"), strict=True)
    ]


def predict_table(model: Any, table: pd.DataFrame, *, path: str = "the table") -> pd.DataFrame:
    """The raw columns of `table` that the model reads, and beside them the columns of `OUTPUTS`.

    Kernel parameters may be columns of their own, or one column `parameters` of JSON text as in exported results.
    Raises `MissingColumns`, and `NotPredictable` for values that the model has not learned.
    """
    schema = model.metadata.get_input_schema()
    wide = _spread_parameters(table, path)
    missing = [name for name in schema.required_input_names() if name not in wide]
    if missing:
        raise MissingColumns(path=path, missing=", ".join(missing), found=", ".join(map(str, table.columns)))
    raw = wide[[name for name in schema.input_names() if name in wide]].dropna(axis="columns", how="all")
    return raw.join(_ask(model, raw))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as mappings fit for JSON: gaps are None, never NaN."""
    import pandas as pd

    rows = table.to_dict("records")
    return [{str(name): None if pd.isna(value) else value for name, value in row.items()} for row in rows]


def read_configurations(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file of configurations. Raises `BadInput`."""
    import pandas as pd

    reader = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(path.suffix.lower())
    if reader is None:
        raise BadInput(detail=f"{path} is neither .csv nor .parquet.")
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise BadInput(detail=f"{path} cannot be read: {_first_line(error)}") from None


# --- asking ----------------------------------------------------------------------------------------


def _raw_columns(configuration: Configuration) -> dict[str, Any]:
    problem, kernel = configuration.problem, configuration.kernel
    shape, types = problem.shape, problem.types
    return {
        **{"m": shape.m, "n": shape.n, "k": shape.k},
        **{"ab": str(types.ab), "cd": str(types.cd), "acc": str(types.acc), "layout": str(problem.layout)},
        **{"alpha": problem.alpha, "beta": problem.beta, "family": kernel.family},
        **dict(kernel.parameters),
    }


def _ask(model: Any, raw: pd.DataFrame) -> pd.DataFrame:
    mlflow = load_mlflow()
    try:
        outputs: pd.DataFrame = model.predict(raw)
    except (ValueError, mlflow.MlflowException) as error:
        raise NotPredictable(why=_first_line(error)) from error
    return outputs[list(OUTPUTS)]


def _spread_parameters(table: pd.DataFrame, path: str) -> pd.DataFrame:
    if "parameters" not in table:
        return table
    import json

    import pandas as pd

    try:
        given = [json.loads(value) if isinstance(value, str) else dict(value) for value in table["parameters"]]
    except (ValueError, TypeError) as error:
        raise BadInput(detail=f"{path}: the column parameters holds something that is not JSON: {error}") from None
    columns = pd.DataFrame.from_records(given, index=table.index)
    return table.drop(columns=["parameters", *(name for name in columns if name in table)]).join(columns)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


# --- the registry ----------------------------------------------------------------------------------


def _models(client: Any) -> dict[str, dict[str, list[str]]]:
    """Name -> version -> its aliases, of the farm's models."""
    found: dict[str, dict[str, list[str]]] = {}
    for model in _pages(client.search_registered_models, filter_string=f"name LIKE '{PREFIX}%'"):
        versions = found.setdefault(model.name, {})
        for alias, version in model.aliases.items():
            versions.setdefault(str(version), []).append(alias)
    return found


def _pages(search: Any, **arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token, **arguments)
        yield from page
        token = page.token
        if not token:
            return


def _info(version: Any, aliases: dict[str, list[str]]) -> ModelInfo:
    tags = version.tags

    def number(tag: str) -> float | None:
        return float(tags[tag]) if tag in tags else None

    def whole(tag: str) -> int | None:
        return int(tags[tag]) if tag in tags else None

    return ModelInfo(
        name=version.name,
        version=str(version.version),
        device_type=tags.get("device_type", version.name.removeprefix(PREFIX)),
        aliases=tuple(sorted(aliases.get(str(version.version), ()))),
        created_at=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
        run_id=version.run_id or None,
        rows=whole("rows"),
        configurations=whole("configurations"),
        shapes=whole("shapes"),
        sources=tags.get("sources"),
        table_hash=tags.get("table_hash"),
        median_error_pct=number("runtime_median_error_pct"),
        mean_error_pct=number("runtime_mean_error_pct"),
    )


def _fetch(uri: str, model: ModelInfo, to: Path | None) -> str:
    """A local path of the model's files: the registry's own where it is a local folder and `to` is None."""
    from mlflow import artifacts

    source = f"models:/{model.name}/{model.version}"
    folder: str = artifacts.download_artifacts(
        artifact_uri=source, dst_path=None if to is None else str(to), tracking_uri=uri, registry_uri=uri
    )
    return folder


def _sqlite_file(uri: str) -> Path | None:
    return Path(urlsplit(uri).path.removeprefix("/")) if uri.startswith("sqlite:") else None


def _has_been_used(uri: str) -> bool:
    """False for a local store that nothing was written to yet: reading it would create it, at the cost of seconds."""
    file = _sqlite_file(uri)
    return file is None or file.exists()


def _check_answers(uri: str) -> None:
    """A server that is not there is found out here in `CONNECT_SECONDS`; MLflow itself retries for minutes."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise RegistryUnreachable(url=_without_password(uri), why=_first_line(error)) from None


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc="***@" + parts.netloc.rsplit("@", 1)[1]).geturl()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""Lists registered models, and loads and downloads them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import make_archive
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from farm.errors import BadArchive, BadInput, NoSuchModel, NoSuchVersion
from farm.registry import conditions, promotion_verdict
from farm.registry.conditions import Conditions
from farm.registry.files import SignedFiles
from farm.registry.loaded_model import Model, predictor_of
from farm.registry.local_registry import versions_in_file
from farm.registry.manifest import MAX_FILES, is_safe
from farm.registry.mlflow_client import first_line, has_been_used, registry_client
from farm.registry.model_names import PREFIX, model_name
from farm.registry.outputs import OUTPUTS
from farm.registry.promotion_verdict import PromotionVerdict
from farm.registry.trust import Signature, Trust
from farm.settings import settings

ERRORS = {"median_error_pct": "median error %", "mean_error_pct": "mean %", "p90_error_pct": "90th percentile %"}
"""The displayed error metrics of a target, and their labels."""

TEST_SET = "test_set"
"""The kind of evaluation on an independent test set, which is quoted if the device type has one."""

QUOTED_TAG = "quoted"
"""The tag with the kind of evaluation of the quoted errors: `test_set`, or a kind of folds."""

TESTED_ON = {TEST_SET: "an independent test set", "unseen_shapes": "held-out shapes of its training table"}
"""Descriptions of the kinds of evaluation."""

CHAMPION = "champion"
"""The alias of the version that other programs pull."""

DELETED_TAG = "farm.deleted"
"""The tag of deleted versions: see `farm.registry.deletions`."""

MAX_UNPACKED = 1 << 30
"""Limit for the unpacked bytes of a model's ZIP file: twice the limit of its arrays in memory."""

MAX_RATIO, ALWAYS_ALLOWED_BYTES = 50, 1 << 24
"""A ZIP file may unpack to that many times its size or to that many bytes. A model's arrays are already compressed."""

CHALLENGER = "challenger"
"""The alias of the newest version, where it did not become the champion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A registered model version. Values of missing tags are None."""

    name: str
    version: str
    device_type: str
    aliases: tuple[str, ...]
    created_at: datetime
    run_id: str | None
    # Numbers of measurements, configurations and shapes (m, n, k) in the training table.
    rows: int | None
    configurations: int | None
    shapes: int | None
    sources: str | None
    table_hash: str | None
    # The kind of evaluation of `errors`: a key of `TESTED_ON`.
    quoted: str
    # Errors of the runtime in that evaluation.
    median_error_pct: float | None
    mean_error_pct: float | None
    # The reason for or against its promotion, and whether it is sound: False if it leaked, or is no better than a baseline.
    # None before an evaluation.
    decision: str | None
    sound: bool | None
    # The decisive test, and the conditions of the training rows.
    verdict: PromotionVerdict | None
    conditions: Conditions | None
    # The farm's version that trained it, and the signature of its files.
    code_version: str | None
    signature: Signature | None
    # Target -> metric -> error in percent, in the quoted evaluation.
    errors: dict[str, dict[str, float]]
    # Configurations with a burst time. None for versions of before there was one.
    burst_configurations: int | None = None

    @property
    def tested_on(self) -> str:
        """Description of the rows of the quoted evaluation."""
        return TESTED_ON.get(self.quoted, self.quoted.replace("_", " "))

    @property
    def standing(self) -> str:
        """champion, challenger, or `older version`."""
        return next((alias for alias in (CHAMPION, CHALLENGER) if alias in self.aliases), "older version")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "created_at": self.created_at.isoformat()}


def list_models(uri: str) -> list[ModelInfo]:
    """All versions of all models, by name and newest first."""
    if not has_been_used(uri):
        return []
    in_file = versions_in_file(uri, prefix=PREFIX)
    if in_file is not None:
        found = [_info(version, version.aliases) for version in in_file if DELETED_TAG not in version.tags]
    else:
        with registry_client(uri) as client:
            found = [
                _info(version, aliases.get(str(version.version), ()))
                for name, aliases in _models(client).items()
                for version in _pages(client.search_model_versions, filter_string=f"name = '{name}'")
                if DELETED_TAG not in version.tags
            ]
    return sorted(found, key=lambda model: (model.name, -int(model.version)))


def every_version(client: Any) -> list[Any]:
    """All versions of all models as MLflow objects, including deleted ones."""
    return [
        version
        for name in _models(client)
        for version in _pages(client.search_model_versions, filter_string=f"name = '{name}'")
    ]


def model_info(uri: str, name: str, alias_or_version: str | int = CHAMPION) -> ModelInfo:
    """One version of a model, by its name or device type. Raises `NoSuchModel` with the known ones."""
    name, wanted = model_name(name), str(alias_or_version)
    models = list_models(uri)
    for model in models:
        if model.name == name and wanted in (model.version, *model.aliases):
            return model
    same = [model for model in models if model.name == name]
    if same:
        known = ", ".join(" = ".join([f"version {model.version}", *model.aliases]) for model in same)
        raise NoSuchVersion(name=name, version=wanted, known=known)
    known = ", ".join(dict.fromkeys(model.name for model in models)) or "none"
    raise NoSuchModel(name=f"model {name}", known=known)


def answering_model(uri: str, name: str) -> ModelInfo:
    """The version that predicts for a model or device type: the champion, or else the newest version.

    Raises `NoSuchModel`.
    """
    found = {model.name: model for model in answering_models(uri)}
    if model_name(name) not in found:
        raise NoSuchModel(name=f"model {model_name(name)}", known=", ".join(found) or "none")
    return found[model_name(name)]


def answering_models(uri: str) -> list[ModelInfo]:
    """The predicting version of each model, by name."""
    by_name: dict[str, ModelInfo] = {}
    for model in list_models(uri):  # the newest first
        if model.name not in by_name or CHAMPION in model.aliases:
            by_name[model.name] = model
    return list(by_name.values())


def pull(uri: str, name: str, alias_or_version: str | int = CHAMPION, *, trust: Trust | None = None) -> Model:
    """The loaded model. Raises `NoSuchModel`, and as `load`."""
    return load(uri, model_info(uri, name, alias_or_version), trust)


def load(uri: str, model: ModelInfo, trust: Trust | None = None) -> Model:
    """Loads a version for `predict`, `predict_table` and `recommend`.

    Only its arrays are read; none of its code runs. `trust` defaults to the settings of this process. Raises
    `ModelNotTrusted`, `ModelUnreadable`.
    """
    return Model(predictor_of(model, signed_files(uri, model, trust).forest()))


def signed_files(uri: str, model: ModelInfo, trust: Trust | None = None) -> SignedFiles:
    """The files of a version and of its run. Raises `ModelNotTrusted`."""
    return SignedFiles(uri, model, trust or Trust(settings()))


def download(
    uri: str, name: str, alias_or_version: str | int = CHAMPION, *, to: Path, trust: Trust | None = None
) -> Path:
    """Puts a model's files into the folder `to` and returns it; `mlflow.pyfunc.load_model(to)` loads them.

    Raises `NoSuchModel`, `ModelNotTrusted`, and `BadInput` for a folder that is not empty.
    """
    files = signed_files(uri, model_info(uri, name, alias_or_version), trust)
    with _new_folder(to) as staging:
        files.save(staging / "files")
        # Moved in one step, so an interrupted download leaves nothing behind.
        (staging / "files").replace(to)
    return to


def packed(uri: str, model: ModelInfo, to: Path, *, trust: Trust | None = None) -> Path:
    """Writes the files of a version to a ZIP file in that folder."""
    with TemporaryDirectory(prefix="model-", dir=to) as folder:
        files = download(uri, model.name, model.version, to=Path(folder) / "model", trust=trust)
        return Path(make_archive(str(to / "model"), "zip", files))


def unpack(archive: Path, to: Path) -> Path:
    """Unpacks a ZIP file of `packed` into the folder `to` and returns it. Raises `BadArchive`, `BadInput`."""
    with _new_folder(to) as staging:
        try:
            with ZipFile(archive) as packed_files:
                _require_bounded(packed_files.infolist(), archive.stat().st_size)
                packed_files.extractall(staging / "files")
        except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise BadArchive(why=f"it is not a readable ZIP file: {first_line(error)}") from None
        (staging / "files").replace(to)
    return to


def _require_bounded(entries: Sequence[ZipInfo], packed_bytes: int) -> None:
    """Raises `BadArchive` for paths that leave the folder, and for more files or bytes than a model has.

    `ZipFile` reads at most the stated size of an entry, so the sizes bound the written bytes.
    """
    unpacked = sum(entry.file_size for entry in entries)
    for entry in entries:
        if not is_safe(entry.filename.removesuffix("/")):
            raise BadArchive(why=f"it names {entry.filename[:80]!r}, which is not a file of a model")
    if len(entries) > MAX_FILES or unpacked > MAX_UNPACKED:
        raise BadArchive(
            why=f"it holds {len(entries):,} files with {unpacked:,} bytes; the limits are {MAX_FILES:,} and {MAX_UNPACKED:,}"
        )
    if unpacked > max(packed_bytes * MAX_RATIO, ALWAYS_ALLOWED_BYTES):
        raise BadArchive(why=f"its {packed_bytes:,} bytes unpack to {unpacked:,}, more than {MAX_RATIO} times as many")


@contextmanager
def _new_folder(to: Path) -> Iterator[Path]:
    """A staging folder next to `to`. Raises `BadInput` if `to` is not empty or cannot be written."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(detail=f"{to} exists and is not an empty folder. Name another, or remove it.")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".download-", dir=to.parent) as staging:
            yield Path(staging)
    except OSError as error:
        raise BadInput(detail=f"{to} cannot be written: {first_line(error)}") from None


def _models(client: Any) -> dict[str, dict[str, list[str]]]:
    """Name -> version -> aliases of the farm's models."""
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


def _info(version: Any, aliases: Sequence[str]) -> ModelInfo:
    tags = version.tags

    def number(tag: str) -> float | None:
        return float(tags[tag]) if tag in tags else None

    def whole(tag: str) -> int | None:
        return int(tags[tag]) if tag in tags else None

    return ModelInfo(
        name=version.name,
        version=str(version.version),
        device_type=tags.get("device_type", version.name.removeprefix(PREFIX)),
        aliases=tuple(sorted(aliases)),
        created_at=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
        run_id=version.run_id or None,
        rows=whole("rows"),
        configurations=whole("configurations"),
        shapes=whole("shapes"),
        burst_configurations=whole("burst_configurations"),
        sources=tags.get("sources"),
        table_hash=tags.get("table_hash"),
        quoted=tags.get(QUOTED_TAG, "unseen_shapes"),
        median_error_pct=number("runtime_median_error_pct"),
        mean_error_pct=number("runtime_mean_error_pct"),
        decision=tags.get("decision"),
        sound=tags["sound"] == "true" if "sound" in tags else None,
        verdict=PromotionVerdict.from_tag(tags.get(promotion_verdict.TAG)),
        conditions=Conditions.from_tag(tags.get(conditions.TAG)),
        code_version=tags.get("code_version"),
        signature=Signature.from_tags(tags),
        errors=_errors(tags),
    )


def _errors(tags: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The tags `runtime_median_error_pct` and so on, by target."""
    found: dict[str, dict[str, float]] = {}
    for target in OUTPUTS:
        of = {name: float(tags[tag]) for name in ERRORS if (tag := f"{target.rsplit('_', 1)[0]}_{name}") in tags}
        if of:
            found[target] = of
    return found

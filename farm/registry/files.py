"""The signed files of a version: each is fetched by its path in the manifest, and checked against its hash.

Nothing is fetched of a version without a valid signature, and no file that the manifest does not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from farm.errors import ModelNotTrusted
from farm.registry.loaded_model import predictor_of
from farm.registry.local_registry import files_in_folder, local_folder, run_folder
from farm.registry.manifest import MANIFEST, MAX_BYTES, MAX_MANIFEST_BYTES, BadManifest, File, Manifest, read_file
from farm.registry.mlflow_client import load_mlflow, mlflow_warnings_ignored, registry_client
from farm.registry.trust import TAG, Signature, Trust

if TYPE_CHECKING:
    from farm.registry.models import ModelInfo

FOREST = "artifacts/forest/"
"""The folder of a model's arrays."""


class SignedFiles:
    """The files of a version. Raises `ModelNotTrusted` without a valid signature, and for a file that differs."""

    def __init__(self, uri: str, model: ModelInfo, trust: Trust) -> None:
        self._uri = uri
        self._model = model
        digest = trust.check(model.name, model.version, model.signature)
        content = self._of_model(MANIFEST, MAX_MANIFEST_BYTES)
        if File.of(content).sha256 != digest:
            raise self._refused(f"its {MANIFEST} is not the one that was signed")
        try:
            self._manifest = Manifest.from_bytes(content)
        except BadManifest as error:
            raise self._refused(str(error)) from None

    def forest(self) -> dict[str, bytes]:
        """The files that the predictor reads, by name."""
        paths = [path for path in self._manifest.model if path.startswith(FOREST)]
        return {path.removeprefix(FOREST): self._checked(path, self._manifest.model[path]) for path in paths}

    def save(self, to: Path) -> None:
        """Writes all files of the model and its manifest into a new folder."""
        for path, file in self._manifest.model.items():
            _write(to / path, self._checked(path, file))
        _write(to / MANIFEST, self._manifest.to_bytes())

    def of_run(self, folder: str) -> list[str]:
        """Paths of the files in a folder of the version's run."""
        return [path for path in self._manifest.run if path.startswith(f"{folder}/")]

    def save_of_run(self, paths: list[str], to: Path) -> None:
        """Writes files of the version's run into a folder, under the same paths."""
        location = self._location_of_run()
        for path in paths:
            file = self._manifest.run[path]
            _write(to / path, self._same(path, file, self._fetched(location, path, file.size)))

    def _checked(self, path: str, file: File) -> bytes:
        return self._same(path, file, self._of_model(path, file.size))

    def _of_model(self, path: str, max_bytes: int) -> bytes:
        return self._fetched(self._location, path, max_bytes)

    @cached_property
    def _location(self) -> str:
        """The location of the model's files. A registry in a local file is read without MLflow."""
        folder = files_in_folder(self._uri, self._model.name, self._model.version)
        if folder is not None:
            return str(folder)
        with registry_client(self._uri) as client:
            return str(client.get_model_version_download_uri(self._model.name, self._model.version))

    def _location_of_run(self) -> str:
        """The location of the files of the version's run. A registry in a local file is read without MLflow."""
        folder = None if self._model.run_id is None else run_folder(self._uri, self._model.run_id)
        if folder is not None:
            return str(folder)
        with registry_client(self._uri) as client:
            return str(client.get_run(self._model.run_id).info.artifact_uri)

    def _fetched(self, location: str, path: str, max_bytes: int) -> bytes:
        folder = local_folder(location)
        try:
            if folder is not None:
                return read_file(folder / path, max_bytes=max_bytes)
            with TemporaryDirectory(prefix="farm-model-") as to:
                with registry_client(self._uri):
                    file = Path(repository(self._uri, location).download_artifacts(path, to))
                return read_file(file, max_bytes=max_bytes)
        except FileNotFoundError:
            raise self._refused(f"its file {path} is missing") from None
        except BadManifest as error:
            raise self._refused(str(error)) from None

    def _same(self, path: str, file: File, content: bytes) -> bytes:
        if File.of(content) != file:
            raise self._refused(f"its file {path} is not the one that was signed")
        return content

    def _refused(self, why: str) -> ModelNotTrusted:
        return ModelNotTrusted(name=self._model.name, version=self._model.version, why=why)


def sign(client: Any, name: str, version: str, manifest: Manifest, trust: Trust) -> Signature:
    """Signs a version whose files, including `MANIFEST`, are in the registry, and records the signature."""
    signature = trust.sign(name, version, File.of(manifest.to_bytes()).sha256)
    trust.record(name, version, signature)
    client.set_model_version_tag(name, version, TAG, signature.to_tag())
    return signature


def vouch(uri: str, model: ModelInfo, trust: Trust) -> Manifest:
    """Signs the files that a version has in the registry.

    The signer is responsible for their origin, which no hash can prove. Raises `ModelUnreadable`, and `ModelNotTrusted` for
    anything that is not a file of a model.
    """
    with registry_client(uri) as client, ExitStack() as stack:
        location = client.get_model_version_download_uri(model.name, model.version)
        files, run = stack.enter_context(_folder(uri, location)), None
        if model.run_id is not None:
            run = stack.enter_context(_folder(uri, client.get_run(model.run_id).info.artifact_uri))
        try:
            manifest = Manifest.of(files, run)
            arrays = [path for path in manifest.model if path.startswith(FOREST)]
            predictor_of(
                model, {path.removeprefix(FOREST): read_file(files / path, max_bytes=MAX_BYTES) for path in arrays}
            )
        except BadManifest as error:
            raise ModelNotTrusted(name=model.name, version=model.version, why=str(error)) from None
        add_manifest(manifest, Path(stack.enter_context(TemporaryDirectory(prefix="farm-model-"))), uri, location)
        sign(client, model.name, model.version, manifest, trust)
    return manifest


def add_manifest(manifest: Manifest, staging: Path, uri: str, location: str) -> None:
    """Adds a manifest to the files of a registered model."""
    (staging / MANIFEST).write_bytes(manifest.to_bytes())
    repository(uri, location).log_artifact(str(staging / MANIFEST))


@contextmanager
def _folder(uri: str, location: str) -> Iterator[Path]:
    """The folder of a location, or a temporary copy of its files."""
    folder = local_folder(location)
    if folder is not None:
        yield folder
        return
    with TemporaryDirectory(prefix="farm-model-") as to:
        yield Path(repository(uri, location).download_artifacts("", to))


def repository(uri: str, location: str) -> Any:
    """MLflow's artifact repository of a location."""
    load_mlflow()
    with mlflow_warnings_ignored():
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        return get_artifact_repository(location, tracking_uri=uri)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

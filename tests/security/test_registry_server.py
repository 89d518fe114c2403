"""MLflow as Compose runs it: who has no password gets nothing, and no command line shows one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

import farm
from support.homes import eventually
from support.shared_server import SharedServer, shared_server

pytestmark = pytest.mark.long

ROOT = Path(farm.__file__).parent.parent
SERVICE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["mlflow"]
PASSWORD = "of the registry, 1"
ATTACKS = (
    ("GET", "/api/2.0/mlflow/registered-models/search", None),
    ("GET", "/ajax-api/2.0/mlflow/registered-models/search", None),
    ("POST", "/api/2.0/mlflow/registered-models/create", {"name": "planted"}),
    ("POST", "/api/2.0/mlflow/model-versions/create", {"name": "planted", "source": "s3://mine"}),
    ("POST", "/api/2.0/mlflow/registered-models/alias", {"name": "planted", "alias": "champion", "version": "1"}),
    ("POST", "/api/2.0/mlflow/users/create", {"username": "me", "password": "a long password"}),
    ("POST", "/graphql", {"query": "{ __typename }"}),
    ("GET", "/api/2.0/mlflow-artifacts/artifacts", None),
    ("PUT", "/api/2.0/mlflow-artifacts/artifacts/planted.py", None),
    ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/planted.py", None),
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    with shared_server() as made:
        made.make_roles()
        yield made


@pytest.fixture(scope="module")
def registry(server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process]]:
    """Its URL and process, with the command and variables of docker-compose.yml."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    authentication = folder / "auth.ini"
    authentication.write_text((ROOT / "docker" / "mlflow-auth.ini").read_text().replace("/data", str(folder)))
    given = {
        "MLFLOW_BACKEND_STORE_URI": server.url("mlflow", "mlflow"),
        "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "artifacts"),
        "MLFLOW_AUTH_CONFIG_PATH": str(authentication),
        "MLFLOW_AUTH_ADMIN_USERNAME": SERVICE["environment"]["MLFLOW_AUTH_ADMIN_USERNAME"],
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a secret key",
        "HOME": str(folder),
    }
    assert set(given) == set(SERVICE["environment"])
    here = {"0.0.0.0": "127.0.0.1", "5000": str(port), "mlflow:5000,127.0.0.1:5000": f"127.0.0.1:{port}"}
    command = [here.get(word, word) for word in SERVICE["command"][1:]]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command],
            env={**os.environ, **given}, stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return httpx.get(f"{url}/health", timeout=10).status_code == 200
            except httpx.TransportError:
                return False

        eventually(answers, seconds=480)  # MLflow makes its tables
        yield url, psutil.Process(process.pid)
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.kill()
        process.wait()


@pytest.mark.parametrize("credentials", [None, ("farm", "guessed"), ("admin", "password1234")])
def test_who_has_no_password_reads_and_plants_nothing(
    registry: tuple[str, psutil.Process], credentials: tuple[str, str] | None
) -> None:
    url, _ = registry
    with httpx.Client(base_url=url, auth=credentials, timeout=60) as client:
        answers = {path: client.request(method, path, json=body).status_code for method, path, body in ATTACKS}
    assert set(answers.values()) == {401}, answers


def test_who_has_it_uses_the_registry(registry: tuple[str, psutil.Process]) -> None:
    url, _ = registry
    with httpx.Client(base_url=url, auth=("farm", PASSWORD), timeout=60) as client:
        assert client.post("/api/2.0/mlflow/registered-models/create", json={"name": "one"}).status_code == 200
        found = client.get("/api/2.0/mlflow/registered-models/search").json()["registered_models"]
        assert [one["name"] for one in found] == ["one"]


def test_no_command_line_shows_a_password(registry: tuple[str, psutil.Process], server: SharedServer) -> None:
    _, process = registry
    lines = [" ".join(one.cmdline()) for one in (process, *process.children(recursive=True))]
    assert len(lines) > 1
    for secret in (PASSWORD, "a secret key", server.url("mlflow", "mlflow"), "of%2Fmlflow"):
        assert not any(secret in line for line in lines)

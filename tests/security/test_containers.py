"""What whoever takes over a container gets with it: rights, files, networks and secrets of each service of docker-compose.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import farm
from farm.broker.redis_users import RedisUser, name_of
from farm.db.roles import WORKER_ROLE

ROOT = Path(farm.__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
each_service = pytest.mark.parametrize("name", SERVICES)


def test_compose_has_no_default_password_and_its_example_names_every_variable() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    example = (ROOT / ".env.example").read_text()
    assert used == set(re.findall(r"^(\w+)=", example, flags=re.MULTILINE))
    secrets = {name for name in used if name.endswith(("_PASSWORD", "_SECRET_KEY"))}
    assert len(secrets) == 13
    for name in secrets:
        assert f"${{{name}:-" not in text
        assert re.search(rf"^{name}=$", example, flags=re.MULTILINE)


def test_compose_serves_the_page_to_who_has_a_token() -> None:
    assert SERVICES["web"]["command"] == ["farm", "serve", "--host", "0.0.0.0", "--tokens", "--behind-proxy"]
    assert SERVICES["web"]["ports"] == ["${BIND_ADDRESS:-127.0.0.1}:8000:8000"]


def test_compose_gives_workers_the_role_that_it_makes_for_them_and_no_other() -> None:
    for name in ("worker-cpu", "worker-gpu"):
        variables = SERVICES[name]["environment"]
        assert variables["FARM_DATABASE_URL"].startswith(f"postgresql://{WORKER_ROLE}:${{WORKER_PASSWORD")
    migrate = SERVICES["migrate"]
    assert migrate["command"][2].endswith("farm db worker-role")
    assert "WORKER_PASSWORD" in migrate["environment"]["FARM_WORKER_PASSWORD"]


@each_service
def test_compose_gives_a_service_no_more_of_the_host_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert 0 < service["pids_limit"] <= 4000
    assert re.fullmatch(r"\d+g", service["mem_limit"])
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode", "devices", "userns_mode"} & set(service)
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))


@each_service
def test_compose_runs_no_service_as_root(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        assert service["user"] in ("postgres", "redis")
        return
    dockerfile = (ROOT / "Dockerfile").read_text()
    target = service["build"]["target"]
    (stage,) = re.findall(rf"^FROM \S+ AS {target}\n(.*?)(?=^FROM|\Z)", dockerfile, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^USER (\S+)", stage, flags=re.MULTILINE) == ["farm"]


NETWORKS = {
    "postgres": {"data", "models"},
    "redis": {"data"},
    "redis-users": {"data"},
    "mlflow": {"models"},
    "migrate": {"data"},
    "coordinator": {"data"},
    "trainer": {"data", "models"},
    "web": {"models", "edge"},
    "builder": {"data"},
    "worker-cpu": {"data"},
    "worker-gpu": {"data"},
}
"""Workers and builders do not reach the registry; the web, which people reach, does not reach Redis."""


def test_compose_has_three_networks_and_each_service_is_on_those_it_needs() -> None:
    assert {name: set(service["networks"]) for name, service in SERVICES.items()} == NETWORKS
    assert set(COMPOSE["networks"]) == {"data", "models", "edge"}
    assert COMPOSE["networks"]["models"] == {"internal": True}


def test_compose_publishes_no_port_of_the_registry_and_all_others_on_one_address() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"postgres", "redis", "web"}
    assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for ports in published.values() for port in ports)


ROLES = {
    "migrate": ("farm_owner", "OWNER_PASSWORD"),
    "coordinator": ("farm_application", "APPLICATION_PASSWORD"),
    "builder": ("farm_application", "APPLICATION_PASSWORD"),
    "trainer": ("farm_trainer", "TRAINER_PASSWORD"),
    "web": ("farm_web", "WEB_PASSWORD"),
    "worker-cpu": ("farm_worker", "WORKER_PASSWORD"),
    "worker-gpu": ("farm_worker", "WORKER_PASSWORD"),
    "mlflow": ("mlflow", "MLFLOW_DATABASE_PASSWORD"),
}


REDIS_USERS = {
    "coordinator": RedisUser.COORDINATOR, "builder": RedisUser.BUILDER, "trainer": RedisUser.TRAINER,
    "worker-cpu": RedisUser.WORKER, "worker-gpu": RedisUser.WORKER,
}  # fmt: skip


@each_service
def test_compose_gives_each_service_its_role_and_no_secret_of_another(name: str) -> None:
    variables: dict[str, str] = SERVICES[name].get("environment", {})
    urls = [url for url in variables.values() if str(url).startswith("postgresql")]
    found = [re.findall(r"//(\w+):\$\{(\w+):\?", url)[0] for url in urls]
    assert found == ([ROLES[name]] if name in ROLES else [])
    given = set(re.findall(r"\$\{(\w+_PASSWORD|\w+_KEY)\b", str(variables)))
    registry = {"MLFLOW_PASSWORD"} if name in ("web", "trainer", "mlflow") else set()
    broker = set[str]()
    if name in REDIS_USERS:
        user, password = re.findall(r"^redis://(\w+):\$\{(\w+):\?", variables["FARM_BROKER_URL"])[0]
        assert (user, password) == (name_of(REDIS_USERS[name]), f"REDIS_{REDIS_USERS[name].upper()}_PASSWORD")
        broker = {password}
    assert ("FARM_BROKER_URL" in variables) == (name in REDIS_USERS)
    own = {ROLES[name][1]} if name in ROLES else set()
    more = {
        "postgres": {"POSTGRES_PASSWORD", "OWNER_PASSWORD", "MLFLOW_DATABASE_PASSWORD"},
        "redis-users": {f"REDIS_{user.upper()}_PASSWORD" for user in RedisUser},
        "mlflow": {"MLFLOW_SECRET_KEY"},
        "migrate": {f"{role}_PASSWORD" for role in ("APPLICATION", "WEB", "TRAINER", "WORKER", "REDIS_WORKER")},
    }
    assert given == own | registry | broker | more.get(name, set())


@each_service
def test_compose_has_no_password_on_a_command_line(name: str) -> None:
    words = " ".join(SERVICES[name].get("command", []))
    assert not re.search(r"(?<!\$)\$\{\w*(PASSWORD|KEY)", words)
    # Of what a shell is told, only its own built-in printf may have one.
    named = [line for line in re.split(r";|&&", words) if re.search(r"\$\$\w*PASSWORD", line)]
    assert all(line.split("sh -c")[-1].strip().startswith("printf ") for line in named)


def test_compose_takes_images_by_digest_where_they_are_given() -> None:
    assert SERVICES["postgres"]["image"] == "${POSTGRES_IMAGE:-postgres:16}"
    assert SERVICES["redis"]["image"] == "${REDIS_IMAGE:-redis:7}"
    bases = {service["build"]["args"]["PYTHON_IMAGE"] for service in SERVICES.values() if "build" in service}
    assert bases == {"${PYTHON_IMAGE:-python:3.12-slim}"}
    assert re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[0] == "${PYTHON_IMAGE}"

"""The Helm chart: it agrees with Compose, the units of systemd, the settings and its page."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pydantic import SecretStr

from farm.settings import PREFIX, Settings
from support.helm import ALL, CHART, SERVICES

ROOT = Path(__file__).parents[2]
TEMPLATES = {path.stem: path.read_text() for path in (CHART / "templates").iterdir()}
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()

FREE = ("resources", "nodeSelector", "settings", "annotations")
"""Values that are mappings with keys of the user's choice."""


def leaves(values: dict[str, Any], at: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and key not in FREE:
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}"


def mappings(values: dict[str, Any], *path: str) -> Iterator[tuple[str, ...]]:
    """The path of each mapping whose keys the schema declares."""
    yield path
    for key, value in values.items():
        if isinstance(value, dict) and key not in ("requests", "limits", "nodeSelector", "annotations"):
            yield from mappings(value, *path, key)


def secrets_of(template: str) -> tuple[str, list[str]]:
    """The name of the Secret that a template reads, and the keys that it needs of it."""
    text = TEMPLATES[template]
    found = re.findall(r'\(dict "secret" \.Values\.secrets\.(\w+) "keys" \(list ([^)]*)\)', text)
    ((name, keys),) = found
    needed = re.findall(r'"(\w+)"', keys)
    if "farm.registry" in text:
        needed += re.findall(r'"(MLFLOW_TRACKING_URI)"', TEMPLATES["_helpers"])
    return name, needed


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]


def test_the_schema_takes_the_values_of_the_chart_and_all_options() -> None:
    accepted = jsonschema_rs.validator_for(SCHEMA)
    accepted.validate(VALUES)
    merged = deepcopy(VALUES)
    for key, value in ALL.items():
        merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    merged["web"]["ingress"] = {**VALUES["web"]["ingress"], **merged["web"]["ingress"]}
    merged["network"] = {name: VALUES["network"][name] for name in VALUES["network"]}
    accepted.validate(merged)


@pytest.mark.parametrize("path", list(mappings(VALUES)), ids=lambda path: ".".join(path) or "top")
def test_a_mistyped_value_is_one_error_that_names_it(path: tuple[str, ...]) -> None:
    values = deepcopy(VALUES)
    place = values
    for key in path:
        place = place[key]
    place["replicsa"] = 3
    (error,) = jsonschema_rs.validator_for(SCHEMA).iter_errors(values)
    assert "replicsa" in error.message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.repository", ""),
        ("kernelKeys", "not a key"),
        ("coordinator.replicas", 0),
        ("coordinator.replicas", "2"),
        ("metrics.port", 8000),
        ("settings", {"FARM_DATABASE_URL": "postgresql://farm_owner:secret@db/farm"}),
        ("settings", {"FARM_LEASE_SECOND": "60"}),
        ("web.proxy", "*"),
        ("web.from", [{"namespaceselector": {}}]),
        ("web.oidc.issuer", "http://id.example"),
        ("web.oidc.roles", "gpu-users=submitter"),
        ("gpuWorker.deviceLocks", "var/lock"),
        ("trainer.storage.size", "10 GB"),
    ],
)
def test_a_value_of_no_use_is_refused(path: str, value: object) -> None:
    values = deepcopy(VALUES)
    place, *rest = path.split(".")
    target = values
    for key in rest:
        target, place = target[place], key
    target[place] = value
    assert list(jsonschema_rs.validator_for(SCHEMA).iter_errors(values))


def test_values_and_schema_have_the_same_keys() -> None:
    def declared(schema: dict[str, Any], at: str = "") -> Iterator[str]:
        for key, value in schema["properties"].items():
            if "properties" in value and key not in FREE:
                yield from declared(value, f"{at}{key}.")
            else:
                yield f"{at}{key}"

    assert sorted(declared(SCHEMA)) == sorted(leaves(VALUES))


def test_settings_of_the_values_are_settings_and_no_secrets() -> None:
    secret = {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}
    listed = {name.removeprefix(PREFIX).lower() for name in SCHEMA["properties"]["settings"]["properties"]}
    assert listed <= set(Settings.model_fields) - secret
    set_by_the_chart = {name for name in listed if f"- name: {PREFIX}{name.upper()}\n" in "".join(TEMPLATES.values())}
    assert set_by_the_chart == set()


def test_templates_set_variables_that_programs_read() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    known |= {name for service in COMPOSE.values() for name in service.get("environment", ())}
    known |= {"NODE_NAME", "NVIDIA_VISIBLE_DEVICES", "PGSSLROOTCERT", "MLFLOW_TRACKING_SERVER_CERT_PATH"}
    text = "".join(TEMPLATES.values())
    assert set(re.findall(r"- name: ([A-Z_]+)$", text, flags=re.MULTILINE)) <= known
    assert set(re.findall(r"\b(?:FARM|MLFLOW)_\w+", text)) <= known


def test_passwords_come_from_secrets_alone() -> None:
    secret = {f"{PREFIX}{name.upper()}" for name, field in Settings.model_fields.items() if SecretStr.__name__ in str(field.annotation)}  # fmt: skip
    for text in TEMPLATES.values():
        assert not secret & set(re.findall(r"- name: (\w+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("template", ["migrate", "coordinator", "web", "trainer", "builder", "cpu-worker"])
def test_a_program_gets_the_secrets_that_its_unit_and_its_service_have(template: str) -> None:
    name, keys = secrets_of(template)
    secret = VALUES["secrets"][name]
    file = {"gemm-farm-cpu-worker": "worker"}.get(secret, secret.removeprefix("gemm-farm-"))
    lines = (ROOT / "deploy" / "systemd" / "etc" / f"{file}.env").read_text().splitlines()
    assert set(keys) <= {line.split("=")[0] for line in lines}
    assert f"| `{secret}` | `{file}.env` | `{template}` |" in PAGE
    service = COMPOSE[SERVICES[template]]["environment"]
    extra = {"FARM_REDIS_WORKER_PASSWORD"}  # of farm hosts add, which the job does not run
    extra |= {"FARM_PUBLIC_URL"}  # no secret
    optional = {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    assert set(keys) == {key for key in service if re.search(r"_URL$|_URI$|_PASSWORD$", key)} - extra - optional


def test_a_worker_of_a_node_gets_the_login_of_its_node() -> None:
    text = TEMPLATES["gpu-worker"]
    assert secrets_of("gpu-worker") == ("gpuWorker", ["FARM_BROKER_URL"])
    assert "subPathExpr: $(NODE_NAME)" in text
    assert text.count("mountPath: /run/farm/login") == 1


@pytest.mark.parametrize("template", SERVICES)
def test_a_component_is_the_service_of_compose(template: str) -> None:
    text, service = TEMPLATES[template], COMPOSE[SERVICES[template]]
    assert f'"target" "{service["build"]["target"]}"' in text
    commands = [yaml.safe_load(line) for line in re.findall(r"^ {10}command: (\[.*\])$", text, flags=re.MULTILINE)]
    if template == "gpu-worker":
        commands = [re.findall(r"exec (.*)$", text, flags=re.MULTILINE)[0].split()]
    same = {"coordinator": ["farm-coordinator"]}.get(template, service["command"])
    assert commands == [same]
    assert same[0] == "sh" or same[0] in PROJECT["scripts"]
    if template != "migrate":
        grace = service.get("stop_grace_period", "40s").removesuffix("s")
        assert f"terminationGracePeriodSeconds: {grace}\n" in text
        key = re.sub(r"-(\w)", lambda found: found[1].upper(), template)
        assert VALUES[key]["resources"]["limits"]["memory"] == service["mem_limit"].replace("g", "Gi")


def test_a_component_reaches_what_its_service_reaches() -> None:
    text = TEMPLATES["network-policies"]
    data, registry = {"postgres", "redis"}, {"mlflow"}
    given = {"migrate": {"postgres"}, "coordinator": data}
    assert '"migrate" (list .Values.network.postgres) "coordinator" $data' in text
    words = {
        "$data": data,
        "(append $data $registry)": data | registry,
        "(list .Values.network.postgres $registry)": {"postgres"} | registry,
    }
    given |= {name: words[to] for name, to in re.findall(r'set \$reach "([\w-]+)" (.*?) }}', text)}
    assert set(given) == set(SERVICES)
    for name, reached in given.items():
        service = COMPOSE[SERVICES[name]]
        there = set()
        there |= {"postgres"} if "FARM_DATABASE_URL" in service["environment"] else set()
        there |= {"redis"} if "FARM_BROKER_URL" in service["environment"] else set()
        there |= registry if "models" in service["networks"] else set()
        assert reached == there, name
        row = next(
            line for line in PAGE.splitlines() if line.endswith(" |") and f"`{name}`" in line and " yes |" in line
        )
        assert [cell.strip() == "yes" for cell in row.split("|")[2:5]] == [one in there for one in ("postgres", "redis", "mlflow")]  # fmt: skip


def test_every_pod_is_confined_and_none_talks_to_kubernetes() -> None:
    helpers = TEMPLATES["_helpers"]
    for line in ("automountServiceAccountToken: false", "runAsNonRoot: true", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]"):  # fmt: skip
        assert helpers.count(line) == 1
    for name in SERVICES:
        assert 'include "farm.pod" $it' in TEMPLATES[name]
        assert TEMPLATES[name].count('include "farm.container" $it') == 1


def test_the_page_has_every_value_and_no_other() -> None:
    table = PAGE[PAGE.index("## Values") :]
    rows = re.findall(r"^\| `([\w.*]+)` \|", table, flags=re.MULTILINE)
    patterns = {row: re.compile(re.escape(row).replace(r"\*", r"\w+")) for row in rows}
    names = list(leaves(VALUES))
    assert [name for name in names if not any(one.fullmatch(name) for one in patterns.values())] == []
    assert [row for row, one in patterns.items() if not any(map(one.fullmatch, names))] == []
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        values = deepcopy(VALUES)
        for key, value in yaml.safe_load(block).items():
            values[key] = {**values[key], **value}
        jsonschema_rs.validator_for(SCHEMA).validate(values)

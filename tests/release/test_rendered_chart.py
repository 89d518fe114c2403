"""The Helm chart, rendered by helm where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import ALL, CHART, SERVICES

pytestmark = pytest.mark.release


def helm(tmp_path: Path, *words: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not on the PATH")
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    own = {f"HELM_{name}_HOME": str(tmp_path) for name in ("CACHE", "CONFIG", "DATA")}
    line = [program, *words, str(CHART), "--values", str(file)]
    return subprocess.run(line, env=own, capture_output=True, text=True, timeout=120, check=False)


TRACED = {"farm-coordinator", "farm-web", "farm-trainer", "farm-builder", "farm-gpu-worker", "farm-cpu-worker"}
"""Pods whose programs export spans."""


def rendered(tmp_path: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    done = helm(tmp_path, "template", "farm", values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {
        one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] in ("Deployment", "DaemonSet", "Job")
    }
    return {name: spec["template"]["spec"] for name, spec in found.items()}


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_the_chart_is_clean(tmp_path: Path, values: dict[str, Any]) -> None:
    done = helm(tmp_path, "lint", "--strict", values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_pod_has_a_right_that_it_does_not_need(tmp_path: Path) -> None:
    documents = rendered(tmp_path, ALL)
    found = pods(documents)
    assert set(found) == {f"farm-{name}" for name in SERVICES}
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == name
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            names = [variable["name"] for variable in container.get("env", [])]
            assert len(names) == len(set(names))
    accounts = [one for one in documents if one["kind"] == "ServiceAccount"]
    assert {one["metadata"]["name"] for one in accounts} == set(found)
    assert not any(one["automountServiceAccountToken"] for one in accounts)
    policies = {one["metadata"]["name"] for one in documents if one["kind"] == "NetworkPolicy"}
    assert policies == {"farm-default", *found}


@pytest.mark.parametrize(("settings", "reaching"), [({}, set()), (ALL["settings"], TRACED)])
def test_programs_reach_the_collector_of_spans_where_one_is_set(
    tmp_path: Path, settings: dict[str, str], reaching: set[str]
) -> None:
    documents = rendered(tmp_path, {**ALL, "settings": settings})
    policies = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "NetworkPolicy"}
    opened = {
        name
        for name, spec in policies.items()
        for rule in spec.get("egress", [])
        for port in rule["ports"]
        if port["port"] == 4318
    }
    assert opened == reaching


def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    off: dict[str, Any] = {name: {"enabled": False} for name in ("web", "trainer", "gpuWorker")}
    documents = rendered(tmp_path, {**off, "network": {"policies": False}})
    assert {one["metadata"]["name"] for one in documents} == {"farm-migrate", "farm-coordinator"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"coordinater": {"replicas": 3}}, "coordinater"),
        ({"web": {"ingress": {"enabled": True}}}, "web.ingress needs host and tlsSecret"),
        ({"web": {"oidc": {"issuer": "https://id.example"}}}, "web.oidc.issuer needs clientId, publicUrl and roles"),
        ({"web": {"ingress": {"enabled": True, "host": "farm.example", "tlsSecret": "tls"}}}, "web.from"),
    ],
)
def test_a_mistake_in_the_values_is_named(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    done = helm(tmp_path, "template", "farm", values=values)
    assert done.returncode != 0
    assert named in done.stderr


def test_names_of_a_long_release_are_distinct_and_valid(tmp_path: Path) -> None:
    done = helm(tmp_path, "template", f"{'a' * 49}.bc", values=ALL)
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9-]{1,63}", name) for _, name in names)

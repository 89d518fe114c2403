"""What a release is made of besides code: the workflow, the version, the changelog and the page about installing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    newest = re.findall(
        r"^## (\S+) – (unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE
    )
    assert newest[0][0] == PROJECT["version"]


def test_documents_name_the_files_of_this_version() -> None:
    for page in ("installing.md", "releasing.md"):
        text = (ROOT / "docs" / page).read_text()
        assert set(re.findall(r"gemm_farm-([\d.]+\d)", text)) <= {PROJECT["version"]}
        assert set(re.findall(r"\bv(\d+\.\d+\.\d+)", text)) <= {PROJECT["version"]}


def test_the_page_about_installing_names_every_extra_of_users() -> None:
    (table,) = re.findall(
        r"^\| extra \|.*?\n\n", (ROOT / "docs" / "installing.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.strip().splitlines())))
    assert named == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}


def test_the_workflow_builds_and_tests_before_it_publishes_and_only_then_may_write() -> None:
    packages, publish = WORKFLOW["jobs"]["packages"], WORKFLOW["jobs"]["publish"]
    assert [step["run"] for step in packages["steps"] if step.get("run", "").startswith("make")] == ["make dist", "make test-release"]  # fmt: skip
    assert publish["needs"] == "packages"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in packages
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"dist", "test-release"} <= set(targets)


def test_tests_of_a_release_are_run_by_no_other_target() -> None:
    """They install packages, which takes minutes and a network."""
    makefile = (ROOT / "Makefile").read_text()
    assert "@$(PYTEST) -m 'not release'" in makefile
    assert makefile.count("@$(PYTEST) -m release") == 1
    assert "make test-release" not in (ROOT / ".ci" / "run").read_text()
    for path in (ROOT / "tests" / "release").glob("test_*.py"):
        assert "pytest.mark.release" in path.read_text(), path.name

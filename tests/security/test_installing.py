"""Nobody is told to install a package by a name that somebody else may own on an index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import farm
from farm.errors import WebMissing
from farm.installing import INSTALL, command

ROOT = Path(farm.__file__).parents[1]
TOLD = [
    *(path for folder in ("farm", "workers", "trainer", "docs") for path in (ROOT / folder).rglob("*")),
    *ROOT.glob("*.md"),
]


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    command.cache_clear()
    yield
    command.cache_clear()


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    said = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: said))


def test_no_message_and_no_document_names_the_package_of_an_index() -> None:
    named = re.compile(r"pip install (-\S+ )*'?gemm.farm")
    found = [
        str(path)
        for path in TOLD
        if path.suffix in (".py", ".md", ".html") and path.name != "installing.py" and named.search(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ({"url": "file:///srv/farm", "dir_info": {"editable": True}}, "pip install -e '/srv/farm[web]'"),
        ({"url": "file:///srv/my%20farm", "dir_info": {}}, "pip install '/srv/my farm[web]'"),
        ({"url": "file:///srv/gemm_farm-1.whl", "archive_info": {}}, "pip install '/srv/gemm_farm-1.whl[web]'"),
        (
            {"url": "https://example.org/farm.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            "pip install 'gemm-farm[web] @ git+https://example.org/farm.git'",
        ),
        (None, "pip install 'gemm-farm[web]'"),
    ],
)
def test_more_of_the_farm_comes_from_where_the_farm_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: object, told: str
) -> None:
    installed_from(monkeypatch, origin)
    assert INSTALL["web"] == told
    assert str(WebMissing()).endswith(told)


WHEEL = {"url": "file:///srv/gemm_farm-1.whl", "archive_info": {}}


def test_more_of_a_tool_comes_through_the_installer_that_made_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed_from(monkeypatch, WHEEL)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "pipx_metadata.json").touch()
    assert INSTALL["web"] == "pipx runpip gemm-farm install '/srv/gemm_farm-1.whl[web]'"


@pytest.mark.parametrize(
    ("receipt", "told"),
    [
        ('[tool]\nrequirements = [{name = "gemm-farm", extras = ["embedded"]}, {name = "x", extras = ["y"]}]', "embedded,web"),
        ('[tool]\nrequirements = [{name = "gemm-farm", extras = ["web"]}]', "web"),
        ('[tool]\nrequirements = [{name = "gemm-farm"}]', "web"),
        ("no receipt", "web"),
    ],
)  # fmt: skip
def test_a_tool_of_uv_keeps_the_extras_that_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, receipt: str, told: str
) -> None:
    installed_from(monkeypatch, WHEEL)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "uv-receipt.toml").write_text(receipt)
    assert INSTALL["web"] == f"uv tool install --force '/srv/gemm_farm-1.whl[{told}]'"


def test_an_environment_without_pip_gets_more_through_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, WHEEL)
    monkeypatch.setattr("farm.installing.find_spec", lambda _: None)
    monkeypatch.setattr("sys.executable", "/srv/my farm/bin/python")
    assert INSTALL["web"] == "uv pip install --python '/srv/my farm/bin/python' '/srv/gemm_farm-1.whl[web]'"


def test_a_farm_that_was_never_installed_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    assert INSTALL["web"] == "make setup EXTRA=web"

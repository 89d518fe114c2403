"""The reference pages of the documentation site are made of commands and operations, also where MkDocs is not installed."""

from __future__ import annotations

import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from farm.api import OPERATIONS
from support.docs_scripts import docs_script

MKDOCS = (
    "mkdocs",
    "mkdocs.config",
    "mkdocs.config.defaults",
    "mkdocs.structure",
    "mkdocs.structure.files",
    "mkdocs.structure.pages",
)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in MKDOCS:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    return docs_script("hooks")


def test_the_reference_of_the_http_api_has_every_operation_with_its_parameters_and_fields(hooks: ModuleType) -> None:
    page = hooks.http_page()
    for known in OPERATIONS.values():
        assert f"### {known.method} {known.path}\n" in page
    assert "| `limit` | integer from 1 to 500 | `50` | Maximum number of campaigns. |" in page
    assert "| `state` | list of `pending`, `queued`" in page
    assert "| `decision` | text or null |" in page


def test_the_reference_of_commands_has_their_options(hooks: ModuleType) -> None:
    page = hooks.options_page()
    assert "## farm devices quarantine\n" in page
    assert "| `--tie` | number from 0.01 to 50 | `1.0` | A smaller difference in time is a tie, in %. |" in page

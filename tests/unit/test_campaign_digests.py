"""The digest of a campaign never changes, so that a stored campaign stays the campaign of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farm.campaign import Campaign, loads, texts_named

ROOT = Path(__file__).parents[2]
DIGESTS = json.loads((ROOT / "tests" / "data" / "campaign_digests.json").read_text())
"""Digests by file, and of campaigns that together use every key: recorded before campaigns had a model of their own."""

FILES = [*(ROOT / "examples" / "campaigns").glob("*.yaml"), *(ROOT / "tests" / "gpu").glob("*.yaml")]


def from_file(path: Path) -> Campaign:
    text = path.read_text()
    return loads(text, name=path.name, limit=10_000_000, owner="ann", files=texts_named(text, path))


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: path.stem)
def test_the_digest_of_a_file_is_the_recorded_one(path: Path) -> None:
    assert from_file(path).digest == DIGESTS["files"][str(path.relative_to(ROOT))]


@pytest.mark.parametrize("recorded", DIGESTS["documents"], ids=lambda recorded: recorded["digest"][:8])
def test_the_digest_of_a_document_is_the_recorded_one(recorded: dict[str, object]) -> None:
    document = recorded["document"]
    assert isinstance(document, dict)
    campaign = Campaign.from_document(document)
    assert campaign.digest == recorded["digest"]
    assert Campaign.from_document(campaign.document).digest == recorded["digest"]

"""The keys of a campaign file are declared once: documents and the JSON schema for editors follow from the models."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pydantic import BaseModel

from farm.campaign import load
from farm.campaign.reading import read
from farm.campaign.schema import campaign_schema
from farm.campaign.strategies import STRATEGIES
from farm.cli.commands import COMMANDS, loaded
from support.docs_scripts import docs_script

ROOT = Path(__file__).parents[2]
KEYS = docs_script("campaign_keys")
DOCS = (ROOT / "docs" / "campaigns.md").read_text()
EXAMPLES = sorted((ROOT / "examples" / "campaigns").glob("*.yaml"))


@pytest.mark.parametrize("models", KEYS.TABLES, ids=lambda models: models[0].__name__)
def test_the_document_has_the_keys_as_they_are_declared(models: tuple[type[BaseModel], ...]) -> None:
    assert KEYS.markdown(*models) in DOCS


def test_the_document_has_the_default_of_every_key_of_a_search() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*\|)$", DOCS.split("field of `search`")[1], re.M))
    for strategy in STRATEGIES.values():
        for name, field in strategy.model_fields.items():
            if name != "strategy" and field.default is not None:
                assert rows[name].endswith(f"| {field.default:g} |"), name


@pytest.fixture(scope="module")
def schema() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return jsonschema_rs.validator_for(campaign_schema())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_and_what_is_stored_of_them_follow_the_schema(schema: Any, path: Path) -> None:
    schema.validate(yaml.safe_load(path.read_text()))  # as an editor reads it
    schema.validate(read(path).data)  # as the farm reads it, without booleans
    schema.validate(load(path, limit=1_000_000).document)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL))
def test_campaigns_in_the_documentation_follow_the_schema(schema: Any, block: str) -> None:
    schema.validate(json.loads(json.dumps(yaml.safe_load(block))))  # keys are text there


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"priority": 101},
        {"targets": {"type": "a", "host": "b"}},
        {"problems": {"types": "f32"}},
        {"problems": {"shapes": "8x8x8", "types": "f32", "m": 3}},
        {"kernels": {"family": "tilde"}},
        {"kernels": {"family": "tiled", "tile": 33}},
        {"kernels": {"family": "tiled", "stages": 3}},
        {"measure": {"timing": {"target_rse": 2}}},
        {"search": {"strategy": "random", "keep": 0.25}},
        {"kernel": {"family": "tiled"}},
        {"targets": {"typ": "nvidia-h200"}},
        {"problems": {"shapes": "8x8x8", "type": "f32"}},
        {"problems": {"model": "llama-3.1-8b", "token": 8}},
        {"measure": {"timings": {"target_rse": 0.01}}},
        {"measure": {"timing": {"target_rsd": 0.01}}},
    ],
)
def test_the_schema_refuses_what_is_wrong(schema: Any, wrong: dict[str, Any]) -> None:
    right = {"name": "x", "problems": {"shapes": "8x8x8", "types": "f32"}, "kernels": {"family": "tiled"}}
    schema.validate(right)
    with pytest.raises(jsonschema_rs.ValidationError):
        schema.validate(right | wrong)


def test_the_schema_says_which_key_is_mistyped(schema: Any) -> None:
    right = {"name": "x", "problems": {"shapes": "8x8x8", "types": "f32"}, "kernels": {"family": "tiled"}}
    with pytest.raises(jsonschema_rs.ValidationError, match="colour"):
        schema.validate(right | {"colour": "red"})
    for name in right:
        assert not schema.is_valid({key: value for key, value in right.items() if key != name})
    assert schema.is_valid({"name": "x", "configurations": ["tiled(tile=16) 8x8x8 f32"]})


def test_the_schema_has_a_dialect_and_what_each_key_means() -> None:
    found = campaign_schema()
    assert found["$schema"].endswith("2020-12/schema")
    assert found["title"] == "GEMM Farm campaign file"
    assert {"name", "problems", "kernels", "targets"} <= found["properties"].keys()
    assert [name for name, key in found["properties"].items() if not key.get("description")] == []


def test_a_default_of_the_schema_is_one_that_a_file_can_have() -> None:
    found = campaign_schema()
    for key in found["properties"].values():
        if key.get("default"):
            jsonschema_rs.validate({**key, "$defs": found["$defs"]}, key["default"])


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    command = loaded(next(entry for entry in COMMANDS if entry.name == "schema"))
    command.main(["campaign"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == campaign_schema()


def test_every_key_has_a_meaning() -> None:
    without = [
        f"{model.__name__}.{name}"
        for model in (*(model for models in KEYS.TABLES for model in models), *STRATEGIES.values())
        for name, field in model.model_fields.items()
        if not field.description and name != "strategy"
    ]
    assert without == []

"""Campaigns with operands of their own: submitted, shown, and stored with what their files hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, text

from farm.devices import DeviceIdentity
from farm.measurement import MeasuringRules
from support.commands import Command, farm_here, refused
from support.samples import card

FILE = """
name: kinds
owner: ann
problems: {shapes: [8x6x4], types: f32, layouts: nt}
kernels: {family: tiled, tile: 8}
measure: {operands: {seed: 7}}
"""


@pytest.fixture
def command(tmp_path: Path, database_url: str, announce: Callable[[DeviceIdentity], int]) -> Command:
    announce(card())
    (tmp_path / "kinds.yaml").write_text(FILE)
    return farm_here(tmp_path, database_url)


def stored(engine: Engine) -> list[MeasuringRules]:
    with engine.connect() as connection:
        return [
            MeasuringRules.model_validate(rules)
            for rules in connection.execute(text("SELECT rules FROM campaigns ORDER BY id")).scalars()
        ]


def test_other_operands_make_another_campaign_of_the_same_name(command: Command, engine: Engine) -> None:
    given = [json.loads(command("submit", "kinds.yaml", "--json").stdout)]
    for distribution in ("normal", "a=normal*0.02 b=zeros", "a=normal*0.02 b=zeros c=uniform"):
        given.append(json.loads(command("submit", "kinds.yaml", "--distribution", distribution, "--json").stdout))
    assert [one["new"] for one in given] == [True, True, True, False]
    assert {one["campaign"] for one in given} == {"kinds"}
    operands = [rules.operands for rules in stored(engine)]
    assert [one.text for one in operands] == ["uniform", "normal", "a=normal*0.02 b=zeros c=uniform"]
    assert {one.seed for one in operands} == {7}


def test_a_dry_run_names_operands_that_are_not_the_usual_ones(command: Command) -> None:
    assert "perands" not in command("submit", "kinds.yaml", "--dry-run").stdout
    planned = command("submit", "kinds.yaml", "--dry-run", "--distribution", "b=ones*0.5").stdout
    assert "The operands are a=uniform b=ones*0.5 c=uniform." in planned
    command("submit", "kinds.yaml", "--distribution", "b=ones*0.5")
    assert "operands a=uniform b=ones*0.5 c=uniform" in " ".join(command("status", "kinds").stdout.split())
    refused(command("submit", "kinds.yaml", "--distribution", "norml", "--json"), 2, "there is no distribution 'norml'")
    refused(
        command("submit", "kinds.yaml", "--distribution", "b=file:w.npy", "--json"), 2, "named in the campaign file"
    )


def test_a_campaign_with_weights_stores_their_path_and_content(
    command: Command, engine: Engine, tmp_path: Path
) -> None:
    np.save(tmp_path / "w.npy", np.ones((6, 4), np.float32))
    (tmp_path / "weights.yaml").write_text(FILE.replace("{seed: 7}", "{b: {file: w.npy}}"))
    command("submit", "weights.yaml")
    (rules,) = stored(engine)
    matrix = rules.operands.matrices["b"]
    assert matrix.file == str(tmp_path / "w.npy")
    assert command("submit", "weights.yaml", "--dry-run").stdout.count(f"b={matrix.text} c=uniform") == 1
    (tmp_path / "w.npy").unlink()
    refused(command("submit", "weights.yaml", "--json"), 2, "weights.yaml:6: measure.operands.b: there is no file")

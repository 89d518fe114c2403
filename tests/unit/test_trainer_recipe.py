"""The recipe of a model: it changes with each module of the trainer that decides a model, and with no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import trainer
from trainer.forest import ForestSettings
from trainer.registry import NOT_IN_RECIPE, recipe_hash

MODULES = sorted(path.name for path in Path(trainer.__path__[0]).glob("*.py"))


def recipe() -> str:
    return recipe_hash("1", ForestSettings())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trainer's package, which the recipe is made of."""
    copy = tmp_path / "trainer"
    shutil.copytree(trainer.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(trainer, "__path__", [str(copy)])
    return copy


@pytest.mark.parametrize("name", MODULES)
def test_a_changed_module_changes_the_recipe_unless_it_is_listed_as_deciding_no_model(package: Path, name: str) -> None:
    before = recipe()
    with (package / name).open("a") as module:
        module.write("# changed\n")
    assert (recipe() == before) == (name in NOT_IN_RECIPE)


def test_a_new_module_is_part_of_the_recipe(package: Path) -> None:
    before = recipe()
    (package / "added.py").write_text("")
    assert recipe() != before


def test_the_list_of_modules_that_decide_no_model_names_modules_once() -> None:
    assert set(NOT_IN_RECIPE) <= set(MODULES)
    assert len(set(NOT_IN_RECIPE)) == len(NOT_IN_RECIPE)


@pytest.mark.parametrize("name", ["choice.py", "energy.py", "timing.py", "burst.py", "table.py", "promotion.py"])
def test_what_fits_and_judges_a_model_is_part_of_its_recipe(name: str) -> None:
    assert name in MODULES
    assert name not in NOT_IN_RECIPE

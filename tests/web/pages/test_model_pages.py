"""The pages of models: errors, test sets, champions and cards."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from farm import registry
from farm.api.access import Access
from farm.web.app import make_app
from farm.web.pages import models
from farm.web.security import Policy
from support.page_samples import NASTY
from support.training_tables import log_test_set
from support.visiting import visitor, words


def test_a_model_shows_its_errors_champions_and_card(browser_like: httpx.Client) -> None:
    shown = words(browser_like.get("/models/nvidia-h200").text)
    for said in ("unseen shapes", "Version 1 since", "Predicts times"):
        assert said in shown
    assert "Burst time" not in shown


def test_the_independent_test_set_comes_before_the_folds_of_a_model(
    access: Access, registry_with_a_model: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{shutil.copyfile(registry_with_a_model / 'mlflow.db', tmp_path / 'mlflow.db')}"
    version = registry.model_info(uri, "nvidia-h200")
    log_test_set(uri, version)
    log_test_set(uri, version, "runtime_burst_ms")
    settings = access.settings.model_copy(update={"mlflow_tracking_uri": uri})
    with visitor(make_app(Access(settings, who="test", opened=access.session), policy=Policy(tokens=False))) as client:
        shown = words(client.get("/models/nvidia-h200").text)
    row = "Runtime 6.5% 5.9–7.25 4.25% 15.5% 51.5% 79% 88.5% 93.5% 1,200"
    assert row in shown
    assert row.replace("Runtime", "Burst time") in shown
    assert shown.index("Errors on the independent test set") < shown.index(row) < shown.index("unseen shapes")
    assert shown.index("Errors on folds Interpolation inside the training table.") < shown.index("unseen shapes")
    assert "no independent test set" not in shown
    assert "test set" not in shown[shown.index("Errors on folds") : shown.index("Champions")]


def test_a_model_without_a_test_set_says_so(browser_like: httpx.Client) -> None:
    assert "This version has no independent test set." in words(browser_like.get("/models/nvidia-h200").text)


def test_a_model_card_is_markdown_and_no_markup() -> None:
    made = models.written(f"# Head\n\n{NASTY} [a](javascript:alert(1)) ![b](http://c/d.png)\n\n|x|\n|-|\n|1|")
    assert "<h3>Head</h3>" in made
    assert "<table" in made
    for refused in ("<script", 'href="javascript', "<img", "<h1"):
        assert refused not in made


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sqlite:///x/mlflow.db", None),
        ("http://flow:5000/", "http://flow:5000"),
        ("https://ann:secret@flow/ml", "https://flow/ml"),
    ],
)
def test_links_to_mlflow_hold_no_password(uri: str, shown: str | None) -> None:
    assert models._of_mlflow(uri) == shown

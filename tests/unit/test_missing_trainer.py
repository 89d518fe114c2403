"""Commands that would train without MLflow and scikit-learn end before they measure, and name what brings them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.training import can_train, require_trainer
from farm.errors import TrainerMissing
from support.commands import called


@pytest.fixture
def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "sklearn" else find(name, *more)
    )


@pytest.mark.usefixtures("without_sklearn")
def test_the_message_names_the_extra_and_the_way_around_it() -> None:
    assert not can_train()
    with pytest.raises(TrainerMissing, match=r"\[trainer\]'?\. Or not\.$"):
        require_trainer(". Or not.")


@pytest.mark.usefixtures("without_sklearn")
def test_a_run_ends_before_it_measures(tmp_path: Path) -> None:
    variables = {"FARM_HOME": str(tmp_path / ".farm"), "PATH": "/usr/bin:/bin"}
    done = called(["run", "quickstart"], tmp_path, variables)
    assert done.returncode == 3
    assert "add --no-train" in " ".join(done.stderr.split())
    assert not (tmp_path / ".farm" / "logs").exists()


def test_a_coordinator_takes_no_arguments() -> None:
    for given, code in (("--help", 0), ("--leader", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "farm.coordinator", given], capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert "usage: python -m farm.coordinator" in done.stdout + done.stderr

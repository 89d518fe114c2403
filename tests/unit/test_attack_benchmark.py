"""What `make attack` counts as tried and as held, on small tests that stand for attacks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import attack as benchmark

HELD = "def test_holds(): pass\n"
GOT_THROUGH = "def test_gets_through(): assert False\n"
BROKEN = "import pytest\n@pytest.fixture\ndef farm(): raise OSError\ndef test_has_no_farm(farm): pass\n"
NOT_TRIED = "import pytest\ndef test_needs_a_tool(): pytest.skip('it is not here')\n"


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(benchmark, "end_like_interrupted", lambda: None)
    monkeypatch.setattr(sys, "argv", ["attack.py", "-p", "no:cacheprovider"])
    return benchmark


def run(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, **files: str
) -> tuple[dict[str, Any], str, bool]:
    """Figures and table of a run over these files, and whether it succeeded."""
    for subject, text in files.items():
        (folder / f"test_{subject}.py").write_text(text)
    written: list[tuple[Any, ...]] = []
    monkeypatch.setattr(attack, "ATTACKS", str(folder))
    monkeypatch.setattr(attack, "write", lambda *arguments, **_: written.append(arguments))
    code: object = 0
    try:
        attack.main()
    except SystemExit as ended:
        code = ended.code
    ((name, figures, table),) = written
    assert name == "attack"
    return figures, table, code == 0


def test_a_run_in_which_all_hold_succeeds(attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures, table, succeeded = run(attack, monkeypatch, tmp_path, redis_users=HELD, hosts=HELD)
    assert succeeded
    assert figures == {
        "tried": 2,
        "held": 2,
        "subjects": {"hosts": {"tried": 1, "held": 1}, "redis users": {"tried": 1, "held": 1}},
        "got_through": [],
        "not_tried": [],
    }
    assert table.splitlines()[2:] == ["| hosts | 1 | 1 |", "| redis users | 1 | 1 |", "| all | 2 | 2 |"]


def test_what_got_through_was_tried_and_what_was_skipped_was_not(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures, table, succeeded = run(
        attack, monkeypatch, tmp_path, hosts=HELD + GOT_THROUGH, homes=NOT_TRIED + HELD, limits=BROKEN
    )
    assert not succeeded
    assert (figures["tried"], figures["held"]) == (4, 2)
    assert figures["subjects"] == {
        "homes": {"tried": 1, "held": 1},
        "hosts": {"tried": 2, "held": 1},
        "limits": {"tried": 1, "held": 0},
    }
    assert figures["got_through"] == ["hosts: test_gets_through", "limits: test_has_no_farm"]
    assert figures["not_tried"] == ["homes: test_needs_a_tool"]
    assert table.splitlines()[-1] == "| all | 4 | 2 |"


@pytest.mark.parametrize("files", [{"homes": NOT_TRIED, "hosts": HELD}, {}], ids=["one was skipped", "there are none"])
def test_a_run_that_leaves_attacks_out_fails(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str]
) -> None:
    figures, _, succeeded = run(attack, monkeypatch, tmp_path, **files)
    assert not succeeded
    assert figures["tried"] == figures["held"] == len(files) // 2

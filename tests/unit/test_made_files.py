"""Files that operations make for a `Download`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from farm.api.operation import made_file


def test_a_file_stays_where_it_was_made_and_is_removed_where_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with made_file("pairs.csv") as path:
        path.write_text("a,b\n")
    assert path.name.endswith("-pairs.csv")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ZeroDivisionError), made_file("pairs.csv"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [path]

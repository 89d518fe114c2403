"""Reading the files of a model version within a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.registry.manifest import BadManifest, read_file


def test_a_small_file_takes_no_memory_for_the_whole_bound(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    file.write_bytes(b"x" * 3_000_000)
    assert read_file(file, max_bytes=2**50) == file.read_bytes()
    assert read_file(file, max_bytes=3_000_000) == file.read_bytes()


def test_a_file_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    file.write_bytes(b"x" * 3_000_001)
    with pytest.raises(BadManifest, match="more than 3,000,000 bytes"):
        read_file(file, max_bytes=3_000_000)

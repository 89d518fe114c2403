"""Each table of the farm is in one of the lists of `farm.backup.tables`."""

from __future__ import annotations

import pytest

from farm.backup import database
from farm.backup.files import is_inside
from farm.backup.tables import AS_FILES, KEPT, LEFT_OUT
from farm.db.tables import Base


def test_for_each_table_it_is_decided_whether_a_backup_has_it() -> None:
    listed = [*KEPT, *AS_FILES, *LEFT_OUT]
    assert sorted(listed) == sorted(Base.metadata.tables), "declare the new table in farm/backup/tables.py"


def test_a_table_comes_after_those_that_it_refers_to() -> None:
    order = database.kept_tables()
    for name in order:
        for key in Base.metadata.tables[name].foreign_keys:
            other = key.column.table.name
            assert other == name or other in order[: order.index(name)], f"{name} refers to {other}"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\0b", "a/" * 3000 + "b"])
def test_other_paths_are_not_inside_a_backup(path: str) -> None:
    assert not is_inside(path)

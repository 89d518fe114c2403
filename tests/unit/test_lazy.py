"""Packages that import their modules when a name is first used."""

from __future__ import annotations

import pytest

from farm import lazy


def test_names_of_the_type_checking_block_are_imported_from_its_modules() -> None:
    source = "if TYPE_CHECKING:\n    from farm.kernels.family import Reason, Rule\n"
    assert lazy.modules_of("farm.kernels", source) == {"Reason": "farm.kernels.family", "Rule": "farm.kernels.family"}


def test_a_name_that_is_also_a_module_of_the_package_is_refused() -> None:
    """Once the module is imported, the name would be the module, and not what it defines."""
    source = (
        "if TYPE_CHECKING:\n    from farm.kernels.families import family\n    from farm.kernels.family import Reason\n"
    )
    with pytest.raises(ValueError, match=r"farm\.kernels: family would be the module"):
        lazy.modules_of("farm.kernels", source)

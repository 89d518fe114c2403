"""Packages that import their modules when a name is first used."""

from __future__ import annotations

import pytest

from farm import lazy


def test_a_name_that_is_also_a_module_of_the_package_is_refused() -> None:
    """Once the module is imported, the name would be the module, and not what it defines."""
    with pytest.raises(ValueError, match=r"farm\.kernels: family would be the module"):
        lazy.names_of("farm.kernels", {"families": ("family",), "family": ("Reason",)})

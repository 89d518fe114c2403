"""Where the recordings, campaign files and kernels are that come with the farm.

A checkout has them in `examples/`. A wheel has the same folders as data files, in `share/gemm-farm/` of its installation.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

_SHARE = Path("share") / "gemm-farm"


def folder(name: str) -> Path | None:
    """The folder `datasets`, `campaigns` or `kernels` of this installation; None if it has none."""
    return next((one / name for one in _candidates() if (one / name).is_dir()), None)


def _candidates() -> tuple[Path, ...]:
    packages = Path(__file__).parents[1]
    return (
        packages / "examples",
        Path(sysconfig.get_path("data")) / _SHARE,
        Path(sysconfig.get_path("data", sysconfig.get_preferred_scheme("user"))) / _SHARE,  # pip install --user
        packages / _SHARE,  # pip install --target
    )

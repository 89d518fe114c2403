"""An older version of the farm, as far as it knows less of what it can be asked for."""

from pathlib import Path

_KNOWS_LESS = """
import dataclasses
import farm.kernels.blas as blas
(threads,) = blas.BLAS.parameters
blas.BLAS = dataclasses.replace(blas.BLAS, parameters=(dataclasses.replace(threads, values=range(1, 2)),))
"""
"""As sitecustomize: the farm before the family blas could be asked for more than one thread."""


def older_version(folder: Path) -> Path:
    """Makes the folder. A program that has it in PYTHONPATH refuses kernels of blas with more than one thread."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_KNOWS_LESS)
    return folder

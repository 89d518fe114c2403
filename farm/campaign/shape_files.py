"""Files that a campaign names: shapes with weights, as CSV with the header m,n,k or m,n,k,weight, tensors, kernels, and traces."""

from __future__ import annotations

import base64
import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from farm.campaign.trace_texts import GEMMS_SUFFIX, trace_text
from farm.campaign.weighted import Weighted
from farm.errors import FarmError
from farm.gemm import Shape
from farm.kernels.own_code import Language
from farm.operands import WEIGHT_SUFFIXES

MAX_SHAPES = 100_000
"""Different shapes of one file: a campaign's document holds all of them."""

BINARY_SUFFIX = f".{Language.CUBIN}"

_MAX_FILE_BYTES = 4 * 2**20
_EXTENTS = ("m", "n", "k")
_EXAMPLE = "write a header m,n,k,weight, and then lines such as 512,4096,4096,2"

ReadText = Callable[[str], str]
"""Returns the text of the file of that name. Raises `ValueError`, which says why the file cannot be read and what to do."""


@dataclass(frozen=True, slots=True)
class FileContext:
    """The context of the validation of a campaign file; that of a stored document has none."""

    path: Path
    # Limit of the configurations before constraints.
    max_configurations: int
    # Reads the files that the campaign names.
    read_text: ReadText


def _described(path: Path, tensor: str | None) -> str:
    from farm.weights import describe  # it loads NumPy, which few campaigns need

    return describe(path, tensor)


def reading_in(folder: Path) -> ReadText:
    """Reads files, whose names are relative to a folder.

    A tensor's text is its description, a cubin's is base64, and a trace's are its GEMMs.
    """

    def read(name: str) -> str:
        if name.endswith(GEMMS_SUFFIX):
            return trace_text(folder / name.removesuffix(GEMMS_SUFFIX))
        file, _, tensor = name.partition("#")
        if file.endswith(WEIGHT_SUFFIXES):
            return _described(folder / file, tensor or None)
        path = folder / name
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise ValueError(f"{name} is larger than {_MAX_FILE_BYTES // 2**20} MiB; name a smaller file")
            return (
                base64.b64encode(path.read_bytes()).decode()
                if name.endswith(BINARY_SUFFIX)
                else path.read_text("utf-8-sig")
            )
        except FileNotFoundError:
            raise ValueError(
                f"there is no file {path}; a name is relative to the folder of the campaign file"
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"{name} is not UTF-8; save the file as UTF-8 text") from None
        except OSError as error:
            raise ValueError(f"{name} cannot be read: {error.strerror or error}") from None

    return read


def among(texts: Mapping[str, str]) -> ReadText:
    """Reads files whose texts came with the campaign file, by name: nothing on this machine is opened."""

    def read(name: str) -> str:
        if name not in texts and name.endswith(GEMMS_SUFFIX):
            raise ValueError(
                f"{name.removesuffix(GEMMS_SUFFIX)} was not sent with the campaign, and the server opens no files; use farm submit, "
                "or list the problems, as in {gemms: {8x4096x4096 bf16 nt: 32}}"
            )
        if name not in texts and name.partition("#")[0].endswith(WEIGHT_SUFFIXES):
            raise ValueError(
                f"{name} was not sent with the campaign, and the server opens no files; use farm submit, or write the tensor's "
                "sha256 and its path on the workers"
            )
        if name not in texts and PurePath(name).suffix.removeprefix(".") in tuple(Language):
            raise ValueError(
                f"{name} was not sent with the campaign, and the server opens no files; use farm submit, or write the file as "
                "{name: …, code: …}"
            )
        if name not in texts and name.endswith(".json"):
            raise ValueError(
                f"{name} was not sent with the campaign, and the server opens no files; use farm submit, or name a built-in model"
            )
        if name not in texts:
            raise ValueError(
                f"{name} was not sent with the campaign, and the server opens no files; list the shapes instead, "
                "as in {shapes: {512x4096x4096: 2}}, or the routings, as in ['16*8,3,0'], or use farm submit"
            )
        return texts[name]

    return read


def parse_shapes(text: str, name: str) -> Weighted[Shape]:
    """Reads the shapes of a CSV file. The weights of a repeated shape are added up.

    Args:
        text: The file. Columns may be in any order, blank lines are skipped, and without a weight all weigh 1.
        name: The name of the file in errors.

    Raises:
        ValueError: The first line that is wrong, with its number, and how many more are.
    """
    rows = csv.reader(text.splitlines())
    try:
        header = [column.strip().lower() for column in next(rows, [])]
        if sorted(header) not in (sorted(_EXTENTS), sorted((*_EXTENTS, "weight"))):
            raise ValueError(f"{name}:1: the header is not m,n,k or m,n,k,weight; {_EXAMPLE}")
        weights: Counter[Shape] = Counter()
        wrong: list[str] = []
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            try:
                shape, weight = _shape_of(row, header)
                weights[shape] += weight  # type: ignore[assignment]  # a Counter adds up floats as well
            except (ValueError, FarmError) as error:
                wrong.append(f"{name}:{rows.line_num}: {error}")
    except csv.Error as error:
        raise ValueError(f"{name}:{rows.line_num}: not CSV: {error}") from None
    if wrong:
        more = f" ({len(wrong) - 1:,} more lines are wrong)" if len(wrong) > 1 else ""
        raise ValueError(wrong[0] + more)
    if not weights:
        raise ValueError(f"{name} has no shapes; {_EXAMPLE}")
    if len(weights) > MAX_SHAPES:
        raise ValueError(f"{name} has {len(weights):,} different shapes; a domain may hold {MAX_SHAPES:,} of a file")
    return Weighted(dict(sorted(weights.items())))


def _shape_of(row: list[str], header: list[str]) -> tuple[Shape, float]:
    if len(row) != len(header):
        raise ValueError(f"there are {len(row)} values for the {len(header)} columns {','.join(header)}")
    cell = dict(zip(header, map(str.strip, row), strict=True))
    for name in _EXTENTS:
        if not re.fullmatch(r"[0-9]{1,12}", cell[name]):
            raise ValueError(f"{name} is {cell[name]!r}; write a whole number such as 4096")
    return Shape(*(int(cell[name]) for name in _EXTENTS)), _weight_of(cell.get("weight", "1"))


def _weight_of(written: str) -> float:
    try:
        weight = float(written)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"the weight is {written!r}; write a number above 0, such as 1 or 0.5")
    return weight

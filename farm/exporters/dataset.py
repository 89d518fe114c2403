"""Datasets as Hugging Face has them: a recording in `data/`, and a card that describes it.

The front matter of the card names the licence, the size, the files and the features. The table of columns comes from their
one declaration (`farm.schema.results`). The recording is the one that `farm results --output FILE.parquet` writes, so that
`farm import dataset` and `farm replay` read it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, Any

import yaml

from farm import __version__
from farm.api import Farm
from farm.api.results import Identity, Results, pages
from farm.errors import NothingToExport
from farm.exporters.exporter import CountedPages, Done, Export, StreamedFile
from farm.exporters.parquet_rows import Origin, ParquetRows
from farm.schema.arrow import ARROW_TYPES
from farm.schema.results import COLUMNS, EXPORTED

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
"""Rows below which a dataset is of that category of Hugging Face."""

_DTYPES = {"double": "float64"}
"""What `datasets` calls the types that Arrow calls otherwise."""

_LISTED = "family", "ab", "layout", "scale", "fused", "sparsity", "protocol", "source", "clock_policy"
"""Columns whose values the card lists with their numbers."""

_MISSING = "runtime_burst_ms", "runtime_settled_ms", "power_w", "result_digest"
"""Columns that many rows lack, whose numbers of values the card gives."""


def export(farm: Farm, query: Mapping[str, Any], *, name: str, license_id: str) -> Export:
    """A dataset of one device type. Raises `NothingToExport`.

    Args:
        query: The arguments of the operation `farm.api.results.rows`, with the device type.
        license_id: The identifier that Hugging Face has for the licence.
    """
    found = pages(farm, None, **query)
    first = next(found)
    if first.identity is None:
        raise NothingToExport(tool="a dataset", why=f"no row of {query['type']} matches.")
    identity, file, described, size = first.identity, f"data/{name}.parquet", DescribedRows(), 0

    def recording(written: IO[bytes], done: Done) -> int:
        nonlocal size
        ParquetRows().write(described.read(CountedPages(chain([first], found), done)), written)
        size = written.tell()
        return described.count

    def card(written: IO[bytes], _: Done) -> int:
        written.write(card_of(described, identity, name=name, file=file, size=size, license_id=license_id).encode())
        return 1

    # The card describes the recording, so it is written after it.
    return Export([StreamedFile(file, recording, "rows"), StreamedFile("README.md", card, "card")])


class DescribedRows:
    """What a card says about rows, collected page by page."""

    def __init__(self) -> None:
        self.count, self.origin = 0, Origin()
        self._values: Mapping[str, Counter[str]] = {name: Counter() for name in _LISTED}
        self._with = Counter[str]()
        self._problems = set[tuple[Any, ...]]()

    def read(self, pages: Iterable[Results]) -> Iterator[Results]:
        """The pages, whose rows it reads while they pass."""
        for page in pages:
            self.count += len(page.rows)
            self.origin.add(page.rows)
            for row in page.rows:
                for name, values in self._values.items():
                    values[str(row[name])] += 1
                self._with.update(name for name in _MISSING if row[name] is not None)
                self._problems.add((row["m"], row["n"], row["k"], row["ab"], row["layout"]))
            yield page

    def parts(self) -> Iterator[tuple[str, str]]:
        for name, counts in self._values.items():
            ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
            yield f"`{name}`", ", ".join(f"{value} ({count:,})" for value, count in ordered)
        yield "problems", f"{len(self._problems):,} of m, n, k, type and layout"
        for name in _MISSING:
            yield f"with `{name}`", f"{self._with[name]:,}"


def card_of(rows: DescribedRows, identity: Identity, *, name: str, file: str, size: int, license_id: str) -> str:
    """The card, in Markdown with a YAML front matter.

    Args:
        file: The path of the recording in the dataset.
        size: Its bytes.
    """
    title = f"GEMMs on {identity.name}: {name}"
    matter = {
        "pretty_name": title,
        "license": license_id,
        "size_categories": [next((name for below, name in _SIZES if rows.count < below), "10M<n<100M")],
        "tags": ["gemm", "gpu", "performance", "energy", "gemm-farm"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": file}]}],
        "dataset_info": {
            "features": [{"name": name, "dtype": dtype_of(name)} for name in EXPORTED],
            "splits": [{"name": "train", "num_bytes": size, "num_examples": rows.count}],
            "download_size": size,
        },
    }
    return "\n".join([
        "---",
        yaml.safe_dump(matter, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {title}",
        "",
        f"{rows.count:,} measurements of matrix multiplications on {identity.name}, by gemm-farm {__version__}. A row is one kernel for one "
        "problem: its time, power, clocks, and what repeats it.",
        "",
        "## Rows",
        "",
        *_table(("part", "values"), rows.parts()),
        "",
        "## Provenance",
        "",
        rows.origin.provenance(identity).provenance + ".",
        "",
        "Empty values could not be measured; none means zero. Rows whose `details` hold `\"purpose\": \"test\"` are of a test set.",
        "",
        "## Columns",
        "",
        "`parameters`, `environment` and `details` are JSON text.",
        "",
        *_table(("column", "type", "unit", "meaning"), ((f"`{name}`", dtype_of(name), COLUMNS[name].unit, COLUMNS[name].meaning) for name in EXPORTED)),
        "",
        "## Use",
        "",
        "```python",
        "import pandas as pd",
        "",
        f'rows = pd.read_parquet("{file}")',
        "```",
        "",
        f"`farm import dataset {file}` puts the rows into another farm, and `farm replay {file}` answers its configurations without a GPU.",
        "",
    ])  # fmt: skip


def dtype_of(column: str) -> str:
    """The name of a column's type in `datasets.Value`."""
    name = str(ARROW_TYPES[COLUMNS[column].type])
    return _DTYPES.get(name, name)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *cells]]

"""Datasets as Hugging Face has them: a recording in `data/`, and a card that describes it.

The front matter of the card names the licence, the size, the files and the features. The table of columns comes from their
one declaration (`farm.schema.results`). The recording is the one that `farm results --output FILE.parquet` writes, so that
`farm import dataset` and `farm replay` read it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from farm import __version__
from farm.api import Farm
from farm.api.results import Results, all_rows
from farm.errors import NothingToExport
from farm.exporters.exporter import Export, ExportedFile
from farm.exporters.parquet_rows import ParquetRows, provenance_of
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

_MISSING = "runtime_burst_ms", "runtime_settled_ms", "power_w", "result_digest"
"""Columns that many rows lack, whose numbers of values the card gives."""


def export(farm: Farm, query: Mapping[str, Any], *, name: str, license_id: str) -> Export:
    """A dataset of one device type. Raises `NothingToExport`.

    Args:
        query: The arguments of the operation `farm.api.results.rows`, with the device type.
        license_id: The identifier that Hugging Face has for the licence.
    """
    found = all_rows(farm, None, **query)
    if not found.rows or found.identity is None:
        raise NothingToExport(tool="a dataset", why=f"no row of {query['type']} matches.")
    content = ParquetRows().content(found)
    file = f"data/{name}.parquet"
    card = card_of(found, name=name, file=file, size=len(content), license_id=license_id)
    return Export(
        [ExportedFile(file, content, len(found.rows), "rows"), ExportedFile("README.md", card.encode(), 1, "card")]
    )


def card_of(found: Results, *, name: str, file: str, size: int, license_id: str) -> str:
    """The card, in Markdown with a YAML front matter.

    Args:
        file: The path of the recording in the dataset.
        size: Its bytes.
    """
    assert found.identity is not None
    rows, identity = found.rows, found.identity
    title = f"GEMMs on {identity.name}: {name}"
    matter = {
        "pretty_name": title,
        "license": license_id,
        "size_categories": [next((name for below, name in _SIZES if len(rows) < below), "10M<n<100M")],
        "tags": ["gemm", "gpu", "performance", "energy", "gemm-farm"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": file}]}],
        "dataset_info": {
            "features": [{"name": name, "dtype": dtype_of(name)} for name in EXPORTED],
            "splits": [{"name": "train", "num_bytes": size, "num_examples": len(rows)}],
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
        f"{len(rows):,} measurements of matrix multiplications on {identity.name}, by gemm-farm {__version__}. A row is one kernel for one "
        "problem: its time, power, clocks, and what repeats it.",
        "",
        "## Rows",
        "",
        *_table(("part", "values"), _parts(rows)),
        "",
        "## Provenance",
        "",
        provenance_of(rows, identity).provenance + ".",
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


def _parts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    named = ("family", "ab", "layout", "scale", "fused", "sparsity", "protocol", "source", "clock_policy")
    parts = [(f"`{name}`", _listed(row[name] for row in rows)) for name in named]
    parts += [
        (
            "problems",
            f"{len({(row['m'], row['n'], row['k'], row['ab'], row['layout']) for row in rows}):,} of m, n, k, type and layout",
        )
    ]
    return parts + [(f"with `{name}`", f"{sum(row[name] is not None for row in rows):,}") for name in _MISSING]


def _listed(values: Iterable[Any]) -> str:
    counts = dict[str, int]()
    for value in values:
        counts[str(value)] = counts.get(str(value), 0) + 1
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *cells]]

"""Datasets with a card: what the card says is what the recording has."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from farm.api.results import Identity, Results
from farm.errors import NothingToExport
from farm.exporters import dataset
from farm.exporters.exporter import contents
from farm.kernels import Configuration
from farm.provenance import METADATA_KEY, Provenance
from farm.schema.results import COLUMNS, EXPORTED

CARD = Identity(
    uuid="GPU-1", type="card", name="A card", backend="cuda", traits={"kind": "cuda", "memory_bytes": 2**30}
)


def row(tile: int, **more: Any) -> dict[str, Any]:
    known = {"campaign": "small", "host": "box", "source": "measured", "protocol": "farm", "runtime_ms": 0.5}
    columns = Configuration.parse(f"tiled(tile={tile}) 64x64x64 f32").columns()
    return {**dict.fromkeys(EXPORTED), **columns, **known, "measured_at": datetime(2026, 11, 26, tzinfo=UTC), **more}


class FakeFarm:
    rows_at_once = 1000

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)

    def ask(self, *_: Any, **__: Any) -> Any:
        return Results.model_construct(rows=self.rows, identity=CARD if self.rows else None, commands=None, next=None)


def exported(*rows: dict[str, Any]) -> tuple[bytes, str]:
    """The recording and the card."""
    found = contents(dataset.export(FakeFarm(*rows), {"type": "card"}, name="small", license_id="cc-by-4.0"))
    return found["data/small.parquet"], found["README.md"].decode()


def test_the_front_matter_describes_the_files_and_features_of_the_recording() -> None:
    recording, card = exported(row(8), row(16, power_w=300.0))
    _, matter, text = card.split("---\n", 2)
    found = yaml.safe_load(matter)
    (files,) = found["configs"][0]["data_files"]
    assert files["path"] == "data/small.parquet"
    assert (found["license"], found["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    assert found["dataset_info"]["splits"] == [{"name": "train", "num_bytes": len(recording), "num_examples": 2}]
    schema = pq.read_schema(io.BytesIO(recording))
    kinds = [str(schema.field(name).type).replace("double", "float64") for name in schema.names]
    features = [(one["name"], one["dtype"]) for one in found["dataset_info"]["features"]]
    assert features == list(zip(schema.names, kinds, strict=True))
    assert "| with `power_w` | 1 |" in text


def test_the_card_has_every_column_with_its_unit_and_the_provenance() -> None:
    recording, text = exported(row(8))
    for name in EXPORTED:
        meaning = COLUMNS[name].meaning.replace("|", "\\|")
        assert f"| `{name}` | {dataset.dtype_of(name)} | {COLUMNS[name].unit} | {meaning} |" in text
    metadata = pq.read_schema(io.BytesIO(recording)).metadata
    assert Provenance.from_json(json.loads(metadata[METADATA_KEY])).provenance in text


def test_a_dataset_without_rows_is_refused() -> None:
    with pytest.raises(NothingToExport, match="no row of card"):
        exported()

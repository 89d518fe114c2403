"""What a browser looks at in tests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import farm
from farm.campaign import loads
from farm.devices import DeviceKind, DeviceTraits
from farm.provenance import Provenance
from workers.devices.recording import write_recording

CAMPAIGN = """\
name: seen-in-a-browser
owner: ann
targets:
  - {type: recorded-card-a}
  - {type: recorded-card-b}
problems: {m: [64, 128, 192, 256, 320, 384, 448, 512], n: 64, k: [64, 128], types: f32}
kernels: [{family: blas, threads: [1, 2]}]
"""


DATASET = Path(farm.__file__).parents[1] / "examples" / "datasets" / "nvidia-h200-paper-all-tiles.parquet"
IMPORTED = (DATASET, hashlib.sha256(DATASET.read_bytes()).hexdigest()[:16])
"""What the served farm has imported: the file, and the name of the import in addresses."""


@dataclass(frozen=True)
class BrowsedFarm:
    """A farm that is served."""

    url: str


def record(file: Path, device_type: str, *, runtime_ms: float) -> None:
    """A device that answers all that the campaign asks, and takes a while for each, so that it can be watched."""
    asked = loads(CAMPAIGN, name="campaign.yaml", limit=1000, owner=None).expand()
    traits = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34, threads=2)
    origin = Provenance(device_type=device_type, device_name=device_type, traits=traits, provenance="made up")
    write_recording(
        file,
        [{"configuration": c, "runtime_ms": runtime_ms, "runtime_rse": 0.001, "cost_s": 0.15} for c in asked],
        origin,
    )

"""Where a file of measurements comes from: what an export says of itself, and a `recorded` device repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farm.devices import DeviceTraits

METADATA_KEY = b"gemm-farm"
"""The key of a Parquet file's metadata under which its provenance stands, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the rows of a recording come from."""

    # Normalised type and product name of the device that was measured, as in `farm.devices.DeviceIdentity`.
    device_type: str
    device_name: str
    traits: DeviceTraits
    # Who measured it, when and how: free text.
    provenance: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "traits": self.traits.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Provenance:
        """Raises `KeyError`, `ValueError` or `TypeError` for what is no provenance."""
        return cls(
            device_type=str(data["device_type"]),
            device_name=str(data["device_name"]),
            traits=DeviceTraits.from_json(data["traits"]),
            provenance=str(data["provenance"]),
        )

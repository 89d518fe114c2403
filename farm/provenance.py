"""Provenance of a file of measurements, written by exports and used by `recorded` devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farm.devices import DeviceTraits

METADATA_KEY = b"gemm-farm"
"""Key of the provenance (JSON) in a Parquet file's metadata."""


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

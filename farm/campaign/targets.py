"""The devices that a campaign is measured on, as its file names them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.campaign.axes import shown

_FORMS = "write any, {type: nvidia-h200}, {each: nvidia-h200}, {host: gpu01} or {device: GPU-…}"


class TargetKind(StrEnum):
    ANY = "any"  # once, on any device that can
    TYPE = "type"  # once, on any device of the type
    EACH = "each"  # on every device of the type
    HOST = "host"  # on every device of the host
    DEVICE = "device"  # on the device of that UUID


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One entry of `targets`; `value` is empty for `any`."""

    kind: TargetKind
    value: str = ""

    @classmethod
    def parse(cls, written: object) -> Target:
        """Reads an entry. Raises `ValueError`, which says what is wrong and what to write instead."""
        if written == "any":
            return ANY
        if isinstance(written, dict) and len(written) == 1:
            ((kind, value),) = written.items()
            if kind in TargetKind.__members__.values() and kind != TargetKind.ANY:
                if isinstance(value, str) and value.strip():
                    return cls(TargetKind(kind), value.strip())
                raise ValueError(f"{kind} names nothing; {_FORMS}")
        what = f"{{{', '.join(written)}}}" if isinstance(written, dict) else shown(written)
        raise ValueError(f"{what} is not a target; {_FORMS}")

    def __str__(self) -> str:
        return self.kind if self.kind is TargetKind.ANY else f"{{{self.kind}: {self.value}}}"

    def to_document(self) -> str | dict[str, str]:
        return "any" if self.kind is TargetKind.ANY else {str(self.kind): self.value}


ANY = Target(TargetKind.ANY)

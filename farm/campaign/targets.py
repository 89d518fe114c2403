"""What a campaign is measured on, as its file says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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
    # Where the file says it.
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.kind if self.kind is TargetKind.ANY else f"{{{self.kind}: {self.value}}}"

    def to_document(self) -> str | dict[str, str]:
        return "any" if self.kind is TargetKind.ANY else {str(self.kind): self.value}


ANY = Target(TargetKind.ANY)

"""What one look of `farm doctor` comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.masking import masked


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"  # the farm works, but not all of it, or not for long
    MISSING = "missing"  # something needed is absent or broken


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `fix` is empty where nothing needs to be done."""

    check: str
    state: CheckState
    what: str
    fix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", masked(self.what))
        object.__setattr__(self, "fix", masked(self.fix))

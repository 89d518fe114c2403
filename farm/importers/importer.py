"""What an importer declares: the format that it reads, and the command `farm import NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.importers.landing import Table


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format of foreign measurements. A module of this package declares one; `farm.importers.formats` names it.

    Attributes:
        name: The name of the command.
        files: What its files are, for the help text.
        help: The help text of the command.
        look: Looks at the head of a file, whose path it takes. Raises `BadRecording` and `MissingColumns`.
        device: The default of the option `--device`, which `look` takes as `device`; without it there is no such option.
    """

    name: str
    files: str
    help: str
    look: Callable[..., Table]
    device: str | None = None

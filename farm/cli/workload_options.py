"""Options that say what to measure without a campaign file: the GEMMs of a program."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from farm.campaign import Campaign, loads, texts_named
from farm.campaign.reading import text_of
from farm.campaign.trace_texts import GEMMS_SUFFIX, notes_of, trace_text
from farm.cli.output import remarks
from farm.errors import BadInput

FileOrWorkload = Annotated[
    Path | None, typer.Argument(help="A campaign file (YAML); none with --trace.", show_default=False)
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Measure the GEMMs of a program instead of a campaign file: what TunableOp, cuBLASLt, Inductor or PyTorch's profiler "
        "recorded.",
        show_default=False,
    ),
]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--family",
        "-f",
        help="With --trace: a kernel family to measure, all its parameters at their defaults. Repeat it. The default is cublaslt.",
        show_default=False,
    ),
]

_DEFAULT_FAMILY = "cublaslt"


@dataclass(frozen=True, slots=True)
class CampaignText:
    """A campaign file, and the texts of the files that it names.

    Attributes:
        text: The YAML text.
        name: Its name in messages.
        files: Texts by name.
    """

    text: str
    name: str
    files: dict[str, str]

    def campaign(self, limit: int) -> Campaign:
        """The campaign. Raises `CampaignFileError`, and `CampaignTooLarge` beyond that many configurations."""
        return loads(self.text, name=self.name, limit=limit, owner=None, files=self.files)


def campaign_text(file: Path | None, *, trace: Path | None, families: Sequence[str] | None) -> CampaignText:
    """The campaign of a file, or of a trace. Prints what people should know of traces.

    Raises `BadInput` unless exactly one of them is given.
    """
    if (file is None) == (trace is None):
        raise BadInput(detail="Name a campaign file, or a trace with --trace FILE, and not both.")
    if trace is None and families:
        raise BadInput(detail="--family goes with --trace; a campaign file names its families.")
    if file is not None:
        text = text_of(file)
        made = CampaignText(text, str(file), texts_named(text, file))
    else:
        made = _of_trace(Path(str(trace)), families or [_DEFAULT_FAMILY])
    for note in notes_of(made.files):
        remarks.print(note, markup=False)
    return made


def _of_trace(trace: Path, families: Sequence[str]) -> CampaignText:
    name = re.sub(r"[^a-z0-9._-]+", "-", trace.name.partition(".")[0].lower()).strip("-._")[:100]
    kernels = [{"family": family} for family in families]
    document = {"name": name or "trace", "problems": {"trace": str(trace)}, "kernels": kernels}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    try:
        return CampaignText(text, f"--trace {trace}", {f"{trace}{GEMMS_SUFFIX}": trace_text(trace)})
    except ValueError as error:
        raise BadInput(detail=str(error)) from None

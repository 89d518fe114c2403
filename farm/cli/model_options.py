"""What commands that ask a registered model share."""

from __future__ import annotations

from typing import Annotated

import typer

TypeOption = Annotated[
    str | None, typer.Option("--type", "-t", help="Device type; may be left out where there is one model.")
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--version",
        help="A version number or an alias.",
        show_default="the champion, or the newest where there is none",
    ),
]

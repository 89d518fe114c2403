"""`farm keys`: the keys that sign models, kernels and published folders on this host, and the keys that it trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farm import signing_keys
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.settings import settings
from farm.signing import Purpose, Signer

app = typer.Typer(
    help="Show and make the keys that sign models, kernels and publications, and list the trusted keys.",
    invoke_without_command=True,
)


@app.callback()
def _list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the public keys of this host, and those that it trusts."""
    if context.invoked_subcommand is not None:
        return
    rows = []
    for purpose in Purpose:
        own = signing_keys.signer(settings(), purpose).public
        rows += [
            {"for": purpose.value, "key": key, "own": key == own}
            for key in dict.fromkeys([own, *signing_keys.trusted(settings(), purpose)])
        ]
    if as_json:
        emit_json(rows)
    else:
        _KEYS.print((row["for"], row["key"], "this host" if row["own"] else "others") for row in rows)


_KEYS = Table("keys", Column("signs a"), Column("public key", folds=True), Column("held by"))


@app.command()
def make(
    file: Annotated[Path, typer.Argument(help="File for the private key.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Make a key pair. The private key goes into a file that only you can read; the public key is printed.

    On the host that signs, set FARM_MODEL_SIGNING_KEY, FARM_KERNEL_SIGNING_KEY or FARM_PUBLISH_SIGNING_KEY to the file. On hosts
    that load models or kernels, or read publications, add the public key to FARM_MODEL_KEYS, FARM_KERNEL_KEYS or FARM_PUBLISH_KEYS.

    Examples:
        farm keys make builder.pem
    """
    public = Signer.make(file).public
    if as_json:
        emit_json({"file": file, "public_key": public})
    else:
        console.print(public, soft_wrap=True)
        remarks.print(f"The private key is in {file}. Anyone who reads it can sign as you.", soft_wrap=True)

"""Commands that install extras from the same source as the farm."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = "gemm-farm"


class _Commands:
    """By extra, the command that installs it: `INSTALL["web"]`, in messages `{install[web]}`."""

    def __getitem__(self, extra: str) -> str:
        return command(extra)


INSTALL = _Commands()


@cache
def command(extra: str) -> str:
    """The command for an extra.

    A folder or wheel that the farm was installed from is named. The package's name alone is one that another project may
    own on an index: it is used only where the farm itself came from one. The installer is the one that made this environment.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # takes a while, and few processes need it

    try:
        found = distribution(PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"make setup EXTRA={extra}"
    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").is_file():
        return f"pipx runpip {PACKAGE} install {_quoted(found, [extra])}"
    if (receipt := environment / "uv-receipt.toml").is_file():
        # It makes the tool's environment anew.
        return f"uv tool install --force {_quoted(found, [*_extras_in(receipt), extra])}"
    if find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(sys.executable)} {_quoted(found, [extra])}"
    return f"pip install {_quoted(found, [extra])}"


def _quoted(found: str | None, extras: Iterable[str]) -> str:
    """What an installer is given for these extras, where `direct_url.json` of the installation has the text `found`."""
    names = ",".join(dict.fromkeys(extras))
    if found is None:
        return f"'{PACKAGE}[{names}]'"
    origin = json.loads(found)
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        scheme = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
        return shlex.quote(f"{PACKAGE}[{names}] @ {scheme}{origin['url']}")
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return editable + shlex.quote(f"{unquote(url.path)}[{names}]")


def _extras_in(receipt: Path) -> list[str]:
    """The extras with which `uv tool install` was called."""
    import tomllib

    try:
        needed = tomllib.loads(receipt.read_text())["tool"]["requirements"]
        return [extra for one in needed if one["name"] == PACKAGE for extra in one.get("extras", ())]
    except (OSError, ValueError, KeyError, TypeError):
        return []

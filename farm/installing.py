"""Commands that install extras from the same source as the farm."""

from __future__ import annotations

import json
import shlex
from functools import cache
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
    own on an index: it is used only where the farm itself came from one.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # takes a while, and few processes need it

    try:
        found = distribution(PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"make setup EXTRA={extra}"
    if found is None:
        return f"pip install '{PACKAGE}[{extra}]'"
    origin = json.loads(found)
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        scheme = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
        return "pip install " + shlex.quote(f"{PACKAGE}[{extra}] @ {scheme}{origin['url']}")
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}" + shlex.quote(f"{unquote(url.path)}[{extra}]")

"""Opening an address in the user's browser, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser

from farm.cli.output import console, remarks


def show(address: str, *, only_print: bool = False) -> None:
    """Prints the address on stdout, and opens it."""
    console.print(address, markup=False, soft_wrap=True)
    if not only_print:
        open_address(address)


def open_address(address: str) -> None:
    """Opens an address that the user knows already. Where that is not possible, says why on stderr; this is no error."""
    if (why := _no_browser()) is None and not _opened(address):
        why = "no browser was found"
    if why is not None:
        remarks.print(f"Not opened: {why}. Open it yourself, or set BROWSER.", markup=False)


def _no_browser() -> str | None:
    """Why a browser is not even tried: a text browser would take over the terminal. BROWSER is always tried."""
    if os.environ.get("BROWSER") or sys.platform in ("darwin", "win32"):
        return None
    if os.environ.get("TERM") == "dumb":
        return "this terminal shows text only (TERM=dumb)"
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        over = " (a session over SSH)" if os.environ.get("SSH_CONNECTION") else ""
        return f"this session has no display{over}"
    return None


def _opened(address: str) -> bool:
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False

"""Open an address in the user's browser."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from pathlib import Path
from tempfile import NamedTemporaryFile

from farm.cli.output import console, remarks


def show(address: str, *, only_print: bool = False) -> None:
    """Prints the address on stdout, and opens it."""
    console.print(address, markup=False, soft_wrap=True)
    if not only_print:
        open_address(address)


def show_link(page: str, link: str, *, folder: Path | None, only_print: bool) -> None:
    """Opens a link that only this account may use. Prints it if no browser opens.

    Other accounts see the command lines of this one, so the browser gets the link from a file that only this account reads, in
    `folder` or among temporary files.
    """
    opened = False
    if not only_print and (why := _no_browser()) is None:
        opened = _opened(_redirecting(link, folder).as_uri())
        why = None if opened else _NOT_FOUND
    console.print(page if opened else link, markup=False, soft_wrap=True)
    if not only_print and why is not None:
        _not_opened(why)


def _redirecting(link: str, folder: Path | None) -> Path:
    """A file that redirects to the link. Removes earlier files of this kind from the folder."""
    address = html.escape(link)
    for old in folder.glob("sign-in-*.html") if folder is not None else ():
        old.unlink(missing_ok=True)
    with NamedTemporaryFile("w", prefix="sign-in-", suffix=".html", dir=folder, delete=False) as out:  # mode 0600
        out.write(
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>GEMM Farm</title>\n'
        )
        out.write(f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">GEMM Farm</a>\n')
    return Path(out.name)


def open_address(address: str) -> None:
    """Opens an address that the user knows already. If that is not possible, prints the reason on stderr."""
    if (why := _no_browser()) is None and not _opened(address):
        why = _NOT_FOUND
    if why is not None:
        _not_opened(why)


_NOT_FOUND = "no browser was found"


def _not_opened(why: str) -> None:
    remarks.print(f"Not opened: {why}. Open it yourself, or set BROWSER.", markup=False)


def _no_browser() -> str | None:
    """Why no browser is started: a text browser would take over the terminal. BROWSER is always started."""
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

"""Who is logged in on this machine."""

from __future__ import annotations

import getpass


def login_name() -> str | None:
    """The name; None in a container without one: no variable, no entry in /etc/passwd."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None

"""The account of this process."""

from __future__ import annotations

import os
import pwd


def login_name() -> str | None:
    """The account that runs this process; None where its number has no name, as in some containers.

    It is not read from the environment, where anybody can write another name.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None

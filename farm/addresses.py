"""Addresses of this machine (pure)."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address of that name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def stays_here(host: str) -> bool:
    """Whether what goes to this host of a Postgres or Redis URL stays on this machine: a Unix socket, or a loopback address."""
    return not host or host.startswith(("/", "@")) or is_loopback(host.lower())


def port_of(url: SplitResult) -> int:
    """The port of an HTTP URL, the usual one of its scheme where it names none. Raises `ValueError` for one that is none."""
    return url.port or (443 if url.scheme == "https" else 80)

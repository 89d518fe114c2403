"""Limits of a server. Limits of single operations are declared with the operations."""

from __future__ import annotations

import ipaddress

# --- connections -------------------------------------------------------------------------------------

MAX_CONNECTIONS = 1000
"""Connections at a time. A browser keeps up to six open."""

MAX_CONNECTIONS_PER_ADDRESS = 250
"""Of those, connections from one address. All users behind a proxy have the proxy's address."""

HEADER_SECONDS = 10.0
"""From the first byte of a request, or from connecting, to the end of its headers. A TLS handshake has as long."""

READING_SECONDS = 30.0
"""How long a client may leave a response unread."""

# --- requests ----------------------------------------------------------------------------------------

MAX_REQUESTS = 200
"""Requests in progress."""

MAX_UNIDENTIFIED = 150
"""Of those, requests without a valid token or session. The rest is reserved for users who are signed in."""

MAX_UNIDENTIFIED_PER_ADDRESS = 50
"""Of those, requests from one address."""

MAX_REQUESTS_PER_USER = 50
"""Requests in progress with one token, or of one login."""

# --- streams of events -------------------------------------------------------------------------------

MAX_STREAMS = 100
"""Streams at a time. They are requests in progress too."""

MAX_STREAMS_PER_USER = 10
"""Of those, streams with one token, or of one login; without tokens, from one address."""

STREAM_SECONDS = 120.0
"""How long a stream lasts. The browser opens another, with its rights checked again."""

# --- bodies ------------------------------------------------------------------------------------------

MAX_BODY_BYTES = 20 * 2**20
"""The body of an operation that has a process of its own: campaign files, tables to predict."""

MAX_SMALL_BODY_BYTES = 2**20
"""The body of every other request."""

BODY_SECONDS = 30.0
"""How long a whole body may take, and one second more for each `BODY_BYTES_PER_SECOND`."""

BODY_BYTES_PER_SECOND = 64 * 2**10

# --- processes for expensive operations --------------------------------------------------------------

PROCESSES = 2
"""Expensive operations at a time, each in a process of its own. A user has one of them at a time."""

PROCESS_MEMORY_BYTES = 2 * 2**30
"""Address space that such a process may add to what it has when it starts."""

WAITING_SECONDS = 30.0
"""How long an expensive operation waits for a process."""

GRACE_SECONDS = 5
"""How long requests in progress may take to end after SIGTERM."""


def address_group(host: str | None) -> str:
    """An address as limits count it. A network of IPv6 that one host has (/64) counts as one address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)

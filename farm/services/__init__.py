"""Embedded Postgres and Redis, and the other processes of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.services.background import prepare_database
    from farm.services.embedded import ServiceUrls, services
    from farm.services.stack import Program, Stack, programs
    from farm.services.urls import safe_url

__getattr__ = names_of(__name__)

"""The context of operations: the farm's database, its models, and the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from farm.api.pulled import PulledModels
from farm.api.report_cache import ReportCache
from farm.registry.trust import Trust
from farm.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from farm.db.audit import Actor, Change
    from farm.services.session import Session


class Access:
    """The farm for one caller. The database is opened, or started, at its first use."""

    def __init__(
        self,
        settings: Settings,
        *,
        who: str | Actor | None = None,
        opened: Session | None = None,
        models: PulledModels | None = None,
        reports: ReportCache | None = None,
    ) -> None:
        """The farm for one caller.

        Args:
            settings: Where the farm is.
            who: The caller. A name is a program of this account; None is the account itself.
            opened: An open session, which the caller closes.
            models: Loaded models, shared between callers.
            reports: Rendered reports, shared between callers.
        """
        self.settings = settings
        self._who = who
        # A prediction opens no session: signatures need no database.
        trust = Trust(settings, None if opened is None else opened.engine)
        self.models = models or PulledModels(settings.tracking_uri, trust)
        self.reports = reports or ReportCache()
        self._stack = ExitStack()
        if opened is not None:
            self.session = opened

    @cached_property
    def session(self) -> Session:
        # Imported here: importing SQLAlchemy takes longer than a prediction.
        from farm.services.session import session

        return self._stack.enter_context(session())

    @cached_property
    def actor(self) -> Actor:
        """The caller: name, role and origin."""
        from farm.db.audit import local_actor

        return local_actor(self._who) if self._who is None or isinstance(self._who, str) else self._who

    @property
    def who(self) -> str:
        """The caller's name, which is recorded with changes."""
        return self.actor.name

    def on_behalf_of(self, who: Actor) -> Access:
        """The same farm for another caller. Closing it closes nothing."""
        return Access(self.settings, who=who, opened=self.session, models=self.models, reports=self.reports)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to read with."""
        with self.session.engine.connect() as connection:
            yield connection

    @contextmanager
    def change(self, operation: Callable[..., Any]) -> Iterator[Change]:
        """A transaction in which an operation changes the farm and records the change: see `farm.db.audit`."""
        from farm.api.operation import OPERATIONS
        from farm.db import audit

        with audit.change(self.session.engine, self.actor, OPERATIONS[operation].name) as change:
            yield change

    @property
    def silent_after(self) -> float:
        return self.settings.silent_after_seconds

    def close(self) -> None:
        self._stack.close()

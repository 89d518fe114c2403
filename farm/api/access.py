"""What operations work with: the farm's database and models, and on whose behalf."""

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
    """The farm as one caller has it. The database is reached, or started, when it is first needed."""

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
            who: Who asks. A name is a program of this account; none is the account itself.
            opened: A session that is open already, and stays the caller's to close.
            models: Pulled models, which are shared.
            reports: Drawn reports, which are shared.
        """
        self.settings = settings
        self._who = who
        # Where no session is open, none is opened for a question to a model: signatures need no database.
        trust = Trust(settings, None if opened is None else opened.engine)
        self.models = models or PulledModels(settings.tracking_uri, trust)
        self.reports = reports or ReportCache()
        self._stack = ExitStack()
        if opened is not None:
            self.session = opened

    @cached_property
    def session(self) -> Session:
        # Imported here: SQLAlchemy takes longer to import than a question to a model takes.
        from farm.services.session import session

        return self._stack.enter_context(session())

    @cached_property
    def actor(self) -> Actor:
        """Who asks, with which role, and from where."""
        from farm.db.audit import local_actor

        return local_actor(self._who) if self._who is None or isinstance(self._who, str) else self._who

    @property
    def who(self) -> str:
        """The name of who asks, which signs what is done."""
        return self.actor.name

    def on_behalf_of(self, who: Actor) -> Access:
        """The same farm for another caller, who closes nothing."""
        return Access(self.settings, who=who, opened=self.session, models=self.models, reports=self.reports)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to read with."""
        with self.session.engine.connect() as connection:
            yield connection

    @contextmanager
    def change(self, operation: Callable[..., Any]) -> Iterator[Change]:
        """A transaction in which that operation changes the farm, and records what it changed: see `farm.db.audit`."""
        from farm.api.operation import OPERATIONS
        from farm.db import audit

        with audit.change(self.session.engine, self.actor, OPERATIONS[operation].name) as change:
            yield change

    @property
    def silent_after(self) -> float:
        return self.settings.silent_after_seconds

    def close(self) -> None:
        self._stack.close()

"""What operations work with: the farm's database and models, and on whose behalf."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from farm.api.pulled import PulledModels
from farm.api.report_cache import ReportCache
from farm.registry.trust import Trust
from farm.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from farm.services.session import Session


class Access:
    """The farm as one caller has it. The database is reached, or started, when it is first needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        who: str,
        opened: Session | None = None,
        models: PulledModels | None = None,
        reports: ReportCache | None = None,
    ) -> None:
        """`who` signs what is done. An `opened` session stays the caller's to close; pulled `models` and drawn `reports` are shared."""
        self.settings = settings
        self.who = who
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

    def on_behalf_of(self, who: str) -> Access:
        """The same farm for another caller, who closes nothing."""
        return Access(self.settings, who=who, opened=self.session, models=self.models, reports=self.reports)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to read with."""
        with self.session.engine.connect() as connection:
            yield connection

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A connection in a transaction that is kept at its end."""
        with self.session.engine.begin() as connection:
            yield connection

    @property
    def silent_after(self) -> float:
        return self.settings.silent_after_seconds

    def close(self) -> None:
        self._stack.close()

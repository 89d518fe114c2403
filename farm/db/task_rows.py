"""Tasks with one row each: trainings and kernels. If a program dies, another one gets its task.

A row waits, runs, and ends. The id of a waiting row goes to the broker, and one program starts the task. Writes of a program are
fenced by the number of the attempt: they have no effect after the task was taken back. All times are Postgres's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, text

MAX_ATTEMPTS = 3
"""A task that failed or killed its program this often is given up."""


class TaskTable:
    """The common transitions of the rows of such a table.

    The table has id, state, sent_at, starts, started_at, heard_of_at, finished_at and error.
    """

    def __init__(
        self,
        table: str,
        *,
        waiting: StrEnum,
        running: StrEnum,
        failed: StrEnum,
        given_up: str,
        suits: str = "true",  # SQL: whether a program can start the row, with parameters from `start`
        resets: str = "",  # a column that each attempt resets
    ) -> None:
        self.fence = f"id = :id AND state = '{running}' AND starts = :number"
        self._sent = text(f"""
            WITH these AS MATERIALIZED (
                SELECT id FROM {table} WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
            )
            UPDATE {table} t SET sent_at = clock_timestamp() FROM these WHERE t.id = these.id
        """)
        self._start = text(f"""
            UPDATE {table} SET state = '{running}', starts = starts + 1, started_at = clock_timestamp(),
                heard_of_at = clock_timestamp(){f", {resets} = NULL" if resets else ""}
            WHERE id = :id AND state = '{waiting}' AND {suits} RETURNING *
        """)
        self._beat = text(f"UPDATE {table} SET heard_of_at = clock_timestamp() WHERE {self.fence}")
        self._take_back = text(f"""
            UPDATE {table} SET sent_at = NULL,
                state = CASE WHEN starts < :max_attempts THEN '{waiting}' ELSE '{failed}' END,
                finished_at = CASE WHEN starts < :max_attempts THEN NULL ELSE clock_timestamp() END,
                error = CASE WHEN starts < :max_attempts THEN NULL ELSE format('{given_up}', starts) END
            WHERE id IN (
                SELECT id FROM {table} WHERE state = '{running}'
                  AND coalesce(heard_of_at, started_at) < clock_timestamp() - make_interval(secs => :silent_after)
                ORDER BY id FOR UPDATE SKIP LOCKED
            )
            RETURNING id, state
        """)

    def mark_sent(self, connection: Connection, ids: Sequence[int]) -> None:
        """Records that the broker has the messages of these tasks."""
        connection.execute(self._sent, {"ids": list(ids)})

    def start(self, connection: Connection, id_: int, **suiting: Any) -> Any | None:
        """waiting → running. Returns the row; None if another program has it, it has ended, or this program cannot run it."""
        return connection.execute(self._start, {"id": id_, **suiting}).one_or_none()

    def beat(self, connection: Connection, id_: int, number: int) -> bool:
        """Records a heartbeat. Returns whether the program still has the task."""
        return bool(connection.execute(self._beat, {"id": id_, "number": number}).rowcount)

    def take_back(self, connection: Connection, *, silent_after: float, max_attempts: int) -> dict[int, str]:
        """running → waiting, if the program sent no heartbeat for `silent_after` seconds; → failed after `max_attempts`.

        Returns the new state by id.
        """
        parameters = {"silent_after": silent_after, "max_attempts": max_attempts}
        return {row.id: row.state for row in connection.execute(self._take_back, parameters)}

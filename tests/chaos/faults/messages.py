"""Messages that are lost, come twice or mean nothing."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from chaos.faults.base import FaultsOfOneFarm, NotNow, does
from chaos.plan import Kind
from farm.broker.celery_app import make_app
from farm.broker.queues import MEASURE_BATCH

log = logging.getLogger("chaos")

SEND_S = 2.0
"""How long Redis may take to answer before a message is sent later."""


class FaultsOfMessages(FaultsOfOneFarm):
    """What happens to messages on their way."""

    def _send(self, queue: str, *args: object, task: str = MEASURE_BATCH, **options: Any) -> None:
        app = make_app(self.farm.urls.broker_url or "")
        app.conf.broker_transport_options |= {
            "socket_timeout": SEND_S
        }  # this process must go on to mend a frozen Redis
        with app.connection_for_write() as broker, app.amqp.Producer(broker) as producer:
            app.send_task(task, args=args, queue=queue, producer=producer, retry=False, **options)

    @does(Kind.REPEAT_MESSAGES)
    def _repeat_messages(self, _: int) -> None:
        some = text("""
            SELECT id FROM (
                SELECT id, row_number() OVER (PARTITION BY state ORDER BY id DESC) AS n FROM batches
            ) b WHERE n <= 4
        """)
        with self.farm.engine.connect() as connection:
            ids = list(connection.execute(some).scalars())
        queues = self.farm.queues()
        for number, batch_id in enumerate(ids):
            self._send(queues[0], batch_id)
            self._send(queues[1 + number % (len(queues) - 1)], batch_id)

    @does(Kind.JUNK_MESSAGES)
    def _junk_messages(self, _: int) -> None:
        queue = self.farm.queues()[0]
        for junk in ("abc", None, {"id": 1}, [1], 1.5, True, -1, 10**12, 2**80, "1; DROP TABLE jobs"):
            self._send(queue, junk)
        self._send(queue)
        self._send(queue, 1, 2)
        self._send(queue, 1, task="workers.format_disk")
        self._send(queue, Pickled(self.farm.folder / "unpickled"), serializer="pickle")
        with self.farm.redis() as client:
            for raw in ("not JSON", "{}", '{"body": 1, "properties": {}}'):
                client.lpush(queue, raw)

    @does(Kind.LOSE_MESSAGES)
    def _lose_messages(self, _: int) -> None:
        queues, end, lost = self.farm.queues(), time.monotonic() + 3.0, 0
        with self.farm.redis() as client:
            while not lost:
                for queue in queues:
                    lost += client.rpop(queue) is not None
                if time.monotonic() > end:
                    raise NotNow("every queue is empty")
                time.sleep(0.01)
        log.info("  %d messages", lost)

    def send_all_messages(self) -> None:
        """Repeated and meaningless messages once more, when nothing can keep them from being delivered."""
        self._repeat_messages(0)
        self._junk_messages(0)


class Pickled:
    """Code in a message: whoever unpickles it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)

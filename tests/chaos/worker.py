"""`python -m chaos.worker`: `farm-worker`, whose devices misbehave, and which waits less before it tries again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from chaos.mischief import HURRY, OLDER, follow_the_clock, know_less
from farm.services.process_groups import ProcessGroup
from workers import main


def _start(command: Sequence[str], **options: Any) -> ProcessGroup:
    ours = ["chaos.process" if word == "workers.process" else word for word in command]
    return ProcessGroup(ours, **options)


if __name__ == "__main__":
    follow_the_clock()
    if OLDER in os.environ:
        know_less()
    patch("workers.hosting.ProcessGroup", _start).start()
    if HURRY in os.environ:
        # A minute of chaos stands for a day: a program that is killed often is not left alone for long.
        patch("farm.services.backoff.MAX_PAUSE_S", 4.0).start()
    main.main()

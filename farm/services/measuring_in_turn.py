"""Measuring pairs of configurations in turn on a device of this host, in a process of `workers.check`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from tempfile import NamedTemporaryFile
from typing import Any

from farm import python_program
from farm.services.json_lines import JsonLines, NoMessage
from farm.services.processes import end_guarded, start_guarded
from farm.settings import environment_for_children

START_SECONDS = 120.0
"""Time limit for importing libraries, which may not be cached, and opening the device."""

GRACE_SECONDS = 1.0
"""Time between SIGTERM, which a measuring process does not handle, and SIGKILL."""

Answer = dict[str, Any]


def measured_in_turn(request: Mapping[str, Any]) -> Generator[Answer]:
    """The messages of a process of `workers.check`, which describes them and the request.

    Ends with the result or failure of the last pair, or with a `refused` or `failure` message of all. No process is left running,
    also when the iteration is abandoned.
    """
    with ExitStack() as held:
        file = held.enter_context(NamedTemporaryFile("w", encoding="utf-8", suffix=".json"))
        json.dump(request, file)
        file.flush()
        command = python_program.program("workers.check", file.name)
        process = held.enter_context(
            start_guarded(
                command, environment=environment_for_children(), grace_s=GRACE_SECONDS, stdout=subprocess.PIPE
            )
        )
        messages = JsonLines(process)
        # It ends what is late itself. Between two messages it may start two processes, and measure four times.
        patience_s = 2 * START_SECONDS + 5 * float(request["rules"]["job_seconds"])
        pairs_left = len(request["pairs"])
        try:
            while pairs_left:
                answer = messages.next(patience_s, f"nothing was measured for {patience_s:g} s")
                yield answer
                if answer.keys() & {"refused", "failure"} and "pair" not in answer:
                    return
                pairs_left -= "pair" in answer
        except NoMessage as error:
            yield error.answer
        finally:
            end_guarded(process)

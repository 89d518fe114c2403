"""`python -m workers.single REQUEST`: measures one configuration, in a process of its own. `farm measure` starts it.

REQUEST is a JSON object: `configuration`, a canonical line; `device`, a selection as in FARM_DEVICES, of which the first
is used; `rules`, those of measuring. The process answers on standard output with JSON objects, one a line. First, when
the device is open and the configuration's own time begins:

    {"opened": {"uuid": …, "type": …, "name": …}, "of": how many devices the selection names}

Then, and last, what came of it:

    {"device": {"uuid": …, "type": …, "name": …}, "measurement": {…}}
    {"failure": {"kind": "invalid", "failed" or "killed", "message": …}}

or, instead of both, why there is no such device to open:

    {"refused": {"exit_code": …, "message": …}}

It keeps no time and may die at any point: whoever started it sees to both.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TextIO

from farm.errors import BadInput, DevicePoisoned, FarmError, InvalidOnDevice, NotFound, ServiceUnavailable
from farm.kernels import Configuration
from farm.logs import set_up_logging
from farm.measurement import Measurement, MeasuringRules
from farm.settings import settings

log = logging.getLogger(__name__)

Answer = dict[str, Any]


def main() -> None:
    answers = _take_standard_output()
    set_up_logging(settings(), "farm measure")
    for answer in measure(json.loads(sys.argv[1])):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _take_standard_output() -> TextIO:
    """Standard output for the answers alone: what anything else prints there from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def measure(request: Answer) -> Iterator[Answer]:
    """Opens the device and measures, and yields the answers as they become known."""
    from workers.devices import discover, open_device  # imports libraries, which may print

    configuration = Configuration.parse(request["configuration"])
    rules = MeasuringRules.model_validate(request["rules"])
    try:
        found = discover(request["device"])
        device = open_device(found[0])
        device.open()
    except (BadInput, ServiceUnavailable, NotFound) as error:
        yield {"refused": {"exit_code": error.exit_code, "message": str(error)}}
        return
    except Exception as error:
        yield _failure(error)
        return
    here = {name: getattr(device.identity, name) for name in ("uuid", "type", "name")}
    yield {"opened": here, "of": len(found)}
    try:
        row = device.measure(configuration, rules)
    except Exception as error:
        yield _failure(error)
        return
    yield {"device": here, "measurement": _columns(configuration, row)}


def _failure(error: Exception) -> Answer:
    """In the classes of a job's errors. What is not an error of the farm is a defect, and its traceback is logged."""
    kind = (
        "invalid" if isinstance(error, InvalidOnDevice) else "killed" if isinstance(error, DevicePoisoned) else "failed"
    )
    message = str(error)
    if not isinstance(error, FarmError):
        log.error("the device raised", exc_info=error)
        message = f"{type(error).__name__}: {error}"
    return {"failure": {"kind": kind, "message": message}}


def _columns(configuration: Configuration, row: Measurement) -> Answer:
    """Every field of a measurement, and what is derived where rows are read: TFLOP/s, and mJ for each GEMM."""
    return {
        **asdict(row),
        "tflops": configuration.problem.flops / row.runtime_ms / 1e9,
        "energy_mj": None if row.power_w is None else row.power_w * row.runtime_ms,
    }


if __name__ == "__main__":
    main()

"""`python -m workers.arm`: measures configurations on one device, one after the other. `workers.check` starts it.

The first line of standard input is a JSON object: `device`, a selection as in FARM_DEVICES, whose first device is used; `rules`, the measuring
rules; `definitions`, those of own kernels. The process answers on standard output with JSON objects, one a line. First,
when the device is open:

    {"opened": {"uuid": …, "type": …, "name": …}, "of": how many devices the selection names}

or why it is not, and then it ends:

    {"refused": {"exit_code": …, "message": …}}
    {"failure": {"kind": …, "message": …}}

Each further line of standard input is a configuration in its canonical form. The answer is one of these; after the last one, the
process ends, because the device's context is unusable:

    {"row": {"ms": …, "power_limited": …, "digest": …, "seed": …, "libraries": {…}}}
    {"failure": {"kind": …, "message": …}}
    {"failure": {"kind": …, "message": …}, "ends": true}

It does not lock the device, because another process may measure on it in turn. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from farm.errors import BadInput, DevicePoisoned, NotFound, ServiceUnavailable
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.kernels.families import FAMILIES
from farm.logs import set_up_logging
from farm.measurement import Measurement, MeasuringRules
from farm.services.process_groups import end_with_parent
from farm.settings import settings
from workers.single import failure_of, take_standard_output

if TYPE_CHECKING:
    from workers.devices import Device

Answer = dict[str, Any]


def main() -> None:
    end_with_parent(signal.SIGKILL)
    answers = take_standard_output()
    set_up_logging(settings(), "farm check")
    for answer in answers_to(json.loads(sys.stdin.readline()), sys.stdin):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def answers_to(request: Answer, lines: Iterator[str]) -> Iterator[Answer]:
    """Opens the device and measures what the lines name, and yields an answer to each."""
    from workers.devices import discover, open_device  # imports libraries, which may print

    definitions = [Definition.from_json(one) for one in request["definitions"]]  # known as long as they are held
    rules = MeasuringRules.model_validate(request["rules"])
    try:
        found = discover(request["device"])
        device = open_device(found[0])
        device.open()
    except (BadInput, ServiceUnavailable, NotFound) as error:
        yield {"refused": {"exit_code": error.exit_code, "message": str(error)}}
        return
    except Exception as error:
        yield failure_of(error)
        return
    yield {"opened": {name: getattr(device.identity, name) for name in ("uuid", "type", "name")}, "of": len(found)}
    for line in lines:
        answer = measured(device, Configuration.parse(line), rules)
        yield answer
        if answer.get("ends"):
            break
    definitions.clear()


def measured(device: Device, configuration: Configuration, rules: MeasuringRules) -> Answer:
    """The answer to one configuration."""
    try:
        row = device.measure(configuration, rules)
    except DevicePoisoned as error:
        return {**failure_of(error), "ends": True}
    except Exception as error:
        return failure_of(error)
    return {
        "row": {
            "ms": row.runtime_ms,
            "power_limited": row.power_limited,
            "digest": row.result_digest,
            "seed": row.seed,
            "libraries": _libraries(row),
        }
    }


def _libraries(row: Measurement) -> dict[str, Any]:
    """Versions of what the row was measured with, the library of its kernel family among them."""
    of_family = {name: value for name, value in row.details.items() if name in FAMILIES}
    return {**row.environment, **of_family}


if __name__ == "__main__":
    main()

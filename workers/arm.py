"""`python -m workers.arm`: measures configurations on one device, one after the other. `workers.check` starts it.

The first line of standard input is a JSON object: `device`, a selection as in FARM_DEVICES, whose first device is used; `rules`, the measuring
rules; `definitions`, those of own kernels. The process answers as `workers.answers` describes. It ends if the device cannot be
opened. Each further line of standard input is a configuration in its canonical form. The answer is one of these; after the last one, the
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

from farm.errors import DevicePoisoned
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.kernels.families import FAMILIES
from farm.measurement import Measurement, MeasuringRules
from farm.services.process_groups import end_with_parent
from workers.answers import Answer, DeviceUnusable, failure_of, find, open_first, print_answers

if TYPE_CHECKING:
    from workers.devices import Device


def main() -> None:
    end_with_parent(signal.SIGKILL)
    print_answers("farm check", lambda: answers_to(json.loads(sys.stdin.readline()), sys.stdin))


def answers_to(request: Answer, lines: Iterator[str]) -> Iterator[Answer]:
    """Opens the device and measures what the lines name, and yields an answer to each."""
    definitions = [Definition.from_json(one) for one in request["definitions"]]  # known as long as they are held
    rules = MeasuringRules.model_validate(request["rules"])
    try:
        device, opened = open_first(find(request["device"]))
    except DeviceUnusable as error:
        yield error.answer
        return
    yield opened
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

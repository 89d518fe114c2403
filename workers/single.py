"""`python -m workers.single REQUEST`: measures one configuration, in a process of its own. `farm measure` starts it.

REQUEST is a JSON object: `configuration`, a canonical line; `device`, a selection as in FARM_DEVICES, whose first device is
used; `rules`, the measuring rules; `explain`, whether to return the raw data of the measurement too; `soak_s`, how long to
keep the device under load afterwards (0: not); `definitions`, those of own kernels (`farm.kernels.definition`). The process answers on standard output with JSON objects, one a line. First,
when the device is open and the configuration's own time begins:

    {"opened": {"uuid": …, "type": …, "name": …}, "of": how many devices the selection names}

Then, about twice a second during a soak, what it has seen (`workers.measure.soak.Soak`):

    {"soaking": {…}}

Then, as the last line, the result:

    {"device": {"uuid": …, "type": …, "name": …}, "measurement": {…}, "explanation": {…} if it was requested,
     "soak": {…} if it was requested, and with it "failure" where digests differ or it could not go on}
    {"failure": {"kind": "invalid", "failed", "killed", "corrupted" or "refused", "message": …}}

or, instead of both, why there is no such device to open, or that another program of this host measures on it:

    {"refused": {"exit_code": …, "message": …}}

The device is locked (`workers.device_lock`) from before it is opened until the process ends. A recording is not: it answers
from a file that several processes may read.

It has no time limit of its own and may die at any point. The program that starts it handles both.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from farm.errors import BadInput, FarmError, NotFound, ResultsCorrupted, ServiceUnavailable
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.logs import set_up_logging
from farm.measurement import Measurement, MeasuringRules, energy_mj
from farm.settings import settings
from workers.device_lock import DeviceLock, lock_folder
from workers.failure_kinds import kind_of

if TYPE_CHECKING:
    from workers.devices import Device
    from workers.measure.explain import Explanation

log = logging.getLogger(__name__)

Answer = dict[str, Any]


def main() -> None:
    answers = take_standard_output()
    set_up_logging(settings(), "farm measure")
    for answer in measure(json.loads(sys.argv[1])):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def take_standard_output() -> TextIO:
    """Standard output for the answers alone: what anything else prints there from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def measure(request: Answer) -> Iterator[Answer]:
    """Locks and opens the device and measures, and yields the answers as they become known."""
    definitions = [Definition.from_json(one) for one in request.get("definitions", ())]
    with ExitStack() as held:
        held.callback(definitions.clear)  # known until then
        yield from _measure(request, held)


def _measure(request: Answer, held: ExitStack) -> Iterator[Answer]:
    """As `measure`; `held` releases the device's lock."""
    from workers.devices import discover, open_device  # imports libraries, which may print
    from workers.measure.explain import Explanation

    configuration = Configuration.parse(request["configuration"])
    rules = MeasuringRules.model_validate(request["rules"])
    try:
        found = discover(request["device"])
        if found[0].backend.runs_kernels:
            held.callback(DeviceLock.take(found[0].uuid, lock_folder()).release)
        device = open_device(found[0])
        device.open()
    except (BadInput, ServiceUnavailable, NotFound) as error:
        yield {"refused": {"exit_code": error.exit_code, "message": str(error)}}
        return
    except Exception as error:
        yield failure_of(error)
        return
    here = {name: getattr(device.identity, name) for name in ("uuid", "type", "name")}
    yield {"opened": here, "of": len(found)}
    explanation = Explanation() if request["explain"] else None
    if explanation is not None and rules.power == "fraction":
        explanation.note(_chosen(configuration, rules))
    try:
        row = device.measure(configuration, rules, explanation)
    except Exception as error:
        yield failure_of(error)
        return
    answer: Answer = {"device": here, "measurement": _columns(configuration, row)}
    if explanation is not None:
        answer["explanation"] = _explained(explanation)
    if request.get("soak_s"):
        yield from _soak(device, configuration, rules, request["soak_s"], answer)
    yield answer


def _soak(
    device: Device, configuration: Configuration, rules: MeasuringRules, seconds: float, answer: Answer
) -> Iterator[Answer]:
    """Yields how far a soak is, and adds what it has seen to the answer."""
    try:
        for seen in device.soak(configuration, rules, seconds):
            answer["soak"] = seen.to_json()
            yield {"soaking": answer["soak"]}
    except Exception as error:
        answer |= failure_of(error)
        return
    if seen.differences:
        corrupted = ResultsCorrupted(
            differences=seen.differences, digests=seen.digests, seconds=seen.seconds, difference=seen.difference
        )
        answer |= failure_of(corrupted)


def _chosen(configuration: Configuration, rules: MeasuringRules) -> str:
    """Whether a configuration is of the fraction whose power is measured."""
    share = f"the {100 * rules.power_fraction:.3g}% of all configurations that the rules choose"
    if rules.wants_power(configuration.id):
        return f"power: wanted, as this one is among {share}"
    return f"power: not wanted, as this one is not among {share}"


def _explained(explanation: Explanation) -> Answer:
    """The explanation, with what its numbers mean: reasons by their names, and how much of a power window is left out."""
    from farm.vendors.nvidia import event_names
    from workers.measure.power.series import DROPPED_SECONDS

    answer = explanation.to_json()
    for look in answer["telemetry"]:
        events = look["clock_events"]
        look["throttle_reasons"] = None if events is None else event_names(events)
    return {**answer, "power_dropped_s": DROPPED_SECONDS}


def failure_of(error: Exception) -> Answer:
    """In the classes of a job's errors. What is not an error of the farm is a defect, and its traceback is logged."""
    message = str(error)
    if not isinstance(error, FarmError):
        log.error("the device raised", exc_info=error)
        message = f"{type(error).__name__}: {error}"
    return {"failure": {"kind": kind_of(error).value, "message": message}}


def _columns(configuration: Configuration, row: Measurement) -> Answer:
    """Every field of a measurement, and what is derived where rows are read, under the names that it has there."""
    problem, energy = configuration.problem, energy_mj(row.power_w, row.runtime_ms, row.runtime_settled_ms)
    return {
        **asdict(row),
        "tflops": problem.flops / row.runtime_ms / 1e9,
        "intensity": problem.arithmetic_intensity,
        "energy_mj": energy,
        "gflops_per_w": None if energy is None else problem.flops / energy / 1e6,
    }


if __name__ == "__main__":
    main()

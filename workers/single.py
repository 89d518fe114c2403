"""`python -m workers.single REQUEST`: measures one configuration, in a process of its own. `farm measure` starts it.

REQUEST is a JSON object: `configuration`, a canonical line; `device`, a selection as in FARM_DEVICES, whose first device is
used; `rules`, the measuring rules; `explain`, whether to return the raw data of the measurement too; `soak_s`, how long to
keep the device under load afterwards (0: not); `definitions`, those of own kernels (`farm.kernels.definition`).

The process answers as `workers.answers` describes. When the device is open, the configuration's own time begins. Then, about
twice a second during a soak, what it has seen (`workers.measure.soak.Soak`):

    {"soaking": {…}}

Then, as the last line, the result:

    {"device": {"uuid": …, "type": …, "name": …}, "measurement": {…}, "explanation": {…} if it was requested,
     "soak": {…} if it was requested, and with it "failure" where digests differ or it could not go on}
    {"failure": {"kind": …, "message": …}}

The answer is `refused` where there is no such device, or where another program of this host measures on it.

The device is locked (`workers.device_lock`) from before it is opened until the process ends. A recording is not: it answers
from a file that several processes may read.

It has no time limit of its own and may die at any point. The program that starts it handles both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from farm.errors import ResultsCorrupted
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from farm.measurement import Measurement, MeasuringRules, energy_mj
from workers.answers import Answer, DeviceUnusable, failure_of, find, lock, open_first, print_answers

if TYPE_CHECKING:
    from workers.devices import Device
    from workers.measure.explain import Explanation


def main() -> None:
    print_answers("farm measure", lambda: measure(json.loads(sys.argv[1])))


def measure(request: Answer) -> Iterator[Answer]:
    """Locks and opens the device and measures, and yields the answers as they become known."""
    definitions = [Definition.from_json(one) for one in request.get("definitions", ())]
    with ExitStack() as held:
        held.callback(definitions.clear)  # known until then
        yield from _measure(request, held)


def _measure(request: Answer, held: ExitStack) -> Iterator[Answer]:
    """As `measure`; `held` releases the device's lock."""
    from workers.measure.explain import Explanation  # imports libraries, which may print

    configuration = Configuration.parse(request["configuration"])
    rules = MeasuringRules.model_validate(request["rules"])
    try:
        found = find(request["device"])
        lock(found[0], held)
        device, opened = open_first(found)
    except DeviceUnusable as error:
        yield error.answer
        return
    yield opened
    explanation = Explanation() if request["explain"] else None
    if explanation is not None and rules.power == "fraction":
        explanation.note(_chosen(configuration, rules))
    try:
        row = device.measure(configuration, rules, explanation)
    except Exception as error:
        yield failure_of(error)
        return
    answer: Answer = {"device": opened["opened"], "measurement": _columns(configuration, row)}
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

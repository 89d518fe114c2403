"""`python -m workers.check FILE`: measures two versions of kernels in turn on one device. `farm check` starts it.

FILE has a JSON object, which may be longer than an argument of a program:

    device        a selection as in FARM_DEVICES, whose first device is used
    pairs         a list of {"base": canonical line, "head": canonical line}
    rules         the measuring rules
    definitions   those of own kernels (`farm.kernels.definition`)
    environments  {"base": {…}, "head": {…}}: environment variables of each version
    threshold     the change that is to be shown or excluded, as a share
    confidence    of the intervals of one pair (`farm.paired`)
    seconds       the time limit of a pair, after its first measurement of each version

If both environments are equal, one process measures both versions, with the same operands at the same addresses. Otherwise
each version has a process of its own, as two versions of a library cannot be in one. Both processes keep the device open,
and only one of them uses it at a time.

The process answers as `workers.answers` describes, then for each pair any number of times, and at last once:

    {"progress": {"pair": number, "rounds": …, "seconds": …}}
    {"pair": number, "result": {…}}
    {"pair": number, "failure": {"arm": "base" or "head", "kind": …, "message": …}}

The device is locked until the process ends. Each process that measures is ended and started again if it takes longer than
the rules allow, or if its device became unusable, so a pair that fails does not affect the next one.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from farm import python_program
from farm.errors import BadInput
from farm.kernels import Configuration
from farm.paired import Arm, PairedResult, Verdict, compared, log_ratio, order_of
from farm.protocols import PROTOCOLS, ProtocolName
from farm.services.json_lines import JsonLines, NoMessage
from farm.services.measuring_in_turn import START_SECONDS
from farm.services.process_groups import end_with_parent
from farm.settings import environment_for_children
from workers.answers import Answer, DeviceUnusable, find, lock, print_answers, refusal_of

MAX_ROUNDS = 200
"""A recorded device, whose rows do not differ from round to round, may decide nothing in any time."""

REST_SECONDS = PROTOCOLS[ProtocolName.FARM].rest_s
"""A process does not know whether the other one has just run a kernel at the power limit. So the device rests between them."""


def main() -> None:
    end_with_parent(signal.SIGKILL)
    print_answers("farm check", lambda: check(json.loads(Path(sys.argv[1]).read_bytes())))


class ArmProcess:
    """A process of `workers.arm`, which is started when it is needed."""

    def __init__(self, request: Answer, environment: Mapping[str, str]) -> None:
        self._request = {name: request[name] for name in ("device", "rules", "definitions")}
        self._environment = dict(environment)
        self._job_seconds = float(request["rules"]["job_seconds"])
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> Answer:
        """Starts the process, and returns its first message. Raises `DeviceUnusable`."""
        self._process = subprocess.Popen(
            python_program.program("workers.arm"),
            env=environment_for_children(**self._environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._messages = JsonLines(self._process)
        self._send(json.dumps(self._request))
        answer = self._next(START_SECONDS, f"its device was not open after {START_SECONDS:g} s")
        if "opened" not in answer:
            self.close()
            raise DeviceUnusable(answer)
        return answer

    def measure(self, configuration: Configuration) -> Answer:
        """The answer to a configuration, see `workers.arm`. Raises `DeviceUnusable`."""
        if self._process is None:
            self.open()
        self._send(str(configuration))
        answer = self._next(self._job_seconds, f"it took longer than {self._job_seconds:g} s")
        if answer.pop("ends", False):
            self.close()
        return answer

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the next message shows
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def _next(self, seconds: float, late: str) -> Answer:
        """The next message, or a failure where the process has ended or is late. Then it is closed."""
        try:
            return self._messages.next(seconds, late)
        except NoMessage as error:
            self.close()
            return error.answer

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with (
                suppress(BrokenPipeError),
                process,
            ):  # collects it and closes its files, also with a line that it never read
                pass


class Alternation:
    """The arms, and which of their processes used the device last."""

    def __init__(self, request: Answer, sleep: Callable[[float], None] = time.sleep) -> None:
        environments = {arm: request["environments"][arm] for arm in Arm}
        base = ArmProcess(request, environments[Arm.BASE])
        alike = environments[Arm.BASE] == environments[Arm.HEAD]
        self._processes = {Arm.BASE: base, Arm.HEAD: base if alike else ArmProcess(request, environments[Arm.HEAD])}
        self._last: ArmProcess | None = None
        self._sleep = sleep

    def open(self, uuid: str) -> Answer:
        """Opens the device in each process. Returns the message of the first. Raises `DeviceUnusable`."""
        opened = [process.open() for process in dict.fromkeys(self._processes.values())]
        for answer in opened:
            if answer["opened"]["uuid"] != uuid:
                both = BadInput(detail=f"the environment of one version selects {answer['opened']['uuid']}, not {uuid}")
                raise DeviceUnusable(refusal_of(both))
        return opened[0]

    def measure(self, arm: Arm, configuration: Configuration) -> Answer:
        """Measures in the process of the arm, after a rest if the other process used the device last."""
        process = self._processes[arm]
        if self._last not in (None, process):
            self._sleep(REST_SECONDS)
        self._last = process
        return process.measure(configuration)

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.close()


def check(request: Answer) -> Iterator[Answer]:
    """Locks the device and measures all pairs, and yields the answers as they become known."""
    with ExitStack() as held:
        try:
            found = find(request["device"])
            lock(found[0], held)
            arms = Alternation(request)
            held.callback(arms.close)
            yield arms.open(found[0].uuid)
            for number, pair in enumerate(request["pairs"]):
                configurations = {arm: Configuration.parse(pair[arm]) for arm in Arm}
                for answer in measured_in_turn(arms.measure, configurations, request):
                    yield {"progress": {"pair": number, **answer}} if "rounds" in answer else {"pair": number, **answer}
        except DeviceUnusable as error:
            yield error.answer


def measured_in_turn(
    measure: Callable[[Arm, Configuration], Answer],
    configurations: Mapping[Arm, Configuration],
    request: Answer,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Answer]:
    """Measures a pair until a change is shown or excluded. Yields the progress after each round, and at last the result.

    The first measurement of each version compiles and loads its kernel and wakes the device, and is left out.
    """
    rows: dict[Arm, list[Answer]] = {arm: [] for arm in Arm}

    def row_of(arm: Arm) -> Answer:
        answer = measure(arm, configurations[arm])
        if "failure" in answer:
            raise _Failed({"arm": arm, **answer["failure"]})
        row: Answer = answer["row"]
        return row

    try:
        for arm in Arm:
            row_of(arm)
        began, log_ratios = clock(), list[float]()
        result = PairedResult(1.0, (0.0, math.inf), 0, Verdict.UNDECIDED)
        while (
            result.verdict is Verdict.UNDECIDED
            and len(log_ratios) < MAX_ROUNDS
            and clock() - began < request["seconds"]
        ):
            taken: dict[Arm, list[Answer]] = {arm: [] for arm in Arm}
            for arm in order_of(len(log_ratios)):
                taken[arm].append(row_of(arm))
            log_ratios.append(log_ratio(*([row["ms"] for row in taken[arm]] for arm in Arm)))
            for arm in Arm:
                rows[arm] += taken[arm]
            result = compared(log_ratios, threshold=request["threshold"], confidence=request["confidence"])
            yield {"rounds": result.rounds, "seconds": clock() - began}
    except _Failed as failed:
        yield {"failure": failed.failure}
        return
    yield {"result": _document(result, rows, clock() - began)}


class _Failed(Exception):
    def __init__(self, failure: Answer) -> None:
        super().__init__(failure)
        self.failure = failure


def _document(result: PairedResult, rows: Mapping[Arm, Sequence[Answer]], seconds: float) -> Answer:
    """The result of a pair. Times are geometric means, so that their ratio is that of the result."""
    of_arms = {
        arm: {
            "ms": statistics.geometric_mean(row["ms"] for row in rows[arm]),
            "times_ms": [row["ms"] for row in rows[arm]],
            "power_limited": _power_limited(rows[arm]),
            "digests": sorted({row["digest"] for row in rows[arm] if row["digest"] is not None}),
            "libraries": rows[arm][-1]["libraries"],
        }
        for arm in Arm
    }
    return {
        "verdict": result.verdict,
        "ratio": result.ratio,
        "interval": list(result.interval) if math.isfinite(result.interval[1]) else None,
        "rounds": result.rounds,
        "seconds": seconds,
        "same_bits": _same_bits([row for arm in Arm for row in rows[arm]]),
        **{str(arm): found for arm, found in of_arms.items()},
    }


def _power_limited(rows: Sequence[Answer]) -> bool | None:
    """Whether the limiter slowed most of the measurements down; None where the device cannot tell."""
    known = [row["power_limited"] for row in rows if row["power_limited"] is not None]
    return sum(known) > len(known) / 2 if known else None


def _same_bits(rows: Sequence[Answer]) -> bool | None:
    """Whether all results have the same bits; None where operands differ, or there is no digest."""
    if len({row["seed"] for row in rows}) > 1 or any(row["digest"] is None for row in rows):
        return None
    return len({row["digest"] for row in rows}) == 1


if __name__ == "__main__":
    main()

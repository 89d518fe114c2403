"""`farm measure`: measure one configuration on one device of this host, without services.

The device is opened in a separate process (`workers.single`), which may crash or hang. This process reports how it ended.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import typer
from annotated_types import Le
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from farm import python_program
from farm.cli import measurement_view
from farm.cli.measurement_spans import traced
from farm.cli.measuring_options import DeviceOption, ProtocolOption, RulesOption, SourceOption, defined, rules_of
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.streams import ascii_text
from farm.cli.tables import Column, Table
from farm.errors import BadInput, NotMeasured, SoakFailed
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import DISTRIBUTIONS
from farm.services.json_lines import JsonLines, NoMessage, refusal
from farm.services.measuring_in_turn import GRACE_SECONDS, START_SECONDS
from farm.services.processes import end_guarded, start_guarded
from farm.settings import environment_for_children, settings
from farm.time_parsing import duration

_MAX_JOB_SECONDS = next(
    bound.le for bound in MeasuringRules.model_fields["job_seconds"].metadata if isinstance(bound, Le)
)

_DISTRIBUTION = f"Distribution of the operands' values: {', '.join(DISTRIBUTIONS)}, normal*0.02, or a=normal b=file:weights.npy c=zeros."

Answer = dict[str, Any]


def measure(
    configuration: Annotated[
        str, typer.Argument(help='A configuration, as in "tiled(tile=16) 512x512x512 f32".', show_default=False)
    ],
    source: SourceOption = None,
    device: DeviceOption = None,
    rules: RulesOption = None,
    protocol: ProtocolOption = None,
    power: Annotated[
        Literal["none", "all"] | None,
        typer.Option("--power", help="all: measure power where the device can.", show_default=False),
    ] = None,
    warm_l2: Annotated[
        bool | None,
        typer.Option(
            "--warm-l2/--no-warm-l2", help="Measure the time with operands in the cache as well.", show_default=False
        ),
    ] = None,
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution",
            help=_DISTRIBUTION,
            show_default="uniform, or that of --rules",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the operands.", show_default="0, or that of --rules")
    ] = None,
    job_seconds: Annotated[
        float | None,
        typer.Option(
            "--job-seconds", help="Time limit of the job, in seconds.", show_default="120, or that of --rules"
        ),
    ] = None,
    soak: Annotated[
        str | None,
        typer.Option(
            "--soak",
            help="Keep the device under load for so long after the measurement, as in 60s or 10min, and compare the bits of results"
            " ten times a second. At most the time limit of the job.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the samples, and why the measurement stopped.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure one configuration on one device of this host. Needs no services and stores nothing.

    No other program should use the device meanwhile. A device that a farm-worker serves is refused, so stop the farm-worker
    first. If you name several devices, the first one is used.

    Examples:
        farm measure "tiled(tile=16) 512x512x512 f32"
        farm measure "cublaslt() 4096x4096x4096 f16" --device cuda --power all
        farm measure "cublaslt() 4096x4096x4096 f16" --protocol do-bench
        farm measure "cublaslt() 8192x8192x8192 bf16" --device cuda --soak 60s
        farm measure "cublaslt() 4096x4096x4096 f8e4m3 nt scale=row fused=bias"
        farm measure "cublaslt() 131x1536x2048 bf16 nt groups=16*8,3,0"
        farm measure "source(TILE=64) 512x512x512 f32" --source own-kernel.yaml
    """
    requested, definitions = defined(Configuration.parse(configuration), source)
    under = rules_of(
        rules, protocol=protocol, power=power, job_seconds=job_seconds, warm_l2=warm_l2, distribution=distribution, seed=seed,
    )  # fmt: skip
    soak_s = 0.0 if soak is None else _soak_seconds(soak, under)
    configured = settings().devices  # read in any case: the measuring process reads the settings too
    selection = configured if device is None else device

    def say_which(opened: Answer) -> None:
        here = opened["opened"]
        spans.opened(here)
        if opened["of"] > 1:
            text = f"{selection} names {opened['of']} devices; the first is used: {here['name']}, {here['uuid']}"
            remarks.print(escape(text))

    request = {
        "configuration": requested.canonical,
        "device": selection,
        "rules": under.model_dump(mode="json"),
        "explain": explain,
        "soak_s": soak_s,
        "definitions": [definition.to_json() for definition in definitions],
    }
    command = python_program.program("workers.single", json.dumps(request))
    with traced(requested) as spans, remarks.status("measuring") as status, ExitStack() as shown_progress:
        soaking = _soaking(status, shown_progress, soak_s)
        answer = answer_of(command, job_seconds=under.job_seconds, opened=say_which, soaking=soaking)
        spans.ended(answer)
    if "refused" in answer:
        raise refusal(**answer["refused"])
    if as_json:
        emit_json(answer)
    if "measurement" in answer and not as_json:
        _print(requested, answer)
    if "failure" in answer:
        failed = SoakFailed if "measurement" in answer else NotMeasured
        raise failed(kind=answer["failure"]["kind"], why=answer["failure"]["message"])


def _soak_seconds(text: str, rules: MeasuringRules) -> float:
    """The length of a soak. Raises `BadInput`."""
    seconds = duration(text).total_seconds()
    if seconds <= 0:
        raise BadInput(detail=f"--soak {text} is no time at all. Write it as in 60s or 10min.")
    if seconds > rules.job_seconds:
        raise BadInput(
            detail=f"--soak {text} is longer than the time limit of the job, which is {rules.job_seconds:g} s."
            f" Nothing was measured. Take a shorter soak, or set the limit with --job-seconds, which is at most {_MAX_JOB_SECONDS:g}."
        )
    return seconds


# --- the measuring process ---------------------------------------------------------------------------


def answer_of(
    command: Sequence[str],
    *,
    job_seconds: float,
    opened: Callable[[Answer], None],
    soaking: Callable[[Answer], None] = lambda _: None,
    start_seconds: float = START_SECONDS,
) -> Answer:
    """Runs a measuring process until its last message (see `workers.single`), and ends it.

    `opened` is called with the first message, when the device is open. From then on the process may take `job_seconds`. In a
    soak it may take as long again before each of its messages, with which `soaking` is called. A process that dies or takes
    longer is a failure of the kind `killed`. No process is left running.
    """
    environment = environment_for_children()
    with start_guarded(command, environment=environment, grace_s=GRACE_SECONDS, stdout=subprocess.PIPE) as process:
        messages, late = JsonLines(process), f"it took longer than {job_seconds:g} s"
        try:
            answer = messages.next(start_seconds, f"its device was not open after {start_seconds:g} s")
            if "opened" in answer:
                opened(answer)
                answer = messages.next(job_seconds, late)
            while "soaking" in answer:
                soaking(answer["soaking"])
                answer = messages.next(job_seconds, late)
        except NoMessage as error:
            answer = error.answer
        finally:
            end_guarded(process)
    return answer


# --- what people read --------------------------------------------------------------------------------


_INDENT = "  "

_SOAK = Table("soak", Column("field"), Column("value"), facts=True)

_ROW = Table("measurement", Column("field"), Column("value", folds=True), facts=True)


def _soaking(status: Status, shown_progress: ExitStack, seconds: float) -> Callable[[Answer], None]:
    """A function that shows how far a soak is. It replaces the status when it is first called."""
    done: Callable[[int, str | None], None] | None = None

    def show(seen: Answer) -> None:
        nonlocal done
        if done is None:
            from farm.cli.progress import counting  # it imports the farm's API

            status.stop()
            done = shown_progress.enter_context(counting("under load, seconds", max(1, round(seconds))))
        digests, differences = seen["digests"], seen["differences"]
        done(int(seen["seconds"]), f"{digests:,} digests, {differences:,} differ, seconds")

    return show


def _soak_lines(seen: Answer) -> list[tuple[str, str]]:
    def span(name: str) -> str:
        least, largest = seen[name]
        return f"{least:,}" if least == largest else f"{least:,} to {largest:,}"

    known = {"SM clock MHz": "sm_clock_mhz", "temperature °C": "temperature_c"}
    if console.options.ascii_only:
        known = {ascii_text(title): name for title, name in known.items()}
    return [
        ("soak s", f"{seen['seconds']:.1f}"),
        ("digests", f"{seen['digests']:,}"),
        ("digests that differ", f"{seen['differences']:,}"),
        *((title, span(name)) for title, name in known.items() if seen[name] is not None),
    ]


def _print(requested: Configuration, answer: Answer) -> None:
    """Prints the row as a table, and below it the explanation if there is one."""
    rows = measurement_view.lines(answer["device"], answer["measurement"])
    if console.options.ascii_only:
        rows = [(ascii_text(name) if isinstance(name, str) else name, value) for name, value in rows]
    _ROW.print([("configuration", requested.canonical), *rows])
    console.print()
    if "soak" in answer:
        _SOAK.print(_soak_lines(answer["soak"]))
        console.print()
    if "explanation" not in answer:
        return
    from farm.charts.terminal_renderer import Terminal
    from farm.cli import explain_view  # it loads numpy, for which other commands should not wait

    width = min(console.width, explain_view.MAX_WIDTH) - len(_INDENT)
    terminal = Terminal(width, ascii_only=console.options.ascii_only)
    found = list(explain_view.sections(answer["explanation"], answer["measurement"], terminal))
    if not found:
        remarks.print("There is no explanation: the device reported only the row.")
    for title, lines in found:
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"{_INDENT}{line}".rstrip()), soft_wrap=True)
        console.print()

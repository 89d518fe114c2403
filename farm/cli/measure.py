"""`farm measure`: measure one configuration on one device of this host, without services.

The device is opened in a separate process (`workers.single`), which may crash or hang. This process reports how it ended.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from annotated_types import Le
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from farm import python_program
from farm.campaign import load
from farm.campaign.axes import shown
from farm.campaign.shape_files import FileContext, reading_in
from farm.campaign.suggestions import did_you_mean
from farm.cli import measurement_view
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.streams import ascii_text
from farm.cli.tables import Column, Table
from farm.errors import BadInput, FarmError, NotFound, NotMeasured, ServiceUnavailable, SoakFailed
from farm.formatting import lines_text
from farm.kernels import Configuration, Kernel
from farm.kernels.definition import Definition
from farm.kernels.source import DEFINITION, SOURCE
from farm.measurement import MeasuringRules
from farm.operands import DISTRIBUTIONS, keys_of
from farm.protocols import ProtocolName
from farm.services.json_lines import JsonLines, how_it_ended
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
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            help="Campaign file that names the file of an own kernel, for the family source.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="auto, cpu, cuda, recorded:FILE or a UUID.", show_default="FARM_DEVICES, or auto"
        ),
    ] = None,
    rules: Annotated[
        str,
        typer.Option(
            "--rules",
            help="Rules that differ from the defaults, as a JSON object. Other options take precedence.",
            show_default=False,
        ),
    ] = "{}",
    protocol: Annotated[
        ProtocolName | None,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help=f"Rules by which the time is taken: {', '.join(ProtocolName)}.",
            show_default="farm, or that of --rules",
        ),
    ] = None,
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
        if opened["of"] > 1:
            here = opened["opened"]
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
    with remarks.status("measuring") as status, ExitStack() as shown_progress:
        soaking = _soaking(status, shown_progress, soak_s)
        answer = answer_of(command, job_seconds=under.job_seconds, opened=say_which, soaking=soaking)
    if "refused" in answer:
        raise refusal(**answer["refused"])
    if as_json:
        emit_json(answer)
    if "measurement" in answer and not as_json:
        _print(requested, answer)
    if "failure" in answer:
        failed = SoakFailed if "measurement" in answer else NotMeasured
        raise failed(kind=answer["failure"]["kind"], why=answer["failure"]["message"])


# --- the request ------------------------------------------------------------------------------


def rules_of(
    text: str,
    *,
    protocol: ProtocolName | None = None,
    power: str | None = None,
    job_seconds: float | None = None,
    warm_l2: bool | None = None,
    distribution: str | None = None,
    seed: int | None = None,
) -> MeasuringRules:
    """The rules of a JSON object, with defaults for the others. The other arguments take precedence.

    Raises `BadInput`, which names every mistake.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(detail=f"--rules {shown(text)} is not JSON: {error}. {_EXAMPLE}") from None
    if not isinstance(given, dict):
        raise BadInput(detail=f"--rules {shown(text)} is not a JSON object. {_EXAMPLE}")
    given = _with(given, protocol=protocol, power=power, job_seconds=job_seconds)
    if distribution is not None:
        given["operands"] = _filled(distribution, given.get("operands"))
    for section, chosen in (("timing", {"warm_l2": warm_l2}), ("operands", {"seed": seed})):
        written = given.get(section, {})
        if isinstance(written, dict):  # otherwise the validation below reports it
            given = _with(given, **{section: _with(written, **chosen) or None})
    try:
        rules = MeasuringRules.model_validate(given, context=FileContext(Path("--rules"), 1, reading_in(Path.cwd())))
    except ValidationError as error:
        raise BadInput(detail=lines_text([_finding(detail) for detail in error.errors(include_url=False)])) from None
    least, most = rules.timing.min_samples, rules.timing.max_samples
    if least > most:
        why = f"min_samples is {least} and max_samples {most}; the minimum cannot exceed the maximum"
        raise BadInput(detail=f"measuring rules: timing: {why}")
    return rules


def defined(requested: Configuration, source: Path | None) -> tuple[Configuration, Sequence[Definition]]:
    """The configuration with the number of its definition, and the own kernels of a campaign file. Raises `BadInput`."""
    if source is None:
        return requested, ()
    found = load(source, limit=settings().max_configurations).definitions
    kernel = requested.kernel
    parameters = dict(kernel.parameters)
    if kernel.family != SOURCE.name:
        raise BadInput(detail=f"--source is for the family {SOURCE.name}, and the configuration is of {kernel.family}")
    if not parameters[DEFINITION] and len(found) == 1:
        parameters[DEFINITION] = next(iter(found))
    if parameters[DEFINITION] not in found:
        each = "; ".join(f"{DEFINITION}={number} ({one.file})" for number, one in found.items()) or "none"
        raise BadInput(detail=f"{source} does not have that own kernel. It has: {each}")
    return replace(requested, kernel=Kernel.of(kernel.family, **parameters)), list(found.values())


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


def _filled(distribution: str, written: object) -> dict[str, Any]:
    """The operands of a short text, with the seed that the rules have already."""
    try:
        filled = keys_of(distribution)
    except ValueError as error:
        raise BadInput(detail=f"--distribution: {error}") from None
    return filled | ({"seed": written["seed"]} if isinstance(written, dict) and "seed" in written else {})


def _with(given: dict[str, Any], **chosen: Any) -> dict[str, Any]:
    return {**given, **{name: value for name, value in chosen.items() if value is not None}}


_EXAMPLE = """Write it as in --rules '{"timing":{"target_rse":0.01},"power":"all"}'"""


def _finding(detail: ErrorDetails) -> str:
    path = [str(step) for step in detail["loc"]]
    if detail["type"] == "extra_forbidden":
        why = (
            f"there is no such rule; {did_you_mean(path[-1], _model_at(path[:-1]).model_fields, what='the rules are')}"
        )
    elif detail["type"].startswith("model"):
        why = f"{shown(detail['input'])} is not a JSON object of {', '.join(_model_at(path).model_fields)}"
    elif detail["type"] == "value_error":
        why = str(detail["ctx"]["error"])
    else:
        why = f"{detail['msg'][0].lower()}{detail['msg'][1:]}, not {shown(detail['input'])}"
    return f"measuring rules: {'.'.join(path)}: {why}"


def _model_at(path: Sequence[str]) -> type[BaseModel]:
    """The model of the rules under a path: `timing`, `operands`, or all of them."""
    model: type[BaseModel] = MeasuringRules
    for name in path:
        annotation = model.model_fields[name].annotation
        kinds = (annotation, *get_args(annotation))  # a rule that may be left out is a model or None
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


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
        assert process.stdout is not None
        messages, late = JsonLines(process.stdout), f"its device was not open after {start_seconds:g} s"
        try:
            answer = messages.next(start_seconds)
            if answer is not None and "opened" in answer:
                opened(answer)
                late = f"it took longer than {job_seconds:g} s"
                answer = messages.next(job_seconds)
            while answer is not None and "soaking" in answer:
                soaking(answer["soaking"])
                answer = messages.next(job_seconds)
            return _killed(how_it_ended(process.wait())) if answer is None else answer
        except TimeoutError:
            return _killed(late)
        finally:
            end_guarded(process)


def _killed(why: str) -> Answer:
    return {"failure": {"kind": "killed", "message": why}}


def refusal(exit_code: int, message: str) -> FarmError:
    """The error of a `refused` message of a measuring process."""
    kinds: tuple[type[FarmError], ...] = (BadInput, ServiceUnavailable, NotFound)
    return next(kind for kind in kinds if kind.exit_code == exit_code)(detail=message)


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

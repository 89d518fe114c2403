"""`farm check`: measure two versions of a kernel or library in turn, until a change is shown or excluded.

A process of `workers.check` measures. This one reads what is compared, and shows what is known of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli.check_view import Compared, Run
from farm.cli.measuring_options import DeviceOption, ProtocolOption, RulesOption, SourceOption, defined, rules_of
from farm.cli.output import JsonOption, emit_json
from farm.errors import BadInput, FarmError, NotMeasured
from farm.kernel_versions import Pair, campaign_with, pairs_of
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.paired import CONFIDENCE, THRESHOLD, Arm
from farm.services.json_lines import refusal
from farm.services.measuring_in_turn import measured_in_turn
from farm.settings import settings
from farm.time_parsing import duration

Answer = dict[str, Any]

PRESENT_FILES = "the present files"


def check(
    base: Annotated[
        str | None,
        typer.Argument(
            help="A configuration; with --campaign a git revision, or the file of an own kernel.", show_default=False
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Argument(
            help="What is compared with it.",
            show_default="BASE, or with --campaign the present files",
        ),
    ] = None,
    campaign: Annotated[
        Path | None,
        typer.Option(
            "--campaign",
            help="Campaign file: check its own kernels, or with --base-env and --head-env all its configurations.",
            show_default=False,
        ),
    ] = None,
    source: SourceOption = None,
    base_env: Annotated[
        list[str] | None,
        typer.Option(
            "--base-env",
            metavar="NAME=VALUE",
            help="Environment variable of the process that measures BASE. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    head_env: Annotated[
        list[str] | None,
        typer.Option(
            "--head-env",
            metavar="NAME=VALUE",
            help="Environment variable of the process that measures HEAD. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="PCT", min=0.1, max=50, help="The change to show or exclude, in %.")
    ] = 100 * THRESHOLD,
    budget: Annotated[
        str, typer.Option("--budget", help="Time limit for each problem, as in 30s or 5min. Then it is undecided.")
    ] = "60s",
    device: DeviceOption = None,
    rules: RulesOption = None,
    protocol: ProtocolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure two versions of a kernel or library in turn on one device of this host, until a change is shown or excluded. Exits with code 7 if the head is slower.

    Needs no services and stores nothing. Give two configurations of one problem; or a campaign with own kernels and one or two
    git revisions or files; or environment variables that select two versions of a library. A campaign has its own measuring rules.

    Examples:
        farm check "tiled(tile=16) 512x512x512 f32" "tiled(tile=32) 512x512x512 f32"
        farm check main HEAD --campaign own-kernel.yaml
        farm check main --campaign own-kernel.yaml --threshold 1 --json
        farm check old.cu new.cu --campaign own-kernel.yaml
        farm check --campaign sweep.yaml --head-env LD_PRELOAD=/opt/libcublasLt.so
    """
    environments = {Arm.BASE: _variables("--base-env", base_env), Arm.HEAD: _variables("--head-env", head_env)}
    asked = _Asked(base, head, campaign, source, environments)
    compared = _of_campaign(asked) if campaign is not None else _of_configurations(asked)
    if campaign is not None and (rules is not None or protocol is not None):
        raise BadInput(detail=f"{campaign} has measuring rules of its own. Leave out --rules and --protocol.")
    under = _lean(compared.rules or rules_of(rules, protocol=protocol))
    seconds = duration(budget).total_seconds()
    if seconds <= 0:
        raise BadInput(detail=f"--budget {budget} is no time at all. Write it as in 30s or 5min.")
    request = {
        "device": settings().devices if device is None else device,
        "pairs": [{Arm.BASE: pair.base.canonical, Arm.HEAD: pair.head.canonical} for pair in compared.pairs],
        "rules": under.model_dump(mode="json"),
        "definitions": [definition.to_json() for definition in compared.definitions],
        "environments": environments,
        "threshold": threshold / 100,
        # All intervals of a run hold together with this probability.
        "confidence": 1 - (1 - CONFIDENCE) / max(1, len(compared.pairs)),
        "seconds": seconds,
    }
    run = Run(compared, threshold)
    try:
        if compared.pairs:
            _measure(run, request)
    except FarmError:
        if run.answers:
            _show(run, as_json=as_json)
        raise
    _show(run, as_json=as_json)
    run.end()


def _show(run: Run, *, as_json: bool) -> None:
    if as_json:
        emit_json(run.document())
    else:
        run.print()


# --- what is compared ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments that say what is compared."""

    base: str | None
    head: str | None
    campaign: Path | None
    source: Path | None
    environments: Mapping[Arm, Mapping[str, str]]

    @property
    def same_environment(self) -> bool:
        return self.environments[Arm.BASE] == self.environments[Arm.HEAD]


_HOW = (
    "Give two configurations of one problem, or --campaign with a git revision or the file of an own kernel,"
    " or --base-env and --head-env with a configuration or a campaign."
)


def _of_configurations(asked: _Asked) -> Compared:
    if asked.base is None:
        raise BadInput(detail=f"There is nothing to compare. {_HOW}")
    if asked.head is None and asked.same_environment:
        raise BadInput(detail=f"There is nothing to compare {asked.base} with. {_HOW}")
    both = [defined(Configuration.parse(text), asked.source) for text in (asked.base, asked.head or asked.base)]
    (base, _), (head, definitions) = both
    if base.problem != head.problem:
        raise BadInput(detail=f"{base} and {head} are different problems, so their times cannot be compared")
    names = {Arm.BASE: str(base.kernel), Arm.HEAD: str(head.kernel)}
    return Compared([Pair(base, head)], _named(names, asked), definitions, two_environments=not asked.same_environment)


def _of_campaign(asked: _Asked) -> Compared:
    path, limit = asked.campaign, settings().max_configurations
    assert path is not None
    if asked.source is not None:
        raise BadInput(detail="--source is for a configuration. A campaign names its own kernels itself.")
    if asked.base is None and asked.same_environment:
        raise BadInput(detail=f"There is nothing to compare {path} with. {_HOW}")
    base = campaign_with(path, asked.base, limit=limit)
    # Without BASE, all kernels are the same, and the environments differ.
    head = base if asked.base is None else campaign_with(path, asked.head, limit=limit)
    names = {Arm.BASE: asked.base or "", Arm.HEAD: asked.head or (PRESENT_FILES if asked.base is not None else "")}
    definitions = {**base.definitions, **head.definitions}
    pairs = pairs_of(base, head)
    return Compared(pairs, _named(names, asked), [*definitions.values()], head.measure, not asked.same_environment)


def _named(names: Mapping[Arm, str], asked: _Asked) -> dict[Arm, str]:
    """Both names, with the environment variables of each."""
    set_to = {arm: " ".join(f"{name}={value}" for name, value in asked.environments[arm].items()) for arm in Arm}
    return {arm: " ".join(filter(None, (names[arm], set_to[arm]))) or "the present environment" for arm in Arm}


def _variables(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Environment variables by name. Raises `BadInput`."""
    found = dict[str, str]()
    for text in given or ():
        name, mark, value = text.partition("=")
        if not (name and mark) or "\0" in text:
            raise BadInput(detail=f"{option} {text!r} is not NAME=VALUE, as in LD_LIBRARY_PATH=/opt/cuda/lib64")
        if name in found:
            raise BadInput(detail=f"{option} has {name} twice")
        found[name] = value
    return found


def _lean(rules: MeasuringRules) -> MeasuringRules:
    """The rules without what takes time and does not change the time of a GEMM."""
    timing = rules.timing.model_copy(update={"warm_l2": False})
    return rules.model_copy(update={"timing": timing, "power": "none", "determinism": False})


# --- measuring ----------------------------------------------------------------------------------


def _measure(run: Run, request: Answer) -> None:
    """Measures until all is known, or Ctrl-C. No process is left running.

    Raises:
        FarmError: The device cannot be used, or not any more. The run has what was measured before.
    """
    from farm.cli.progress import counting  # it imports the farm's API

    total = len(run.compared.pairs)
    try:
        with counting("measuring in turn", total) as done:
            for answer in measured_in_turn(request):
                if "refused" in answer:
                    raise refusal(**answer["refused"])
                if "opened" in answer:
                    run.opened(answer, request["device"])
                elif "progress" in answer:
                    now = answer["progress"]
                    name = run.name_of(run.compared.pairs[now["pair"]])
                    done(len(run.answers), f"{name}, round {now['rounds']}")
                elif "pair" in answer:
                    run.answers[answer["pair"]] = answer
                    done(len(run.answers), None)
                else:
                    raise NotMeasured(kind=answer["failure"]["kind"], why=answer["failure"]["message"])
    except KeyboardInterrupt:
        run.interrupted = True

"""Options of commands that measure on this host without services, and what they name: own kernels and measuring rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from farm.campaign import load
from farm.campaign.axes import shown
from farm.campaign.shape_files import FileContext, reading_in
from farm.campaign.suggestions import did_you_mean
from farm.errors import BadInput
from farm.formatting import lines_text
from farm.kernels import Configuration, Kernel
from farm.kernels.definition import Definition
from farm.kernels.source import DEFINITION, SOURCE
from farm.measurement import MeasuringRules
from farm.operands import keys_of
from farm.protocols import ProtocolName
from farm.settings import settings

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu, cuda, recorded:FILE or a UUID.", show_default="FARM_DEVICES, or auto"),
]
SourceOption = Annotated[
    Path | None,
    typer.Option(
        "--source",
        help="Campaign file that names the file of an own kernel, for the family source.",
        show_default=False,
    ),
]
RulesOption = Annotated[
    str | None,
    typer.Option(
        "--rules",
        help="Rules that differ from the defaults, as a JSON object. Other options take precedence.",
        show_default=False,
    ),
]
ProtocolOption = Annotated[
    ProtocolName | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help=f"Rules by which the time is taken: {', '.join(ProtocolName)}.",
        show_default="farm, or that of --rules",
    ),
]


def rules_of(
    text: str | None,
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
        given = json.loads(text or "{}")
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

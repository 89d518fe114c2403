"""Options that say what to measure without a campaign file: the GEMMs of a program, or of a language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from farm.campaign import texts_named
from farm.campaign.language_model_blocks import LayerChoice
from farm.campaign.reading import text_of
from farm.campaign.trace_texts import notes_of
from farm.campaign.workloads import (
    DEFAULT_FAMILIES,
    DEFAULT_TOKENS,
    CampaignText,
    ModelStep,
    architecture_of,
    campaign_file,
    configuration_file,
    model_campaign,
    trace_campaign,
)
from farm.cli.output import remarks
from farm.errors import BadInput

FileOrWorkload = Annotated[
    Path | None,
    typer.Argument(
        help="A campaign file (YAML), or the name of one that comes with GEMM Farm, such as quickstart; none with --trace or --model.",
        show_default=False,
    ),
]


def trace_help(what: str) -> str:
    """The help of `--trace`: `what` is done with the GEMMs, and what it takes the place of."""
    return f"{what}: what TunableOp, cuBLASLt, Inductor or PyTorch's profiler recorded."


TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", help=trace_help("Measure the GEMMs of a program instead of a campaign file"), show_default=False
    ),
]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--family",
        "-f",
        help="With --trace or --model: a kernel family to measure, all its parameters at their defaults. Repeat it. The default is "
        "cublaslt.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Measure the GEMMs of a language model instead of a campaign file: a built-in one (farm shapes --list), or a file "
        "config.json.",
        show_default=False,
    ),
]
TpOption = Annotated[
    int, typer.Option("--tp", help="Tensor parallelism: GPUs that share each layer of the language model.")
]
EpOption = Annotated[
    int, typer.Option("--ep", help="Expert parallelism: groups of GPUs with different experts of the language model.")
]
TokensOption = Annotated[
    str,
    typer.Option("--tokens", help="Tokens of a step of the language model: numbers or ranges, separated by commas."),
]
SequencesOption = Annotated[
    int,
    typer.Option(
        "--sequences",
        help="Sequences that the tokens are of: the rows of the output head. The default is a step that decodes one token of each.",
        show_default=False,
    ),
]
TrainingOption = Annotated[
    bool, typer.Option("--training", help="With the GEMMs of the language model's gradients.", show_default=False)
]
LoraRankOption = Annotated[
    int, typer.Option("--lora-rank", help="Rank of low-rank adapters of the language model.", show_default=False)
]
LayersOption = Annotated[
    LayerChoice,
    typer.Option("--layers", help="Which GEMMs of the language model: all, or those of experts, or the others."),
]


def takes_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of what to measure: its parameter `workload` becomes a campaign file, a trace or a model."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())
    asked = get_type_hints(_workload, include_extras=True)
    options = [
        one.replace(annotation=asked[one.name], kind=one.KEYWORD_ONLY)
        for one in inspect.signature(_workload).parameters.values()
    ]

    @wraps(command)
    def run(first: Any, **given: Any) -> None:
        workload = _workload(**{one.name: given.pop(one.name) for one in options})
        command(first, workload=workload, **given)

    first, *others = (one.replace(annotation=hints.get(one.name, Any)) for one in own)
    parameters = [first, *options, *(one for one in others if one.name != "workload")]
    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _workload(
    file: FileOrWorkload = None,
    trace: TraceOption = None,
    model: ModelOption = None,
    tp: TpOption = 1,
    ep: EpOption = 1,
    tokens: TokensOption = DEFAULT_TOKENS,
    sequences: SequencesOption = 0,
    training: TrainingOption = False,
    lora_rank: LoraRankOption = 0,
    layers: LayersOption = LayerChoice.ALL,
    family: FamilyOption = None,
) -> CampaignText:
    step = ModelStep(model or "", tp, ep, tokens, sequences, training, lora_rank, layers)
    if model is None and (named := step.changed(ModelStep(""))):
        raise BadInput(detail=f"{named} without --model: name the language model too.")
    return campaign_text(file, trace=trace, step=None if model is None else step, families=family)


def campaign_text(
    file: Path | None, *, trace: Path | None = None, step: ModelStep | None = None, families: Sequence[str] | None
) -> CampaignText:
    """The campaign of a file, of a trace, or of a language model. Prints what people should know of traces and models.

    Raises `BadInput` unless exactly one of them is given.
    """
    if [file, trace, step].count(None) != 2:
        raise BadInput(
            detail="Name a campaign file, or a trace with --trace FILE, or a language model with --model NAME, and one of them only."
        )
    if file is not None and families:
        raise BadInput(detail="--family goes with --trace and --model; a campaign file names its families.")
    if file is not None:
        file = campaign_file(file)
        text = text_of(file)
        made = CampaignText(text, str(file), texts_named(text, file))
    elif step is not None:
        made = _of_model(step, families or DEFAULT_FAMILIES)
    else:
        made = trace_campaign(Path(str(trace)), families or DEFAULT_FAMILIES)
    for note in notes_of(made.files):
        remarks.print(note, markup=False)
    return made


def _of_model(step: ModelStep, families: Sequence[str]) -> CampaignText:
    name = str(configuration_file(step.model) or step.model)
    for note in architecture_of(name).notes:
        remarks.print(f"{name}: {note}.", markup=False)
    return model_campaign(step, families)

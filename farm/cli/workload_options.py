"""Options that say what to measure without a campaign file: the GEMMs of a program, or of a language model."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from farm.campaign import Campaign, loads, texts_named
from farm.campaign.language_model_blocks import LanguageModelBlock, LayerChoice
from farm.campaign.reading import text_of
from farm.campaign.trace_texts import GEMMS_SUFFIX, notes_of, trace_text
from farm.cli.output import remarks
from farm.errors import BadInput, CampaignFileError
from farm.language_models import steps
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in
from farm.language_models.configuration import is_file, parse_configuration
from farm.shipped import folder

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

_DEFAULT_FAMILY = "cublaslt"
DEFAULT_TOKENS = ",".join(map(str, steps.DEFAULT_TOKENS))


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A language model, and what of it is measured: keys of a block of problems."""

    model: str
    tp: int = 1
    ep: int = 1
    tokens: str = DEFAULT_TOKENS
    sequences: int = 0
    training: bool = False
    lora_rank: int = 0
    layers: LayerChoice = LayerChoice.ALL

    def changed(self, defaults: ModelStep) -> str:
        """The options that differ from the defaults: `--tp and --ep`."""
        names = [one.name for one in fields(self) if getattr(self, one.name) != getattr(defaults, one.name)]
        return " and ".join(f"--{name.replace('_', '-')}" for name in names)

    @property
    def block(self) -> dict[str, Any]:
        """The block of problems, without keys at their defaults."""
        written: dict[str, Any] = {
            "model": self.model, "tp": self.tp, "ep": self.ep, "tokens": listed_tokens(self.tokens), "sequences": self.sequences,
            "training": self.training, "lora_rank": self.lora_rank, "layers": self.layers.value,
        }  # fmt: skip
        fields = LanguageModelBlock.model_fields
        plain = {"tp": 1, "ep": 1, "layers": "all"}
        return {key: value for key, value in written.items() if value != plain.get(key, fields[key].default)}


def listed_tokens(text: str) -> list[int | str]:
    """The entries of an axis that are separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.isdecimal() else part for part in parts]


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


@dataclass(frozen=True, slots=True)
class CampaignText:
    """A campaign file, and the texts of the files that it names.

    Attributes:
        text: The YAML text.
        name: Its name in messages.
        files: Texts by name.
    """

    text: str
    name: str
    files: dict[str, str]

    def campaign(self, limit: int) -> Campaign:
        """The campaign. Raises `CampaignFileError`, and `CampaignTooLarge` beyond that many configurations."""
        return loads(self.text, name=self.name, limit=limit, owner=None, files=self.files)


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
        made = _of_model(step, families or [_DEFAULT_FAMILY])
    else:
        made = _of_trace(Path(str(trace)), families or [_DEFAULT_FAMILY])
    for note in notes_of(made.files):
        remarks.print(note, markup=False)
    return made


def campaign_file(named: Path) -> Path:
    """The campaign file of that path, or the one of that name that comes with the farm. Raises `CampaignFileError`."""
    if named.exists() or named.suffix or len(named.parts) != 1:
        return named
    campaigns = folder("campaigns")
    known = [] if campaigns is None else sorted(path.stem for path in campaigns.glob("*.yaml"))
    if campaigns is not None and named.name in known:
        return campaigns / f"{named.name}.yaml"
    meant = " or ".join(difflib.get_close_matches(named.name, known, n=3, cutoff=0.5))
    hint = f"did you mean {meant}?" if meant else "name the path of a campaign file"
    raise CampaignFileError(
        problems=f"{named}: there is no such file, and GEMM Farm has no campaign of that name; {hint}"
    )


def _of_model(step: ModelStep, families: Sequence[str]) -> CampaignText:
    file = configuration_file(step.model)
    if file is not None:
        step = replace(step, model=str(file))
    architecture = architecture_of(step.model)
    for note in architecture.notes:
        remarks.print(f"{step.model}: {note}.", markup=False)
    shared = f"-tp{step.tp}" * (step.tp > 1) + f"-ep{step.ep}" * (step.ep > 1) + "-training" * step.training
    stem = step.model.rpartition("/")[2]
    if file is not None:
        stem = file.absolute().parent.name if file.stem == "config" else file.stem
    document = {
        "name": _name(f"{stem}{shared}", "model"),
        "problems": step.block,
        "kernels": _kernels(families),
    }
    text = json.dumps(document, ensure_ascii=False, indent=1)
    return CampaignText(text, f"--model {step.model}", {} if file is None else {str(file): text_of(file)})


def configuration_file(name: str) -> Path | None:
    """The configuration file that a name means: that file, or the one in that folder. None for a built-in model."""
    path = Path(name)
    if is_file(name):
        return path
    return path / "config.json" if name.strip() and path.is_dir() else None


def architecture_of(name: str) -> Architecture:
    """A built-in language model, or that of a configuration file or of its folder. Raises `FarmError`."""
    file = configuration_file(name)
    return built_in(name) if file is None else parse_configuration(text_of(file), str(file))


def _kernels(families: Sequence[str]) -> list[dict[str, str]]:
    return [{"family": family} for family in families]


def _name(text: str, otherwise: str) -> str:
    """A name for a campaign, made of a text."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:100] or otherwise


def _of_trace(trace: Path, families: Sequence[str]) -> CampaignText:
    name = _name(trace.name.partition(".")[0], "trace")
    document = {"name": name, "problems": {"trace": str(trace)}, "kernels": _kernels(families)}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    try:
        return CampaignText(text, f"--trace {trace}", {f"{trace}{GEMMS_SUFFIX}": trace_text(trace)})
    except ValueError as error:
        raise BadInput(detail=str(error)) from None

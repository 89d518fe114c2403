"""What to measure without a campaign file: the GEMMs of a language model, or those that a program recorded."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from farm.campaign.campaign import Campaign
from farm.campaign.language_model_blocks import LanguageModelBlock, LayerChoice
from farm.campaign.loading import loads
from farm.campaign.reading import text_of
from farm.campaign.trace_texts import GEMMS_SUFFIX, trace_text
from farm.errors import BadInput, BadParameter, CampaignFileError
from farm.kernels import problem_line
from farm.kernels.configuration import problem_columns
from farm.language_models import steps
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in
from farm.language_models.configuration import is_file, parse_configuration
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.steps import Parallelism, Step, layer_gemms
from farm.shipped import folder

DEFAULT_FAMILIES = ("cublaslt",)
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


def model_campaign(step: ModelStep, families: Sequence[str]) -> CampaignText:
    """The campaign that measures the GEMMs of a language model. Raises `FarmError` where there is no such model."""
    file = configuration_file(step.model)
    if file is not None:
        step = replace(step, model=str(file))
    architecture_of(step.model)
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


def trace_campaign(trace: Path, families: Sequence[str]) -> CampaignText:
    """The campaign that measures the GEMMs of a trace. Raises `BadInput`."""
    name = _name(trace.name.partition(".")[0], "trace")
    document = {"name": name, "problems": {"trace": str(trace)}, "kernels": _kernels(families)}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    try:
        return CampaignText(text, f"--trace {trace}", {f"{trace}{GEMMS_SUFFIX}": trace_text(trace)})
    except ValueError as error:
        raise BadInput(detail=str(error)) from None


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


def configuration_of(name: str) -> dict[str, Any] | None:
    """The content of the configuration file that a name means, as JSON data; None for a built-in model. Raises `FarmError`."""
    file = configuration_file(name)
    if file is None:
        return None
    text = text_of(file)
    parse_configuration(text, str(file))  # names what it does not understand
    found: dict[str, Any] = json.loads(text)
    return found


def gemms_by_tokens(
    architecture: Architecture,
    tokens: Iterable[int],
    over: Parallelism,
    *,
    sequences: int | None,
    training: bool,
    lora_rank: int,
    layers: LayerChoice,
) -> dict[int, list[LayerGemm]]:
    """The GEMMs of a step of a language model on one GPU, for each number of tokens. Raises `BadInput` where there are none."""
    found = {
        number: [
            gemm
            for gemm in layer_gemms(architecture, Step(number, sequences, training=training, rank=lora_rank), over)
            if layers.has(gemm)
        ]
        for number in tokens
    }
    if not any(found.values()):
        raise BadParameter(parameter="layers", value=layers, why=f"{architecture.name} has no such layers.")
    return found


def gemm_columns(gemm: LayerGemm) -> Mapping[str, Any]:
    """A GEMM as columns: its name, how often it runs, the problem as text, and the columns of the problem."""
    problem = problem_line(gemm.problem, scalars=False)
    return {"name": gemm.name, "count": gemm.count, "problem": problem, **problem_columns(gemm.problem)}

"""Plans: what a step of a language model takes on each card, from measured rows and predictions."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from farm import registry
from farm.api.access import Access
from farm.api.comparing import Carbon
from farm.api.gemm_costs import CardCosts
from farm.api.models import AnsweringModel
from farm.api.operation import Cli, Document, operation
from farm.campaign.suggestions import did_you_mean
from farm.compare.groups import parse_prices
from farm.db import campaigns
from farm.db.devices import all_types
from farm.db.fastest_kernels import fastest_kernels
from farm.errors import BadInput, BadParameter, ModelRefused, NotFound
from farm.formatting import counted, lines_text
from farm.gemm import Problem
from farm.gpus import all_gpus, find_gpu
from farm.kernels import parse_problem
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in
from farm.language_models.configuration import read_configuration
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.steps import (
    DEFAULT_TOKENS,
    MAX_GPUS,
    MAX_RANK,
    Parallelism,
    Step,
    check_draws,
    draws,
    layer_gemms,
)
from farm.language_models.steps import MAX_TOKENS as MAX_TOKENS_OF_STEP
from farm.model_plans.fastest_kernel import FastestKernel
from farm.model_plans.step_plans import NotCovered, OtherCost, StepPlan, cheapest, most_doubtful, step_plan
from farm.model_plans.uncovered import not_covered
from farm.protocols import Time
from farm.registry import ModelInfo

MAX_STEPS = 64
"""Numbers of tokens in one request."""

MAX_GEMMS = 5_000
"""GEMMs in one request."""

OTHERS = "every operation that is not a GEMM"
GIVEN_GEMMS = "the given GEMMs"

MODEL_FIELDS = ("tp", "ep", "sequences", "lora_rank", "training")
"""Fields of a query that only a language model has."""


class NoPlan(NotFound):
    """No plan for {model}. {why}"""


def _split(given: object) -> object:
    """The parts of texts with commas, as a command line and a form have them."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return given
    parts = [part for one in given for part in (one.split(",") if isinstance(one, str) else [one])]
    return [part.strip() if isinstance(part, str) else part for part in parts if part != ""]


def _numbers_of_tokens(given: object) -> object:
    """The numbers of texts with commas. Raises `ValueError` with what to write."""
    parts = _split(given)
    if not isinstance(parts, list):
        return parts
    for part in parts or [""]:
        text = str(part)
        if not (text.isdecimal() and 1 <= int(text) <= MAX_TOKENS_OF_STEP):
            raise ValueError(
                f"write whole numbers from 1 to {MAX_TOKENS_OF_STEP:,} with commas, as in 1,8,128, not {text!r}"
            )
    return parts


class GemmOfStep(Document):
    """A GEMM of a step on one card."""

    name: str = Field(max_length=200, description="The layer.", examples=["qkv_proj"])
    problem: str = Field(max_length=20_000, description="The problem.", examples=["512x6144x4096 bf16 nt"])
    count: float = Field(default=1.0, gt=0, le=1e9, description="How often it runs in a step.")


class OtherOfStep(Document):
    """An operation of a step that is no GEMM, with its cost."""

    name: str = Field(min_length=1, max_length=200, description="The operation.", examples=["attention"])
    ms: float = Field(ge=0, le=1e9, allow_inf_nan=False, description="Time in a step, in ms.")
    joules: float | None = Field(
        default=None, ge=0, le=1e12, allow_inf_nan=False, description="Energy in a step on one card, in J."
    )
    device_type: str | None = Field(default=None, description="The card that it is of. Without it, any.")
    tokens: int | None = Field(default=None, ge=1, description="The tokens of a step that it is of. Without it, any.")


class PlanQuery(Document):
    """What to plan: a language model and how it is served, on which cards."""

    model: Annotated[str | None, Cli(argument=True)] = Field(
        default=None,
        max_length=4096,
        description="A built-in language model, as farm shapes --list has them, or on the command line a file config.json.",
    )
    config: dict[str, Any] | None = Field(
        default=None, description="The content of a file config.json, instead of a built-in model."
    )
    gemms: list[GemmOfStep] = Field(
        default=[], max_length=MAX_GEMMS, description="The GEMMs of a step on one card, instead of a language model."
    )
    tokens: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_TOKENS_OF_STEP)]],
        BeforeValidator(_numbers_of_tokens),
        Cli(metavar="N,...", commas=True, default=",".join(map(str, DEFAULT_TOKENS))),
    ] = Field(
        default=list(DEFAULT_TOKENS),
        min_length=1,
        max_length=MAX_STEPS,
        description="Tokens of a step: the sequences of a decode step, or the tokens of the prompts.",
    )
    tp: int = Field(default=1, ge=1, le=MAX_GPUS, description="Cards that share every linear layer.")
    ep: int = Field(default=1, ge=1, le=MAX_GPUS, description="Groups of cards with different experts.")
    sequences: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS_OF_STEP,
        description="Sequences of a step of prompts: the rows of the output head. Without it, a step decodes, with a token of each.",
    )
    lora_rank: int = Field(default=0, ge=0, le=MAX_RANK, description="Rank of low-rank adapters; 0 without.")
    training: bool = Field(default=False, description="A training step: with the gradients of inputs and weights.")
    cards: int = Field(default=1, ge=1, le=65_536, description="Cards that compute the GEMMs of a trace together.")
    on: Annotated[list[str], BeforeValidator(_split), Cli(metavar="TYPE,...", default="every type with a model")] = (
        Field(default=[], max_length=100, description="Device types, with commas.")
    )
    load: Time = Field(
        default="settled",
        description="The load: sustained, with the settled times, or short requests after a rest, with the burst times.",
    )
    max_latency: Annotated[str | None, Cli(metavar="TIME")] = Field(
        default=None, description="Name the cheapest plan whose step takes at most this long, as in 20ms."
    )
    price: Annotated[list[str], Cli(metavar="TYPE=PER_HOUR")] = Field(
        default=[], max_length=100, description="Money per hour of a card of that type; repeat it."
    )
    carbon: Carbon = None
    others: list[OtherOfStep] = Field(
        default=[], max_length=10_000, description="Costs of operations that are no GEMMs, such as attention."
    )
    campaign: Annotated[str | None, Cli(("--campaign", "-c"))] = Field(
        default=None, description="Only rows of this campaign, with any operands and clocks."
    )
    any_source: bool = Field(default=False, description="Recorded and imported rows too.")


class CardWithoutPlan(Document):
    """A device type that has no plan."""

    device_type: str
    why: str


class Planned(Document):
    """Plans of a language model by card and tokens, and the cheapest of them."""

    model: str
    notes: list[str] = Field(description="what the GEMMs do not have of the model, or stand for")
    load: Time
    plans: list[StepPlan]
    cheapest: StepPlan | None = Field(
        description="of the least money per token, or of the least energy without prices; null where none meets the latency, or "
        "has a price or an energy"
    )
    max_latency_ms: float | None
    without_plan: list[CardWithoutPlan]
    answered_by: list[AnsweringModel] = Field(description="the models whose predictions the plans have")

    @property
    def not_covered_text(self) -> str:
        """`attention (32), all-reduce (64, 8 MiB each)`, of the plan with most tokens, whose operations are the largest."""
        return ", ".join(map(str, max(self.plans, key=lambda one: one.tokens).not_covered))

    @property
    def cheapest_text(self) -> str:
        """Which plan is the cheapest, in a sentence; empty where that is not known."""
        within = "" if self.max_latency_ms is None else f" within {self.max_latency_ms:g} ms"
        best = self.cheapest
        if best is None:
            if self.max_latency_ms is None:
                return ""
            if any(one.meets(self.max_latency_ms) for one in self.plans):
                return f"Plans take at most {self.max_latency_ms:g} ms, but the cheapest needs prices or the energy of every part."
            return f"No plan is known to take at most {self.max_latency_ms:g} ms."
        money, joules = best.money_per_mtoken, best.joules_per_token
        if money is not None:
            cost = f"{money.value:.4g} for a million tokens"
        else:
            assert joules is not None, "a cheapest plan has one of both"
            cost = f"{joules.value:.4g} J for a token"
        return f"Cheapest{within}: {best.device_type} with {counted(best.tokens, 'token')} in a step of {best.ms.value:.4g} ms, {cost}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The GEMMs of a step with so many tokens."""

    tokens: int
    gemms: Sequence[LayerGemm]
    not_covered: Sequence[NotCovered]
    cards: int = 1
    replicas: int = 1


@operation("POST", "/plan", seconds=120)
def plan(access: Access, step_query: PlanQuery) -> Planned:
    """Plan a language model on each card: time, tokens per second, energy, power, money and CO2 of a step."""
    name, notes, steps = _steps(step_query)
    max_ms = None if step_query.max_latency is None else milliseconds(step_query.max_latency)
    models = {info.device_type: info for info in registry.answering_models(access.settings.tracking_uri)}
    types = list(dict.fromkeys(step_query.on)) or list(models)
    if not types:
        raise NoPlan(
            model=name, why="The registry has no model, so name device types that have rows, as in nvidia-h200."
        )
    prices = parse_prices(step_query.price, types)
    if prices and (unpriced := [one for one in types if one not in prices]):
        raise BadParameter(
            parameter="price", why=f"{', '.join(unpriced)} has none. Give one for each card, or for none."
        )
    problems = [gemm.problem for step in steps for gemm in step.gemms]
    measured = _measured(access, step_query, problems, types)
    plans, without, used = list[StepPlan](), list[CardWithoutPlan](), list[ModelInfo]()
    for device_type in types:
        info = models.get(device_type)
        costs = _card_costs(access, device_type, info, measured, step_query.load)
        found, missing = _plans_on(costs, steps, step_query, prices.get(device_type))
        plans += found
        if missing:
            why = _unknown_type(access, device_type, models) + _why_missing(device_type, missing, step_query)
            without.append(CardWithoutPlan(device_type=device_type, why=why))
        if info is not None and any(not one.measured or one.energy_measured is False for p in found for one in p.gemms):
            used.append(info)
    if not plans:
        raise NoPlan(model=name, why="\n".join(one.why for one in without))
    return Planned(
        model=name,
        notes=notes + _unused_costs(step_query.others, plans),
        load=step_query.load,
        plans=plans,
        cheapest=cheapest(plans, max_ms=max_ms),
        max_latency_ms=max_ms,
        without_plan=without,
        answered_by=[AnsweringModel.of(one, has_champion=registry.CHAMPION in one.aliases) for one in used],
    )


def _unused_costs(others: Sequence[OtherOfStep], plans: Sequence[StepPlan]) -> list[str]:
    """A note on the costs that the user gave for other cards or numbers of tokens."""
    used = {(other.name, other.device_type, other.tokens) for one in plans for other in one.others}
    unused = [
        ", ".join(
            [
                one.name,
                *([one.device_type] if one.device_type else []),
                *([counted(one.tokens, "token")] if one.tokens else []),
            ]
        )
        for one in others
        if (one.name, one.device_type, one.tokens) not in used
    ]
    return [f"No plan has these costs: {'; '.join(unused)}."] if unused else []


def to_confirm(planned: Planned, device_type: str, count: int) -> list[str]:
    """The configurations to measure on a card: of the predicted GEMMs that make its plans least certain."""
    gemms = [gemm for one in planned.plans if one.device_type == device_type for gemm in one.gemms]
    return list(dict.fromkeys(one.configuration for one in most_doubtful(gemms, len(gemms))))[:count]


def _steps(query: PlanQuery) -> tuple[str, list[str], list[_Step]]:
    """The name of what is planned, notes on it, and its steps. Raises `BadInput`."""
    sources = [query.model is not None, query.config is not None, bool(query.gemms)]
    if sum(sources[1:]) + (sources[0] and query.config is None) != 1:
        raise BadInput(
            detail="Name a language model, as in llama-3.1-8b, or give a configuration or the GEMMs of a step, and one of them only."
        )
    if query.gemms:
        return GIVEN_GEMMS, [], [_given_step(query)]
    if query.cards != 1:
        raise BadInput(
            detail="cards goes with given GEMMs. For a language model, tp and ep say how many cards share it."
        )
    if query.config is None:
        architecture = built_in(query.model or "")
    else:
        architecture = read_configuration(query.config, query.model or "the configuration")
    sharing = Parallelism(tp=query.tp, ep=query.ep)
    of_tokens = {
        tokens: Step(tokens, query.sequences, training=query.training, rank=query.lora_rank) for tokens in query.tokens
    }
    check_draws(sum(draws(architecture, step, sharing) for step in of_tokens.values()), [*of_tokens])
    steps = [_model_step(architecture, step, sharing) for step in of_tokens.values()]
    return architecture.name, list(architecture.notes), steps


def _model_step(architecture: Architecture, step: Step, sharing: Parallelism) -> _Step:
    return _Step(
        tokens=step.tokens,
        gemms=layer_gemms(architecture, step, sharing),
        not_covered=not_covered(architecture, step, sharing),
        cards=sharing.tp * sharing.replicas,
        replicas=sharing.replicas,
    )


def _given_step(query: PlanQuery) -> _Step:
    for name in MODEL_FIELDS:
        if getattr(query, name) != PlanQuery.model_fields[name].default:
            raise BadInput(
                detail=f"{name} goes with a language model. Given GEMMs are those of one card; cards says how many cards there are."
            )
    if len(query.tokens) != 1:
        raise BadInput(
            detail="The GEMMs are those of one step, so tokens has one number: how many tokens the step has."
        )
    gemms = [LayerGemm(one.name, parse_problem(one.problem), one.count) for one in query.gemms]
    return _Step(tokens=query.tokens[0], gemms=gemms, not_covered=[NotCovered(name=OTHERS, count=1)], cards=query.cards)


def _measured(
    access: Access, query: PlanQuery, problems: Sequence[Problem], types: Sequence[str]
) -> dict[tuple[Problem, str], FastestKernel]:
    with access.connect() as connection:
        campaign_id = None if query.campaign is None else campaigns.find(connection, query.campaign)["id"]
        return fastest_kernels(
            connection, problems, types, time=query.load, campaign_id=campaign_id, any_source=query.any_source
        )


def _card_costs(
    access: Access,
    device_type: str,
    info: ModelInfo | None,
    measured: dict[tuple[Problem, str], FastestKernel],
    load: Time,
) -> CardCosts:
    model, why = None, f"{device_type} has no model"
    if info is not None:
        try:
            model = access.models.loaded(info)
        except ModelRefused as error:
            why = str(error)
    rows = {problem: row for (problem, kind), row in measured.items() if kind == device_type}
    return CardCosts(device_type=device_type, measured=rows, model=model, why_no_model=why, load=load)


def _plans_on(
    costs: CardCosts, steps: Sequence[_Step], query: PlanQuery, price: float | None
) -> tuple[list[StepPlan], dict[str, str]]:
    """The plans on a card, and why GEMMs have no cost there."""
    others = [OtherCost(**one.model_dump()) for one in query.others]
    plans, missing = list[StepPlan](), dict[str, str]()
    for step in steps:
        gemms, without = costs.estimates(step.gemms)
        missing |= without
        if not without:
            plans.append(
                step_plan(
                    costs.device_type,
                    step.tokens,
                    gemms,
                    cards=step.cards,
                    replicas=step.replicas,
                    others=others,
                    not_covered=step.not_covered,
                    price_per_hour=price,
                    grams_per_kwh=query.carbon,
                )
            )
    return plans, missing


def _unknown_type(access: Access, device_type: str, models: Iterable[str]) -> str:
    """A sentence on a device type that neither a device nor a model has, and that is not in the table of GPUs; else nothing."""
    with access.connect() as connection:
        here = {*all_types(connection), *models}
    if device_type in here or find_gpu(device_type) is not None:
        return ""
    known = sorted(here.union(*(gpu.names for gpu in all_gpus())))
    return f"The device type {device_type} is not known; {did_you_mean(device_type, known)}. "


def _why_missing(device_type: str, missing: dict[str, str], query: PlanQuery) -> str:
    by_reason: dict[str, list[str]] = {}
    for gemm, why in missing.items():
        by_reason.setdefault(why, []).append(f"  {gemm}")
    listed = "\n".join(f"{why}:\n{lines_text(gemms, what='GEMMs')}" for why, gemms in by_reason.items())
    others = "" if query.any_source else " Recorded and imported rows count if any source may (farm plan --any-source)."
    return (
        f"{device_type} has neither measured rows nor predictions of {counted(len(missing), 'GEMM')}. Measure them there "
        f"({_submit_command(query)}), or measure others of their types and train: farm train {device_type}.{others}\n{listed}"
    )


def _submit_command(query: PlanQuery) -> str:
    """The command that measures the GEMMs of a query."""
    if query.gemms:
        return "farm submit"
    fields = {"model": query.model or "config.json", "tokens": ",".join(map(str, query.tokens))}
    options = [f"--{name} {shlex.quote(text)}" for name, text in fields.items()]
    options += [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name in MODEL_FIELDS
        if (value := getattr(query, name)) != PlanQuery.model_fields[name].default
    ]
    return " ".join(["farm submit", *options])


_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)?", re.ASCII)
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, None: 1.0}


def milliseconds(text: str) -> float:
    """A latency such as `20ms` or `0.5s`, in ms. Raises `BadInput`."""
    found = _LATENCY.fullmatch(text.strip())
    value = 0.0 if found is None else float(found[1]) * _MS[found[2]]
    if found is None or not 0 < value < math.inf:
        raise BadParameter(
            parameter="max_latency", value=text, why="write a time above 0 with its unit, as in 20ms or 0.5s."
        )
    return value

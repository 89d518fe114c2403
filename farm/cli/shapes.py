"""`farm shapes`: the GEMMs of a language model or of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.campaign.axes import Axis, parse_part
from farm.campaign.language_model_blocks import LayerChoice
from farm.campaign.workloads import ModelStep, architecture_of, gemm_columns, gemms_by_tokens, listed_tokens
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.cli.workload_options import (
    EpOption,
    LayersOption,
    LoraRankOption,
    SequencesOption,
    TokensOption,
    TpOption,
    TrainingOption,
    trace_help,
)
from farm.errors import BadInput, BadStep
from farm.formatting import counted, problem_text
from farm.kernels.configuration import problem_columns
from farm.language_models.architecture import Architecture
from farm.language_models.built_in import built_in, built_in_names
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.steps import MAX_TOKENS, Parallelism

_TOKENS = "128"


def shapes(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A built-in language model, a file config.json, or the folder of one; none with --trace or --list.",
            show_default=False,
        ),
    ] = None,
    *,
    list_: Annotated[
        bool, typer.Option("--list", help="List the built-in language models.", show_default=False)
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help=trace_help("List the GEMMs of a program instead of a language model"), show_default=False
        ),
    ] = None,
    tp: TpOption = 1,
    ep: EpOption = 1,
    tokens: TokensOption = _TOKENS,
    sequences: SequencesOption = 0,
    training: TrainingOption = False,
    lora_rank: LoraRankOption = 0,
    layers: LayersOption = LayerChoice.ALL,
    as_json: JsonOption = False,
) -> None:
    """List the GEMMs of one step of a language model on one GPU, or of a trace, with how often each runs. Measures nothing.

    Examples:
        farm shapes llama-3.1-8b --tp 4 --tokens 1,128
        farm shapes qwen3-30b-a3b --tp 4 --ep 8 --training --json
        farm shapes --list
        farm shapes --trace trace.json.gz
    """
    if [model is not None, list_, trace is not None].count(True) != 1:
        raise BadInput(detail="Name a language model, or a trace with --trace FILE, or use --list.")
    step = ModelStep("", tp, ep, tokens, sequences, training, lora_rank, layers)
    if model is None and (named := step.changed(ModelStep("", tokens=_TOKENS))):
        raise BadInput(detail=f"{named} without a language model: name one too.")
    if list_:
        _print_models([built_in(name) for name in built_in_names()], as_json=as_json)
        return
    if trace is not None:
        _print_trace(trace, as_json=as_json)
        return
    architecture, over = architecture_of(str(model)), Parallelism(tp, ep)
    steps = gemms_by_tokens(
        architecture,
        _numbers(tokens),
        over,
        sequences=sequences or None,
        training=training,
        lora_rank=lora_rank,
        layers=layers,
    )
    if as_json:
        emit_json(
            {"model": _about(architecture), "tp": tp, "ep": ep, "training": training}
            | {"steps": [{"tokens": number, "gemms": [*map(gemm_columns, gemms)]} for number, gemms in steps.items()]}
        )
        return
    for number, gemms in steps.items():
        shared = f"tp {tp}, ep {ep}" if architecture.experts else f"tp {tp}"
        _GEMMS.print(_rows(gemms), title=f"{architecture.name}, {counted(number, 'token')}, {shared}")
    for note in architecture.notes:
        remarks.print(f"{architecture.name}: {note}.", markup=False)


def _numbers(tokens: str) -> Sequence[int]:
    try:
        parts = [parse_part(part, name="tokens", allowed=range(1, MAX_TOKENS + 1)) for part in listed_tokens(tokens)]
    except ValueError as error:
        raise BadInput(detail=f"--tokens {tokens}: {error}") from None
    numbers = list(Axis(parts))
    if len(numbers) > _MAX_STEPS:
        raise BadStep(
            name="tokens", value=tokens, why=f"these are {len(numbers):,} numbers; {_MAX_STEPS} can be listed"
        )
    return numbers


def _print_trace(path: Path, *, as_json: bool) -> None:
    from farm.traces.formats import read_trace  # few commands need the readers

    trace = read_trace(path)
    if as_json:
        emit_json(
            {
                "trace": str(path),
                "format": trace.format,
                "gemms": [*map(gemm_columns, trace.gemms)],
                "notes": list(trace.notes()),
            }
        )
        return
    _GEMMS.print(_rows(trace.gemms), title=f"{path}, {trace.format}")
    for note in trace.notes():
        remarks.print(f"{path}: {note}", markup=False)


def _rows(gemms: Sequence[LayerGemm]) -> list[Sequence[Any]]:
    total = sum(gemm.count * gemm.problem.flops for gemm in gemms) or 1
    return [
        (gemm.name, f"{gemm.count:,g}", problem_text(problem_columns(gemm.problem)), f"{gemm.problem.flops / 1e9:,.3g}",
         f"{100 * gemm.count * gemm.problem.flops / total:.1f}")
        for gemm in gemms
    ]  # fmt: skip


def _print_models(models: Sequence[Architecture], *, as_json: bool) -> None:
    if as_json:
        emit_json([_about(one) for one in models])
        return
    _MODELS.print(
        (one.name, one.layers, one.hidden, one.experts[0].experts if one.experts else None, _weights(one), one.source)
        for one in models
    )
    console.print(f"{len(models)} language models. To list the GEMMs of one: farm shapes {models[0].name}")


def _about(one: Architecture) -> dict[str, Any]:
    return {
        "name": one.name, "source": one.source, "architecture": one.kind, "layers": one.layers, "hidden": one.hidden,
        "experts": one.experts[0].experts if one.experts else None, "weights": _weights(one), "notes": list(one.notes),
    }  # fmt: skip


def _weights(one: Architecture) -> str:
    """The formats of its weights, without those that stay in 16 bits in all checkpoints."""
    found = [linear.weights for linear in one.linears if linear.quantized] + [each.weights for each in one.experts]
    return ", ".join(dict.fromkeys(each.name for each in found if each is not None))


_MAX_STEPS = 100
"""Numbers of tokens whose GEMMs are listed at once."""

_GEMMS = Table(
    "gemms of a step",
    Column("GEMM", folds=True),
    Column("count", number=True),
    Column("problem", folds=True),
    Column("GFLOP", number=True, priority=2),
    Column("share", "%", number=True, priority=1),
)

_MODELS = Table(
    "language models",
    Column("model", folds=True),
    Column("layers", number=True, priority=2),
    Column("hidden", number=True, priority=3),
    Column("experts", number=True, priority=1),
    Column("weights", folds=True),
    Column("source", folds=True, priority=4),
)

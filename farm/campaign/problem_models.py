"""Which model a block of problems has, by its keys."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo

from farm.campaign.expert_blocks import ExpertsBlock, ModelBlock, RecordedBlock
from farm.campaign.gemm_blocks import GemmsBlock
from farm.campaign.language_model_blocks import LanguageModelBlock
from farm.campaign.problem_blocks import AxesBlock, Block, DomainBlock, ShapesBlock
from farm.campaign.trace_blocks import TraceBlock
from farm.campaign.values import Mappings


def problem_model(written: object) -> type[Block]:
    """The model of a block of problems."""
    keys = written.keys() if isinstance(written, dict) else set[str]()
    if "domain" in keys:
        return DomainBlock
    if "gemms" in keys:
        return GemmsBlock
    if "trace" in keys:
        return TraceBlock
    if "model" in keys:
        return ModelBlock if "routing" in keys and "layers" not in keys else LanguageModelBlock
    if {"experts", "top_k", "tokens"} & keys:
        return ExpertsBlock
    if {"routing", "weights"} & keys:
        return RecordedBlock
    return AxesBlock if "shapes" not in keys and {"m", "n", "k"} & keys else ShapesBlock


class _Blocks(Mappings):
    def read_in(self, written: Any, info: ValidationInfo) -> Block:
        block: Block = super().read_in(written, info)
        if isinstance(block, (TraceBlock, LanguageModelBlock)):
            return block.as_gemms()
        return block.as_experts() if isinstance(block, ModelBlock) else block


PROBLEMS = _Blocks(
    problem_model,
    models=lambda: [
        ShapesBlock,
        AxesBlock,
        DomainBlock,
        GemmsBlock,
        TraceBlock,
        LanguageModelBlock,
        ExpertsBlock,
        ModelBlock,
        RecordedBlock,
    ],
)
"""Declares a key of blocks of problems."""

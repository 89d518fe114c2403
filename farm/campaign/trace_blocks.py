"""Blocks of the GEMMs of a trace."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainValidator, ValidationInfo

from farm.campaign.axes import shown
from farm.campaign.gemm_blocks import GemmsBlock, gemms_of
from farm.campaign.problem_blocks import Block
from farm.campaign.shape_files import FileContext, among
from farm.campaign.trace_texts import GEMMS_SUFFIX, gemms_in
from farm.campaign.weighted import Weighted
from farm.gemm import Problem


def _gemms_of_trace(written: object, info: ValidationInfo) -> Weighted[Problem]:
    if not isinstance(written, str) or not written.strip():
        raise ValueError(f"{shown(written)} is not the name of a file; write for example trace.json.gz")
    name, context = written.strip(), info.context
    read = context.read_text if isinstance(context, FileContext) else among({})
    return gemms_of(gemms_in(read(name + GEMMS_SUFFIX), name))


class TraceBlock(Block):
    """The GEMMs of a trace. A campaign has them as `GemmsBlock`."""

    trace: Annotated[Weighted[Problem], PlainValidator(_gemms_of_trace, json_schema_input_type=str)] = Field(
        description="instead of `gemms`, a file that a program recorded, relative to the campaign file ([traces.md](traces.md))",
        examples=["trace.json.gz"],
    )

    def lengths(self) -> dict[str, int]:
        return {"trace": len(self.trace.weight_of)}

    def as_gemms(self) -> GemmsBlock:
        """The same block with the GEMMs written out."""
        return GemmsBlock(gemms=self.trace)

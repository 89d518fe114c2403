"""Blocks that list whole problems, each with how often a program computes it: those of traces and of language models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

from pydantic import Field

from farm.campaign.axes import shown
from farm.campaign.domain import weights_of
from farm.campaign.problem_blocks import ListingBlock
from farm.campaign.values import NUMBER, TEXT, Value
from farm.campaign.weighted import Weighted
from farm.gemm import Problem
from farm.kernels import parse_problem, problem_line
from farm.language_models.layer_gemm import LayerGemm

_EXAMPLE = "{8x4096x4096 bf16 nt: 32}"
_COUNTS = {"type": "object", "additionalProperties": NUMBER, "minProperties": 1}


def text_of_problem(problem: Problem) -> str:
    """A problem as a block has it."""
    return problem_line(problem, scalars=False)


def _problem_of(written: object) -> Problem:
    if not isinstance(written, str):
        raise ValueError(f"{shown(written)} is not a problem; write for example 8x4096x4096 bf16 nt")  # noqa: TRY004
    return parse_problem(written)


def gemms_of(written: object) -> Weighted[Problem]:
    """Reads problems with their counts. Raises `ValueError` and `FarmError`."""
    return weights_of(written, _problem_of, _EXAMPLE, key=text_of_problem)


def _document_of(gemms: Weighted[Problem]) -> dict[str, Any]:
    return {text_of_problem(problem): count for problem, count in gemms.weight_of.items()}


class GemmsBlock(ListingBlock):
    """Problems one by one, each with how often it runs."""

    gemms: Annotated[
        Weighted[Problem],
        Value(
            gemms_of,
            write=_document_of,
            schema={"anyOf": [TEXT, {"type": "array", "items": TEXT}, _COUNTS]},
        ),
    ] = Field(
        description="a list of problems, or a mapping from problems to how often a program computes each. A problem is written as in "
        "the line of a configuration, without the kernel",
        examples=[{"8x4096x4096 bf16 nt": 32}],
    )

    @property
    def size(self) -> int:
        return len(self.gemms.weight_of)

    def problems(self) -> Iterator[Problem]:
        return iter(self.gemms.weight_of)

    def lengths(self) -> dict[str, int]:
        return {"gemms": self.size}

    @classmethod
    def of(cls, gemms: Iterable[LayerGemm]) -> Self:
        """The block of a list of GEMMs. Counts of equal problems are added up."""
        counts = defaultdict[Problem, float](float)
        for gemm in gemms:
            counts[gemm.problem] += gemm.count
        return cls(gemms=Weighted({problem: counts[problem] for problem in sorted(counts, key=text_of_problem)}))

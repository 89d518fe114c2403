"""The linear layers of a language model and how GPUs share them (pure).

A linear layer is y = x · Wᵀ, where x has a row for each token and W has a row for each output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from farm.errors import DoesNotDivide
from farm.language_models.weight_formats import WeightFormat


class Sharing(StrEnum):
    """How the GPUs of a tensor-parallel group share features (Shoeybi et al., arXiv 1909.08053).

    `split`: each GPU has the same number of units. `copied`: as `split`, but where there are fewer units than GPUs, several GPUs have
    the same unit, as with heads of keys and values. `whole`: each GPU has all.
    """

    SPLIT = "split"
    COPIED = "copied"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Features:
    """Inputs or outputs of a linear layer, in units that stay together: the outputs of a head, for example.

    Attributes:
        name: The module of a checkpoint that has them, `q_proj`.
        units: How many units there are.
        width: Features of one unit.
        of: What the units are, for errors.
    """

    name: str
    units: int
    width: int = 1
    sharing: Sharing = Sharing.SPLIT
    of: str = "features"

    def __post_init__(self) -> None:
        if not (type(self.units) is type(self.width) is int and self.units >= 1 and self.width >= 1):
            raise ValueError(f"{self.name} has {self.units!r} x {self.width!r} features")

    def on_one(self, gpus: int, model: str) -> int:
        """How many features one of so many GPUs has. Raises `DoesNotDivide`."""
        if self.sharing is Sharing.WHOLE:
            return self.units * self.width
        if self.sharing is Sharing.COPIED and gpus % self.units == 0:
            return self.width
        return divided(self.units, gpus, self.of, model, "tp") * self.width


def divided(count: int, gpus: int, what: str, model: str, key: str) -> int:
    """How many of these things one of so many GPUs has. Raises `DoesNotDivide`."""
    if count % gpus:
        fitting = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count % n == 0]
        raise DoesNotDivide(
            count=count, what=what, model=model, gpus=gpus, key=key, fitting=", ".join(map(str, fitting))
        )
    return count // gpus


class Phase(StrEnum):
    """The steps that run a layer: all, those with several tokens of a sequence, or those that decode one token of each."""

    ALL = "all"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer, or several that share their inputs and that an engine computes at once.

    Attributes:
        name: Of the GEMM if it is computed at once, `qkv_proj`.
        module: The module of a checkpoint that has the outputs, `self_attn`.
        inputs: Split inputs mean that the results of the GPUs are added up.
        batch: Units with weights of their own, such as heads: the GEMM is a batch of them.
        adapts: Whether it gets low-rank adapters (LoRA).
        quantized: Whether a quantised checkpoint has its weights in fewer bits.
        count: How many layers of the model have it.
    """

    name: str
    module: str
    outputs: tuple[Features, ...]
    inputs: Features
    batch: Features | None = None
    phase: Phase = Phase.ALL
    adapts: bool = False
    quantized: bool = True
    count: int = 1
    weights: WeightFormat | None = None

    def parts(self) -> list[Linear]:
        """Each of its outputs as a layer of its own, where a checkpoint has several matrices."""
        if len({part.name for part in self.outputs}) == 1:
            return [self]
        return [replace(self, name=self._with(part.name), outputs=(part,)) for part in self.outputs]

    def _with(self, part: str) -> str:
        block, dot, _ = self.name.rpartition(".")
        return f"{block}{dot}{part}"


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer: each token is multiplied with the weights of those that it chooses.

    Attributes:
        module: The module of a checkpoint that has them, `mlp.experts`.
        hidden: Inputs of an expert, and its outputs.
        intermediate: Inner width of an expert.
        gated: Whether the first product has gates and values, and so twice as many outputs.
    """

    module: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    gated: bool = True
    count: int = 1
    weights: WeightFormat | None = None

    def __post_init__(self) -> None:
        numbers = (self.experts, self.top_k, self.hidden, self.intermediate)
        if any(type(number) is not int or number < 1 for number in numbers) or self.top_k > self.experts:
            raise ValueError(
                f"a token chooses {self.top_k!r} of {self.experts!r} experts of {self.hidden!r} x {self.intermediate!r}"
            )

    @property
    def matrices(self) -> tuple[tuple[str, int, int], ...]:
        """Name, n and k of the weights of an expert: gate and up, fused as inference engines fuse them, and down."""
        first, factor = ("gate_up", 2) if self.gated else ("up", 1)
        return (first, factor * self.intermediate, self.hidden), ("down", self.hidden, self.intermediate)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A language model by what its GEMMs follow from.

    Attributes:
        name: `llama-3.1-8b`, or the name of a file.
        source: Who published the dimensions.
        kind: `model_type` of its configuration.
        layers: How many there are.
        heads: Attention heads of queries.
        linears: Linear layers in the order of their computation, with the number of layers that have each. The last one is the output
            head.
        experts: Layers of routed experts.
        notes: What is not in the list of GEMMs, or stands for something else.
    """

    name: str
    source: str
    kind: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    linears: tuple[Linear, ...]
    experts: tuple[Experts, ...] = ()
    notes: tuple[str, ...] = ()

    def linear(self, name: str) -> Linear:
        """The first linear layer of that name. Raises KeyError."""
        found = next((linear for linear in self.linears if linear.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

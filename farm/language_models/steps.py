"""The GEMMs of one step of a language model on one GPU: one forward pass, or one step of training (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from farm.errors import BadStep
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.groups import Groups
from farm.language_models.architecture import Architecture, Experts, Linear, Phase, divided
from farm.language_models.layer_gemm import LayerGemm
from farm.language_models.weight_formats import BF16, WeightFormat, training_types
from farm.routing import MAX_DRAWS, Routing
from farm.scale import Scale

DEFAULT_TOKENS = (1, 8, 128, 2048)
"""Tokens of the steps that are measured and planned if nothing else is asked for."""

MAX_TOKENS = 2**20
MAX_GPUS = 2**16
MAX_RANK = 2**14
_BLOCK = 128
_EIGHT_BIT_MULTIPLE = 16
"""Tensor cores multiply 8-bit floats whose lines are whole multiples of it; engines fill the rows of an expert up to it."""

UNIFORM = Routing.parse("uniform")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How GPUs share a language model.

    Attributes:
        tp: Tensor parallelism: GPUs that share every linear layer.
        ep: Expert parallelism: groups of GPUs with different experts. Up to `tp`, the GPUs of a group share each of its experts: there
            are `tp / ep`. Above `tp`, there are `ep / tp` tensor-parallel groups with tokens of their own, which all go to the experts.
    """

    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "ep"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_GPUS:
                raise BadStep(name=name, value=value, why=f"write a number of GPUs from 1 to {MAX_GPUS:,}")
        if self.tp % self.ep and self.ep % self.tp:
            raise BadStep(name="ep", value=self.ep, why=f"it is a divisor or a multiple of tp, which is {self.tp}")

    @property
    def of_experts(self) -> int:
        """GPUs that share an expert."""
        return max(1, self.tp // self.ep)

    @property
    def replicas(self) -> int:
        """Tensor-parallel groups whose tokens go to the same experts."""
        return max(1, self.ep // self.tp)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes.

    Attributes:
        tokens: Tokens of one tensor-parallel group.
        sequences: Sequences that the tokens are of: the rows of the output head. As many as tokens in a step that decodes; None: that.
        training: Whether gradients are computed too.
        fused: Whether layers that share their inputs are computed at once, as inference engines do.
        rank: Rank of low-rank adapters (LoRA); 0 without.
        routing: How tokens choose experts.
        seed: Seed of these choices.
        types: Types of GEMMs, in place of those of the checkpoint: of 8 bits and less, where a checkpoint quantises weights.
        scale: Scale factors that go with `types`.
    """

    tokens: int
    sequences: int | None = None
    training: bool = False
    fused: bool = True
    rank: int = 0
    routing: Routing = UNIFORM
    seed: int = 0
    types: ElementTypes | None = None
    scale: Scale = Scale.NONE

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or not 1 <= self.tokens <= MAX_TOKENS:
            raise BadStep(name="tokens", value=self.tokens, why=f"write a number from 1 to {MAX_TOKENS:,}")
        if type(self.rows_of_head) is not int or not 1 <= self.rows_of_head <= self.tokens:
            raise BadStep(
                name="sequences", value=self.sequences, why=f"there are 1 to {self.tokens:,}, the number of tokens"
            )
        if type(self.rank) is not int or not 0 <= self.rank <= MAX_RANK:
            raise BadStep(
                name="lora_rank", value=self.rank, why=f"write a number from 0, without adapters, to {MAX_RANK:,}"
            )

    @property
    def rows_of_head(self) -> int:
        return self.tokens if self.training or self.sequences is None else self.sequences

    @property
    def phase(self) -> Phase:
        return Phase.DECODE if not self.training and self.rows_of_head == self.tokens else Phase.PREFILL


def draws(architecture: Architecture, step: Step, parallelism: Parallelism) -> int:
    """How many choices of experts `layer_gemms` draws for a step."""
    if step.routing.exponent is None:
        return 0
    return step.tokens * parallelism.replicas * sum(one.top_k for one in architecture.experts)


def check_draws(count: int, tokens: object) -> None:
    """Raises `BadStep` for more choices of experts than one request may draw."""
    if count > MAX_DRAWS:
        why = f"{count:,} choices of experts would be drawn, and the limit is {MAX_DRAWS:,}; use fewer tokens"
        raise BadStep(name="tokens", value=tokens, why=why)


def layer_gemms(
    architecture: Architecture,
    step: Step | int,
    parallelism: Parallelism = Parallelism(),
) -> list[LayerGemm]:
    """The GEMMs of one step on one GPU, in the order of their computation, equal ones together.

    Args:
        architecture: The language model.
        step: What is computed; a number of tokens for a step that decodes.
        parallelism: How GPUs share it.

    Raises:
        DoesNotDivide: Something cannot be shared by so many GPUs.
        BadStep: The step cannot be computed in the types of the checkpoint, or has too many tokens to draw their experts; or the GPUs
            share experts, and the model has none.
    """
    step = Step(step) if isinstance(step, int) else step
    if parallelism.ep > 1 and not architecture.experts:
        raise BadStep(name="ep", value=parallelism.ep, why=f"{architecture.name} has no experts to share; leave ep out")
    check_draws(draws(architecture, step, parallelism), step.tokens)
    counts: dict[tuple[str, Problem], float] = {}
    for gemm in _Pass(architecture, step, parallelism).gemms():
        key = gemm.name, gemm.problem
        counts[key] = counts.get(key, 0) + gemm.count
    return [LayerGemm(name, problem, count) for (name, problem), count in counts.items()]


@dataclass(frozen=True, slots=True)
class _Pass:
    architecture: Architecture
    step: Step
    parallelism: Parallelism

    def gemms(self) -> Iterator[LayerGemm]:
        *layers, head = self.architecture.linears
        for linear in layers:
            if linear.phase in (Phase.ALL, self.step.phase):
                yield from self._linear(linear, self.step.tokens)
        for experts in self.architecture.experts:
            yield from self._experts(experts)
        yield from self._linear(head, self.step.rows_of_head)

    def _linear(self, linear: Linear, rows: int) -> Iterator[LayerGemm]:
        tp, model = self.parallelism.tp, self.architecture.name
        batch = 1 if linear.batch is None else linear.batch.on_one(tp, model)
        adapted = self.step.rank > 0 and linear.adapts
        for part in [linear] if self.step.fused else linear.parts():
            n = sum(output.on_one(tp, model) for output in part.outputs)
            k = part.inputs.on_one(tp, model)
            weights = self._format(part.weights, quantized=part.quantized)
            yield from self._product(
                part.name, Shape(rows, n, k), weights, part.count, batch, frozen=self.step.rank > 0
            )
            if adapted and batch == 1:
                yield from self._adapters(part, rows, k)

    def _adapters(self, linear: Linear, rows: int, k: int) -> Iterator[LayerGemm]:
        """The two products of adapters: to the rank, for all outputs at once, and from it, for each. They have the types of the head."""
        tp, model, rank = self.parallelism.tp, self.architecture.name, self.step.rank
        parts, plain = linear.parts(), self._format(self.architecture.linears[-1].weights, quantized=False)
        yield from self._product(f"{linear.name}.lora_a", Shape(rows, rank * len(parts), k), plain, linear.count)
        for part in parts:
            n = sum(output.on_one(tp, model) for output in part.outputs)
            yield from self._product(f"{part.name}.lora_b", Shape(rows, n, rank), plain, linear.count)

    def _format(self, weights: WeightFormat | None, *, quantized: bool = True) -> WeightFormat:
        types = self.step.types
        if types is not None and (quantized or types.ab.of_b.bits >= 16):
            return WeightFormat(str(types), types, self.step.scale)
        return weights or BF16

    def _product(
        self, name: str, shape: Shape, weights: WeightFormat, count: float, batch: int = 1, *, frozen: bool = False
    ) -> Iterator[LayerGemm]:
        types, scale = weights.types, weights.scale
        yield LayerGemm(name, Problem(shape, types, Layout.NT, batch=batch, scale=scale), count)
        if not self.step.training:
            return
        of_input, of_weights = self._gradients(weights)
        m, n, k = shape.m, shape.n, shape.k
        yield LayerGemm(f"{name}.input_gradient", replace(of_input, shape=Shape(m, k, n), batch=batch), count)
        if not frozen:
            yield LayerGemm(f"{name}.weight_gradient", replace(of_weights, shape=Shape(n, k, m), batch=batch), count)

    def _gradients(self, weights: WeightFormat) -> tuple[Problem, Problem]:
        """The products of the gradients of inputs and of weights, of some shape.

        Those of FP8 are in the layout nt, the only one that tensor cores of Hopper multiply: engines keep transposed copies.
        """
        types, scale, some = weights.types, weights.scale, Shape(2, 2, 2)
        if types.ab.low_bit_weights or types.ab is ElementType.I8:
            why = f"weights of the format {weights.name} are not trained; give the types of a campaign's block, as in types: bf16"
            raise BadStep(name="training", value=True, why=f"{self.architecture.name}: {why}")
        if types.ab is not ElementType.F8E4M3:
            return Problem(some, types, Layout.NN), Problem(some, types, Layout.TN)
        if scale is Scale.GROUP_BLOCK:
            return Problem(some, types, Layout.NT, scale=scale), Problem(some, types, Layout.NT, scale=Scale.GROUP)
        gradient = training_types(types) or types
        return Problem(some, gradient, Layout.NT, scale=scale), Problem(some, gradient, Layout.NT, scale=scale)

    def _experts(self, experts: Experts) -> Iterator[LayerGemm]:
        sharing, model = self.parallelism, self.architecture.name
        local = divided(experts.experts, sharing.ep, "experts", model, "ep")
        width = divided(experts.intermediate, sharing.of_experts, "columns of an expert", model, "tp / ep")
        groups = self._groups(experts, local)
        if groups is None:
            return
        weights = self._format(experts.weights)
        if weights.scale is Scale.GROUP_BLOCK and sharing.of_experts > 1 and width % _BLOCK:
            # Inference engines refuse it too.
            why = f"a GPU would have {width:,} columns of an expert of {model}, and {_BLOCK} have a common scale factor; raise ep"
            raise BadStep(name="tp / ep", value=sharing.of_experts, why=why)
        for name, n, k in replace(experts, intermediate=width).matrices:
            yield from self._grouped(f"experts.{name}", groups, n, k, weights, experts.count)

    def _groups(self, experts: Experts, local: int) -> Groups | None:
        """The rows of the experts on the first group of GPUs, which has the most of them; None without a row."""
        step, sharing = self.step, self.parallelism
        tokens = step.tokens * sharing.replicas
        if step.routing.exponent is None:
            each, more = divmod(-(-tokens * experts.top_k // sharing.ep), local)
            sizes = tuple(each + (expert < more) for expert in range(local))
        else:
            whole = step.routing.groups(experts=experts.experts, top_k=experts.top_k, tokens=tokens, seed=step.seed)
            parts = [whole.sizes[at : at + local] for at in range(0, experts.experts, local)]
            sizes = max(parts, key=sum)
        return Groups(sizes) if sum(sizes) else None

    def _grouped(
        self, name: str, groups: Groups, n: int, k: int, weights: WeightFormat, count: float
    ) -> Iterator[LayerGemm]:
        rows, types = groups.rows, weights.types
        forward = Problem(Shape(rows, n, k), types, Layout.NT, scale=weights.scale, groups=groups)
        yield LayerGemm(name, forward, count)
        if not self.step.training:
            return
        of_input, of_weights = self._gradients(weights)
        yield LayerGemm(f"{name}.input_gradient", replace(of_input, shape=Shape(rows, k, n), groups=groups), count)
        if not self.step.rank:
            # Groups along k are no problem of the farm: a batch with the mean of their rows stands for them.
            multiple = _EIGHT_BIT_MULTIPLE if of_weights.types.ab.bits == 8 else 1
            mean = -(-rows // groups.active // multiple) * multiple
            problem = replace(of_weights, shape=Shape(n, k, mean), batch=groups.active)
            yield LayerGemm(f"{name}.weight_gradient", problem, count)

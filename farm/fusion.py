"""Operations that a kernel fuses into the product (its epilogue): adding a bias, applying an activation, a gate."""

from __future__ import annotations

from enum import StrEnum

from farm.errors import BadFusion

_GATE = "swiglu"


class Activation(StrEnum):
    """A function that is applied to each element.

    relu(x) = max(x, 0), gelu(x) = x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715·x³))), which is the approximation by tanh that
    cuBLASLt computes, and silu(x) = x / (1 + exp(-x)).
    """

    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"


class Fusion(StrEnum):
    """D = activation(alpha·A·B + beta·C + bias). The bias is a vector of n elements of D's type, added to each row.

    With a gate, the first n/2 columns of P = alpha·A·B + bias are the gate and the last n/2 what it lets through, as in vLLM's
    `silu_and_mul`: D = activation(P[:, :n/2]) ∘ P[:, n/2:] has n/2 columns. `swiglu` is the gate with silu (Shazeer,
    arXiv 2002.05202).
    """

    NONE = "none"
    BIAS = "bias"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    BIAS_RELU = "bias+relu"
    BIAS_GELU = "bias+gelu"
    BIAS_SILU = "bias+silu"
    SWIGLU = "swiglu"
    BIAS_SWIGLU = "bias+swiglu"

    @property
    def bias(self) -> bool:
        """Whether it adds a bias."""
        return self.value.startswith("bias")

    @property
    def gated(self) -> bool:
        """Whether half of the columns is a gate for the other half."""
        return self.value.endswith(_GATE)

    @property
    def activation(self) -> Activation | None:
        """That of each element, or of each element of the gate."""
        last = self.value.rsplit("+", 1)[-1]
        if last == _GATE:
            return Activation.SILU
        return None if last in ("none", "bias") else Activation(last)

    def columns(self, n: int) -> int:
        """How many columns D has, where B has n."""
        return n // 2 if self.gated else n

    @classmethod
    def parse(cls, text: object) -> Fusion:
        """Raises `BadFusion`."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadFusion(value=text, known=", ".join(cls)) from None

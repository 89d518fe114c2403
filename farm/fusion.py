"""Operations that a kernel fuses into the product (its epilogue): adding a bias, applying an activation."""

from __future__ import annotations

from enum import StrEnum

from farm.errors import BadFusion


class Activation(StrEnum):
    """A function that is applied to each element.

    relu(x) = max(x, 0), gelu(x) = x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715·x³))), which is the approximation by tanh that
    cuBLASLt computes, and silu(x) = x / (1 + exp(-x)).
    """

    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"


class Fusion(StrEnum):
    """D = activation(alpha·A·B + beta·C + bias). The bias is a vector of n elements of D's type, added to each row."""

    NONE = "none"
    BIAS = "bias"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    BIAS_RELU = "bias+relu"
    BIAS_GELU = "bias+gelu"
    BIAS_SILU = "bias+silu"

    @property
    def bias(self) -> bool:
        """Whether it adds a bias."""
        return self.value.startswith("bias")

    @property
    def activation(self) -> Activation | None:
        last = self.value.rsplit("+", 1)[-1]
        return None if last in ("none", "bias") else Activation(last)

    @classmethod
    def parse(cls, text: object) -> Fusion:
        """Raises `BadFusion`."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadFusion(value=text, known=", ".join(cls)) from None

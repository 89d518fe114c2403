"""Language models: their layers, and the GEMMs that a step of one of them runs on a GPU.

A language model is a network of layers, such as Llama 3.1 8B. The farm's own models, which predict times, are elsewhere (`farm.registry`).

>>> gemms = layer_gemms(built_in("llama-3.1-8b"), 128, Parallelism(tp=4))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lazy import names_of

if TYPE_CHECKING:
    from farm.language_models.architecture import Architecture, Experts, Linear
    from farm.language_models.built_in import built_in, built_in_names
    from farm.language_models.configuration import parse_configuration, read_configuration
    from farm.language_models.layer_gemm import LayerGemm
    from farm.language_models.steps import Parallelism, Step, layer_gemms

__getattr__ = names_of(__name__)

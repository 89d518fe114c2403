"""How it is computed: kernel families, what each can be asked for, and what is invalid where."""

from farm.kernels.configuration import MEMORY_SHARE, Configuration, Kernel
from farm.kernels.families import FAMILIES, family_named
from farm.kernels.family import KernelFamily, Parameter, Reason, Rule

__all__ = [
    "FAMILIES",
    "MEMORY_SHARE",
    "Configuration",
    "Kernel",
    "KernelFamily",
    "Parameter",
    "Reason",
    "Rule",
    "family_named",
]

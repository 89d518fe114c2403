"""Loading a kernel from a cubin that was built ahead of time."""

from __future__ import annotations

from typing import Any

from farm.builds.record import Built

_MAX_DYNAMIC_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of cuda.h."""

_SHARED_WITHOUT_ASKING = 48 * 1024
"""Dynamic shared memory beyond this must be allowed to a kernel (CUDA C++ Programming Guide, shared memory)."""


def loaded_module(cp: Any, built: Built) -> Any:
    """The module of a binary."""
    module = cp.cuda.function.Module()
    module.load(built.code)
    return module


def kernel_of(cp: Any, module: Any, built: Built, name: str) -> Any:
    """A kernel of the module that may be launched with the shared memory of the record."""
    kernel, shared = module.get_function(name), built.record.shared_bytes
    if shared > _SHARED_WITHOUT_ASKING:
        cp.cuda.driver.funcSetAttribute(kernel.ptr, _MAX_DYNAMIC_SHARED_BYTES, shared)
    return kernel

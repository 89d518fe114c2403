"""Finds mistakes in a definition: in its code, names, expressions and arguments. Everything here is pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farm.errors import BadDefinition
from farm.expressions.tree import BadExpression
from farm.kernels.family import OPEN_NAME
from farm.kernels.own_code import Language, why_bad_code
from farm.kernels.own_expressions import expression, number_or_condition

if TYPE_CHECKING:
    from farm.kernels.definition import Definition

MAX_PARAMETERS, MAX_ARGUMENTS, MAX_REQUIREMENTS, MAX_CONSTANTS = 16, 32, 32, 32

_ENTRY = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)


def check(definition: Definition) -> None:
    """Raises `BadDefinition`."""
    found = {
        "file": why_bad_code(definition.file, definition.code),
        "entry": _why_bad_entry(definition),
        "parameters": _why_bad_names(definition),
    }
    for key, why in found.items():
        if why is not None:
            raise BadDefinition(key=key, why=why)
    _check_expressions(definition)


def _why_bad_entry(definition: Definition) -> str | None:
    if not _ENTRY.fullmatch(definition.entry):
        return (
            f'{definition.entry[:40]!r} is not the name of a kernel; write it as in extern "C" __global__ void my_gemm'
        )
    if not definition.file.endswith(Language.CUBIN) and not re.search(rf"\b{definition.entry}\b", definition.code):
        return f"{definition.file} has no {definition.entry}"
    return None


def _why_bad_names(definition: Definition) -> str | None:
    for name in definition.parameters:
        if not OPEN_NAME.fullmatch(name):
            return f"{name[:40]!r} is not a parameter; use up to 32 upper-case letters, digits and _, as in BM"
    limits = (("parameters", definition.parameters, MAX_PARAMETERS), ("arguments", definition.arguments, MAX_ARGUMENTS),
              ("requires", definition.requires, MAX_REQUIREMENTS), ("constants", definition.constants, MAX_CONSTANTS))  # fmt: skip
    for key, values, limit in limits:
        if len(values) > limit:
            return f"there are {len(values)} {key}; {limit} are the maximum"
    return None


def _check_expressions(definition: Definition) -> None:
    """Checks and reads the bounds, requirements and arguments. Raises `BadDefinition`."""
    _check_keys(definition)
    key = ""
    try:
        for key in definition.bounds_by_key:
            for text in definition.bounds_by_key[key]:
                expression(text, definition.parameters)
        key = "constants"
        for _, text in definition.constants:
            number_or_condition(text, definition.parameters)
        key = "requires"
        for text in definition.requires:
            expression(text, definition.parameters, "truth")
        key = "arguments"
        named = [argument.name for argument in definition.read_arguments]
    except (BadExpression, ValueError) as error:
        raise BadDefinition(key=key, why=str(error)) from None
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise BadDefinition(key="arguments", why=f"{twice} is there twice")
    if "d" not in named:
        raise BadDefinition(key="arguments", why="there is no d, which is what the kernel writes")
    if definition.is_triton:
        _check_signature(definition, named)


def _check_keys(definition: Definition) -> None:
    """Whether the bounds are those of the language. Raises `BadDefinition`."""
    for key in ("grid",) if definition.is_triton else ("grid", "block"):
        if not 1 <= len(getattr(definition, key)) <= 3:
            raise BadDefinition(key=key, why="write one to three expressions, for x, y and z")
    of_triton = {"warps": definition.warps, "stages": definition.stages, "constants": definition.constants}
    given = (
        {"block": definition.block, "shared_bytes": definition.shared_bytes != "0"}
        if definition.is_triton
        else of_triton
    )
    extra = next((key for key, value in given.items() if value), None)
    if extra is not None:
        kind = "Triton knows it; use warps" if definition.is_triton else f"it is for .{Language.TRITON} files alone"
        raise BadDefinition(key=extra, why=f"{definition.file} takes none: {kind}")


def _check_signature(definition: Definition, given: Sequence[str]) -> None:
    """Whether a Triton kernel takes these arguments and constants. Raises `BadDefinition`."""
    taken = definition.triton.functions.get(definition.entry)
    if taken is None:
        others = ", ".join(definition.triton.functions) or "none"
        why = f"{definition.file} has no function {definition.entry} with the decorator triton.jit; it has {others}"
        raise BadDefinition(key="entry", why=why)
    names = [one.name for one in taken if not one.constant]
    if len(names) != len(given):
        why = f"{definition.entry} takes {len(names)} ({', '.join(names)}) as well as its constants, and there are {len(given)}"
        raise BadDefinition(key="arguments", why=why)
    constants, known = dict(definition.constants), {one.name for one in taken if one.constant}
    if unknown := constants.keys() - known:
        why = f"{definition.entry} takes no constant {min(unknown)}; it takes {', '.join(sorted(known)) or 'none'}"
        raise BadDefinition(key="constants", why=why)
    missing = [
        one.name
        for one in taken
        if one.constant and not one.optional and one.name not in (*constants, *definition.parameters)
    ]
    if missing:
        why = f"{definition.entry} takes the constant {missing[0]}; name it in parameters, or give it an expression in constants"
        raise BadDefinition(key="constants", why=why)

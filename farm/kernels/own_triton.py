"""Which binary an own kernel in Triton needs, and what it is launched with. Everything here is pure.

As Triton's own launcher does, integers that are 1 are compiled in, and integers and addresses that are multiples of 16 are said to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farm.errors import BadBinary
from farm.gemm import ElementType, Problem
from farm.kernels.binary import Binary, Template, ordered
from farm.kernels.toolchains import TRITON

if TYPE_CHECKING:
    from farm.kernels.definition import Definition
    from farm.kernels.own_arguments import Argument

TEMPLATE = Template(name="source/triton", path=None, options=(), toolchain=TRITON)
"""Stands for the code of a definition, which the macros name."""

MULTIPLE = 16

_E = ElementType
ELEMENTS: Mapping[ElementType, str] = {
    **{_E.F64: "fp64", _E.F32: "fp32", _E.TF32: "fp32", _E.F16: "fp16", _E.BF16: "bf16"},
    **{_E.F8E4M3: "fp8e4nv", _E.F8E5M2: "fp8e5", _E.I8: "i8", _E.I32: "i32"},
    **dict.fromkeys((_E.I4, _E.F4), "u8"),  # two in a byte
}
"""Triton's names of types in memory."""

_DEFINITION, _CODE, _ARGUMENTS, _CONSTANT = "DEFINITION", "CODE", "ARGUMENTS", "CONSTANT_"
_ADDRESS, _ONE, _ALIGNED = "address_", "_1", f"_{MULTIPLE}"

_KINDS = {
    *(f"{_ADDRESS}{name}" for name in ELEMENTS.values()),
    *ELEMENTS.values(),
    *(f"{whole}{end}" for whole in ("i32", "i64") for end in ("", _ONE, _ALIGNED)),
}
"""The words for types of arguments. A builder takes no others: Triton evaluates some of the text that it takes for a type."""


def why_no_types(problem: Problem) -> str | None:
    """Why Triton has no type for a matrix of the problem; None if it has."""
    types = problem.types
    missing = next((one for one in (types.ab.of_a, types.ab.of_b, types.cd, types.acc) if one not in ELEMENTS), None)
    return None if missing is None else f"Triton has no type for {missing}"


def binary_of(definition: Definition, problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary:
    """The binary for a problem that the definition's rules allow."""
    values = definition.values(problem, parameters)
    kinds = [_kind(argument, problem, values) for argument in definition.read_arguments]
    options = definition.options(problem, parameters)
    constants = definition.constants_of(problem, parameters)
    definitions: dict[str, Any] = {
        _DEFINITION: definition.id,
        _CODE: hashlib.sha256(definition.code.encode()).hexdigest(),
        _ARGUMENTS: ":".join(kinds),
        **{f"{_CONSTANT}{name}": value for name, value in constants.items()},
        **{name.upper(): value for name, value in options.items()},
    }
    said = ", ".join(f"{name}={value}" for name, value in constants.items())
    sizes = f"warps {options['num_warps']} stages {options['num_stages']}"
    label = f"{definition.entry} of {definition.file} for {problem.types} {problem.layout} {said} {sizes} {arch}"
    return Binary(template=TEMPLATE, arch=arch, definitions=ordered(definitions), label=" ".join(label.split()))


def _kind(argument: Argument, problem: Problem, values: Mapping[str, Any]) -> str:
    """An argument's type, as a word of a binary's definitions."""
    types = problem.types
    if (element := argument.element(problem)) is not None:
        return f"{_ADDRESS}{ELEMENTS[element]}"
    if argument.is_scalar:
        return ELEMENTS[types.acc]
    value, whole = values[argument.name], f"i{8 * argument.width}"
    return f"{whole}{_ONE}" if value == 1 else f"{whole}{_ALIGNED}" if value % MULTIPLE == 0 else whole


def launched(definition: Definition, problem: Problem, parameters: Mapping[str, int]) -> list[Argument]:
    """The arguments that a launch gives: all but those that are compiled in."""
    values = definition.values(problem, parameters)
    kinds = [_kind(argument, problem, values) for argument in definition.read_arguments]
    return [one for one, kind in zip(definition.read_arguments, kinds, strict=True) if not kind.endswith(_ONE)]


def definition_in(binary: Binary) -> int | None:
    """The number of the definition whose code the binary is made from; None for the farm's own templates."""
    return int(dict(binary.definitions).get(_DEFINITION, 0)) if binary.template == TEMPLATE else None


def compilation(binary: Binary, definition: Definition | None) -> tuple[str, dict[str, Any]]:
    """The text to compile, and what `triton_program` is given. Raises `BadBinary` where these do not belong together."""
    defined = dict(binary.definitions)
    if definition is None:
        raise BadBinary(why=f"the farm has no definition {defined.get(_DEFINITION)}", binary=binary)
    code = hashlib.sha256(definition.code.encode()).hexdigest()
    taken = definition.triton.functions[definition.entry]
    constants = {
        name.removeprefix(_CONSTANT): value for name, value in binary.definitions if name.startswith(_CONSTANT)
    }
    names, kinds = [one.name for one in taken if not one.constant], defined.get(_ARGUMENTS, "").split(":")
    belongs = code == defined.get(_CODE) and len(kinds) == len(names) and {*kinds} <= _KINDS
    if not belongs or not constants.keys() <= {one.name for one in taken}:
        raise BadBinary(why="it is not of the definition that it names", binary=binary)
    kept = {name: kind for name, kind in zip(names, kinds, strict=True) if not kind.endswith(_ONE)}
    return definition.triton.text, {
        "entry": definition.entry,
        "named": definition.triton.named,
        "signature": {name: _signed(kind) for name, kind in kept.items()},
        "constants": {
            **dict.fromkeys(names - kept.keys(), 1),
            **{name: int(value) for name, value in constants.items()},
        },
        "multiples": [name for name, kind in kept.items() if kind.startswith(_ADDRESS) or kind.endswith(_ALIGNED)],
        "options": {name: int(defined[name.upper()]) for name in ("num_warps", "num_stages")},
    }


def _signed(kind: str) -> str:
    """The type as Triton writes it: `*fp16` for an address."""
    return kind.removesuffix(_ALIGNED) if not kind.startswith(_ADDRESS) else f"*{kind.removeprefix(_ADDRESS)}"

"""A kernel that a user wrote: its source, its entry, and how it is launched. Everything here is pure.

A definition is immutable. The first 52 bits of the SHA-256 of its canonical JSON name it as a whole number, which is the parameter
`definition` of the family `source`. That many bits are exact in a float64, so JSON readers, tables and models keep the number.

A definition is known to this process as long as something holds it: a campaign, or the batch that is measured.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakSet

from farm.devices import DeviceTraits
from farm.errors import BadDefinition
from farm.expressions.python import compile_all, compile_numbers
from farm.expressions.tree import Expression
from farm.gemm import Problem
from farm.kernels import definition_checks, own_triton, triton_files
from farm.kernels.binary import Binary
from farm.kernels.own_arguments import GROUP_OFFSETS, Argument, extents_of
from farm.kernels.own_code import Language
from farm.kernels.own_expressions import PROBLEM_NAMES, expression, number_or_condition, values_of
from farm.kernels.own_launch import MAX_THREADS, WARP, BadLaunch, Launch, check_triton_options, launch_of, whole
from farm.kernels.triton_files import TritonFile

PARAMETER_VALUES = range(-(2**31), 2**31)
"""Values of a parameter, which becomes a macro or an int."""

ID_BITS = 52

FIRST_OF_TRITON = (8, 0)
"""The first compute capability that Triton compiles for tensor cores."""

_KNOWN: dict[int, WeakSet[Definition]] = {}
_LOCK = threading.Lock()


def known(number: int) -> Definition | None:
    """The definition of that number, if something in this process holds it."""
    with _LOCK:
        return next(iter(_KNOWN.get(number, ())), None)


def _make_known(definition: Definition) -> None:
    """Raises `BadDefinition` if another one has its number."""
    with _LOCK:
        for number in [number for number, held in _KNOWN.items() if not held]:
            del _KNOWN[number]
        held = _KNOWN.setdefault(definition.id, WeakSet())
        if any(other.code != definition.code for other in held):
            why = f"another definition has its number, {definition.id}; change a comment in it"
            raise BadDefinition(key="file", why=why)
        held.add(definition)


@dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A kernel that a user wrote. The name of its file is not part of its id."""

    file: str
    code: str = field(repr=False)  # text; of a cubin, base64
    entry: str
    grid: tuple[str, ...]  # up to three expressions
    block: tuple[str, ...]
    shared_bytes: str
    arguments: tuple[str, ...]
    requires: tuple[str, ...]
    parameters: tuple[str, ...]  # their names, in order
    # Of Triton alone, instead of a block and its shared memory: expressions, and constants with an expression each.
    warps: str = ""
    stages: str = ""
    constants: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raises `BadDefinition`."""
        definition_checks.check(self)
        _make_known(self)

    @property
    def language(self) -> Language:
        return Language(self.file.rpartition(".")[2])

    @cached_property
    def id(self) -> int:
        """Its number: from 1 on."""
        text = json.dumps(self._hashed(), sort_keys=True, separators=(",", ":"))
        return int(hashlib.sha256(text.encode()).hexdigest()[: ID_BITS // 4], 16) or 1

    @property
    def binary(self) -> bytes:
        """What the driver loads: of PTX with the zero byte that it needs. Not for CUDA C++."""
        return base64.b64decode(self.code) if self.language is Language.CUBIN else self.code.encode() + b"\0"

    @cached_property
    def triton(self) -> TritonFile:
        """What the code is cut down to. For Triton alone."""
        return triton_files.read(self.code)

    @property
    def is_triton(self) -> bool:
        return self.language is Language.TRITON

    def _hashed(self) -> dict[str, Any]:
        of_triton = {"warps": self.warps, "stages": self.stages, "constants": self.constants} if self.is_triton else {}
        return {
            **{"language": self.language.value, "code": self.code, "entry": self.entry, "grid": self.grid},
            **{"block": self.block, "shared_bytes": self.shared_bytes, "arguments": self.arguments},
            **{"requires": self.requires, "parameters": self.parameters},
            **of_triton,
        }

    def to_json(self) -> dict[str, Any]:
        """See `from_json`."""
        return {name: value for name, value in self._hashed().items() if name != "language"} | {"file": self.file}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Definition:
        """The definition that `to_json` described, perhaps on another host. Raises `BadDefinition`."""
        try:
            texts: dict[str, Any] = {name: str(found[name]) for name in ("file", "code", "entry", "shared_bytes")}
            texts |= {name: str(found.get(name, "")) for name in ("warps", "stages")}
            lists: dict[str, Any] = {
                name: tuple(str(one) for one in found[name])
                for name in ("grid", "block", "arguments", "requires", "parameters")
            }
            lists["constants"] = tuple((str(name), str(text)) for name, text in found.get("constants", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise BadDefinition(key="definition", why=f"it cannot be read: {error!r}") from None
        return cls(**texts, **lists)

    @property
    def bounds_by_key(self) -> dict[str, tuple[str, ...]]:
        """The expressions of a launch, by key."""
        if self.is_triton:
            return {"grid": self.grid, "warps": (self.warps,), "stages": (self.stages,)}
        return {"grid": self.grid, "block": self.block, "shared_bytes": (self.shared_bytes,)}

    @cached_property
    def read_arguments(self) -> tuple[Argument, ...]:
        return tuple(Argument.parse(text, self.parameters) for text in self.arguments)

    # --- launching ----------------------------------------------------------------------------------

    @cached_property
    def _holds(self) -> Sequence[tuple[Expression, Callable[..., bool]]]:
        conditions = [expression(text, self.parameters, "truth") for text in self.requires]
        return [(one, compile_all([one], self._names)) for one in conditions]

    @cached_property
    def _bounds(self) -> Callable[..., tuple[float, ...]]:
        texts = [text for of_key in self.bounds_by_key.values() for text in of_key]
        return compile_numbers([expression(text, self.parameters) for text in texts], self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*PROBLEM_NAMES, *self.parameters)

    def _values(self, problem: Problem, parameters: Mapping[str, int]) -> tuple[Any, ...]:
        return (*values_of(problem), *(parameters[name] for name in self.parameters))

    def values(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, int]:
        """The values of arguments that are whole numbers."""
        return {**extents_of(problem), **{name: parameters[name] for name in self.parameters}}

    def _computed(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The bounds by key. Raises `BadLaunch`."""
        try:
            found = iter(self._bounds(*self._values(problem, parameters)))
        except ArithmeticError as error:
            raise BadLaunch(f"its launch bounds cannot be computed: {error}") from None
        by_key = self.bounds_by_key
        return {key: tuple(whole("launch bound", text, next(found)) for text in texts) for key, texts in by_key.items()}

    def launch(self, problem: Problem, parameters: Mapping[str, int]) -> Launch:
        """The bounds of a launch for that problem. Of Triton, the compiler adds shared memory. Raises `BadLaunch`."""
        found = self._computed(problem, parameters)
        if self.is_triton:
            check_triton_options(*found["warps"], *found["stages"])
            found |= {"block": (WARP * found["warps"][0],), "shared_bytes": (0,)}
        (shared,) = found["shared_bytes"]
        return launch_of(found["grid"], found["block"], shared)

    # --- Triton -------------------------------------------------------------------------------------

    def options(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, int]:
        """Triton's options of a compilation. Raises `BadLaunch`."""
        found = self._computed(problem, parameters)
        return {"num_warps": found["warps"][0], "num_stages": found["stages"][0]}

    @cached_property
    def _constants(self) -> Callable[..., tuple[float, ...]]:
        return compile_numbers([number_or_condition(text, self.parameters) for _, text in self.constants], self._names)

    def constants_of(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, int]:
        """The constants of a compilation by Triton, but those that keep their default. Raises `BadLaunch`."""
        try:
            found = self._constants(*self._values(problem, parameters))
        except ArithmeticError as error:
            raise BadLaunch(f"its constants cannot be computed: {error}") from None
        computed = {
            name: whole("constant", text, value) for (name, text), value in zip(self.constants, found, strict=True)
        }
        taken = [one.name for one in self.triton.functions[self.entry] if one.constant]
        return {name: {**parameters, **computed}[name] for name in taken if name in (*self.parameters, *computed)}

    def binary_for(self, problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary | None:
        """What a builder must have compiled; None for what the card's own compiler or driver takes."""
        if not self.is_triton or self._why_not_computed(problem) is not None:
            return None
        try:
            return own_triton.binary_of(self, problem, parameters, arch)
        except (BadLaunch, KeyError):
            return None

    def _why_not_compiled(self, problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> str | None:
        """Why Triton cannot compile it for a problem that it computes. Raises `BadLaunch`."""
        has = device.compute_capability
        if has is not None and has < FIRST_OF_TRITON:
            return "needs compute capability {}.{} for Triton, the device has {}.{}".format(*FIRST_OF_TRITON, *has)
        self.constants_of(problem, parameters)
        return own_triton.why_no_types(problem)

    # --- rules --------------------------------------------------------------------------------------

    def why_invalid(self, problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> str | None:
        """Why a device with these traits cannot run it for the problem; None if it can."""
        given = set(parameters) - {"definition"}
        if given != set(self.parameters):
            return f"{self.file} has the parameters {', '.join(self.parameters) or 'none'}, not {', '.join(sorted(given)) or 'none'}"
        if (why := self._why_not_computed(problem)) is not None:
            return why
        values = self._values(problem, parameters)
        for condition, holds in self._holds:
            try:
                if not holds(*values):
                    return f"{self.file} requires {condition.text}"
            except ArithmeticError as error:
                return f"{self.file} requires {condition.text}, which cannot be computed: {error}"
        try:
            launch = self.launch(problem, parameters)
            why = self._why_not_compiled(problem, parameters, device) if self.is_triton else None
        except BadLaunch as error:
            return f"{self.file} cannot be launched: {error}"
        if why is not None:
            return f"{self.file}: {why}"
        threads = device.max_threads_per_block or MAX_THREADS
        if launch.threads > threads:
            return f"{self.file} needs {launch.threads:,} threads in a block, the device allows {threads:,}"
        shared = device.shared_memory_per_block_bytes
        if shared is not None and launch.shared_bytes > shared:
            return f"{self.file} needs {launch.shared_bytes:,} bytes of shared memory, the device has {shared:,}"
        return None

    def _why_not_computed(self, problem: Problem) -> str | None:
        """Why a kernel with these arguments cannot compute the problem: it is not given what it would need."""
        named = {argument.name for argument in self.read_arguments}
        if problem.alpha != 1 and "alpha" not in named:
            return f"{self.file} takes no alpha, so alpha must be 1"
        if problem.beta and not {"beta", "c"} <= named:
            return f"{self.file} takes no {'beta' if 'c' in named else 'c'}, so beta must be 0"
        required = frozenset[str]().union(*(one.names for one, _ in self._holds))
        for key, value in (("scale", problem.scale), ("fused", problem.fused)):
            if value != "none" and key not in required:
                return f"{self.file} does not name {key} in requires, so {key} must be none"
        needed = {"bias"} if problem.fused.bias else set[str]()
        needed |= {"scale_a"} if problem.scale.of_a else set()
        needed |= {"scale_b"} if problem.scale.of_b else set()
        if not needed <= named:
            return f"{self.file} takes no {' and no '.join(sorted(needed - named))}"
        batched = "batch" in named or any(re.search(r"\bbatch\b", bound) for bound in (*self.grid, *self.block))
        if problem.batch != 1 and not batched:
            return f"{self.file} does not name batch in its grid or arguments, so batch must be 1"
        if problem.groups is not None and GROUP_OFFSETS not in named:
            return f"{self.file} takes no {GROUP_OFFSETS}, so it computes no groups"
        return None

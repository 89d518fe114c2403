"""A kernel that a user wrote: its source, its entry, and how it is launched. Everything here is pure.

A definition is immutable. The first 52 bits of the SHA-256 of its canonical JSON name it as a whole number, which is the parameter
`definition` of the family `source`. That many bits are exact in a float64, so JSON readers, tables and models keep the number.

A definition is known to this process as long as something holds it: a campaign, or the batch that is measured.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any
from weakref import WeakSet

from farm.devices import DeviceTraits
from farm.errors import BadDefinition
from farm.expressions import parser
from farm.expressions.parser import Vocabulary
from farm.expressions.python import compile_all, compile_numbers
from farm.expressions.tree import BadExpression, Expression, Kind
from farm.fusion import Fusion
from farm.gemm import INPUT_TYPES, MAX_EXTENT, OUTPUT_TYPES, ElementType, Layout, Problem
from farm.kernels import own_triton, triton_files
from farm.kernels.binary import Binary
from farm.kernels.family import OPEN_NAME
from farm.kernels.triton_files import TritonFile
from farm.scale import Scale

MAX_CODE_BYTES, MAX_TRITON_BYTES = 2**20, 2**18
"""Length of a source or binary. Reading a Triton file takes 8 s for each MiB at worst."""

MAX_PARAMETERS, MAX_ARGUMENTS, MAX_REQUIREMENTS, MAX_CONSTANTS = 16, 32, 32, 32

PARAMETER_VALUES = range(-(2**31), 2**31)
"""Values of a parameter, which becomes a macro or an int."""

ID_BITS = 52

_ENTRY = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)

PROBLEM_NUMBERS = ("m", "n", "k", "alpha", "beta", "batch", "groups")
_PROBLEM_WORDS: Mapping[str, tuple[str, ...]] = {
    "layout": tuple(Layout),
    "ab": INPUT_TYPES,
    "cd": OUTPUT_TYPES,
    "acc": OUTPUT_TYPES,
    "scale": tuple(Scale),
    "fused": tuple(Fusion),
}
_PROBLEM_NAMES = (*PROBLEM_NUMBERS, *_PROBLEM_WORDS)

MATRICES, ADDED = ("a", "b", "c", "d"), ("scale_a", "scale_b", "bias")
STRIDES = tuple(f"stride_{pair}" for pair in ("am", "ak", "bk", "bn", "cm", "cn", "dm", "dn"))
GROUP_OFFSETS = "group_offsets"
POINTERS, SCALARS, EXTENTS = (
    (*MATRICES, *ADDED, GROUP_OFFSETS),
    ("alpha", "beta"),
    ("m", "n", "k", "batch", "groups", *STRIDES),
)
"""Arguments by kind: addresses, numbers of the accumulator's type, and whole numbers.

`stride_ak` is the distance in elements from an element of A to the next one along k. `group_offsets` has the first row of each group, and
m at its end.
"""

WIDTHS: Mapping[str, int] = {"i32": 4, "i64": 8}
"""Bytes of a whole number as an argument; the first is the default."""


class Language(StrEnum):
    """What a definition's code is; the suffix of its file says it."""

    CUDA = "cu"
    PTX = "ptx"
    CUBIN = "cubin"
    TRITON = "py"


_DIRECTIVE = re.compile(
    r"(?:\#|%:|\?\?=)(?:\s|/\*.*?\*/)*(?:include_next|include|import|embed)\b(?P<what>[^\n]*)", re.DOTALL
)
_HEADER = re.compile(r"\s*<(?![/.])(?!\S*\.\.)[\w./-]+>\s*(?://.*|/\*.*)?")
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\r\f\v]*\n")


def why_not_compilable(code: str) -> str | None:
    """Why a CUDA C++ source must not reach the compiler of a worker: it could read files there. None if it may.

    An error message of the compiler would show lines of a file that is included. Headers of CUDA are allowed, by their names in
    angle brackets. What looks like a directive inside a comment counts as one.
    """
    text = _SPLICE.sub("", code.replace("\r\n", "\n").replace("\r", "\n"))
    for found in _DIRECTIVE.finditer(text):
        if not _HEADER.fullmatch(found["what"]):
            line = code[: found.start()].count("\n") + 1
            what = " ".join(found.group().split())[:60]
            return f"line {line}: {what!r} is not allowed; only headers of CUDA are, as in #include <cuda_fp16.h>"
    for word in ("__has_include", "__has_embed", "\\u", "\\U"):
        if word in text:
            return f"{word} is not allowed; remove it"
    return None


def why_bad_code(file: str, code: str) -> str | None:
    """Why a definition cannot have that code; None if it can. Of a cubin, the code is base64."""
    language = file.rpartition(".")[2]
    if language not in tuple(Language):
        return f"{file!r} is no {', '.join(f'.{one}' for one in Language)} file"
    if not code.strip():
        return f"{file} is empty"
    if "\0" in code:
        return f"{file} has a zero byte"
    content = code.encode()
    if language == Language.CUBIN:
        try:
            content = base64.b64decode(code, validate=True)
        except (binascii.Error, ValueError):
            return f"{file} is not base64, as cubins are sent"
        if content[:4] != b"\x7fELF":
            return f"{file} is no cubin: it does not begin as an ELF file"
    allowed = MAX_TRITON_BYTES if language == Language.TRITON else MAX_CODE_BYTES
    if len(content) > allowed:
        return f"{file} is larger than {allowed // 2**10:,} KiB"
    why = None
    if language == Language.CUDA:
        why = why_not_compilable(code)
    elif language == Language.TRITON:
        try:
            triton_files.read(code)
        except triton_files.NotAllowed as error:
            why = str(error)
    return None if why is None else f"{file}: {why}"


def _groups_of(problem: Problem) -> int:
    return 1 if problem.groups is None else len(problem.groups.sizes)


def extents_of(problem: Problem) -> dict[str, int]:
    """The values of the arguments `EXTENTS`."""
    s, layout = problem.shape, problem.layout
    a = (1, s.m) if layout.a_transposed else (s.k, 1)
    b = (1, s.k) if layout.b_transposed else (s.n, 1)
    d = (problem.columns_of_d, 1)
    return dict(zip(EXTENTS, (s.m, s.n, s.k, problem.batch, _groups_of(problem), *a, *b, *d, *d), strict=True))


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the kernel."""

    name: str
    width: int = 4  # bytes of a whole number

    @classmethod
    def parse(cls, written: object, parameters: Sequence[str]) -> Argument:
        """Reads `a`, `m` or `m:i64`. Raises `ValueError`."""
        text = str(written).strip() if isinstance(written, str) else str(written)
        name, colon, width = text.partition(":")
        numbers = (*EXTENTS, *parameters)
        if name not in (*POINTERS, *SCALARS, *numbers):
            known = ", ".join((*POINTERS, *SCALARS, *numbers))
            raise ValueError(f"there is no argument {text[:40]!r}; use {known}")
        if colon and (name not in numbers or width not in WIDTHS):
            what = f"a width is {' or '.join(WIDTHS)}" if name in numbers else f"{name} has no width; write {name}"
            raise ValueError(f"{text[:40]!r} is not an argument; {what}")
        return cls(name, WIDTHS[width] if colon else next(iter(WIDTHS.values())))

    @property
    def is_scalar(self) -> bool:
        """Whether it is a number of the accumulator's type."""
        return self.name in SCALARS

    def element(self, problem: Problem) -> ElementType | None:
        """What an address is of; None for a number."""
        types = problem.types
        if self.name not in POINTERS:
            return None
        factor = problem.factor_type
        inputs = {
            "a": types.ab.of_a,
            "b": types.ab.of_b,
            "scale_a": factor,
            "scale_b": factor,
            GROUP_OFFSETS: ElementType.I32,
        }
        return inputs.get(self.name, types.cd)

    def __str__(self) -> str:
        numbers = self.name not in (*POINTERS, *SCALARS)
        return f"{self.name}:i64" if numbers and self.width == WIDTHS["i64"] else self.name


@dataclass(frozen=True, slots=True)
class Launch:
    """The bounds of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int

    @property
    def blocks(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z


class BadLaunch(ValueError):
    """Why a launch has no valid bounds."""


_MAX_GRID, _MAX_BLOCK = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64)
_MAX_THREADS = 1024
"""CUDA C++ Programming Guide, technical specifications: the same for every compute capability."""

WARP = 32
_MAX_WARPS, _MAX_STAGES = 32, 16

FIRST_OF_TRITON = (8, 0)
"""The first compute capability that Triton compiles for tensor cores."""


def expression(written: object, parameters: Sequence[str], kind: Kind = "number") -> Expression:
    """A bound, or with `truth` a requirement. Raises `BadExpression`."""
    if not isinstance(written, (str, int, float)):
        raise BadExpression("an expression is text such as ceil(n / BN); put it in quotes if YAML splits it")
    vocabulary = Vocabulary(
        kinds={**dict.fromkeys((*PROBLEM_NUMBERS, *parameters), "number"), **dict.fromkeys(_PROBLEM_WORDS, "word")},
        words=_PROBLEM_WORDS,
        noun="name",
        listing=f"Names: {', '.join(_PROBLEM_NAMES)}. Parameters: {', '.join(parameters) or 'none'}",
        functions=("min", "max", "abs", "ceil"),
        instead={},
    )
    return parser.parse(str(written), vocabulary, kind)


def number_or_condition(written: object, parameters: Sequence[str]) -> Expression:
    """A constant of Triton: a number, or a condition, which is 1 or 0. Raises `BadExpression`."""
    try:
        return expression(written, parameters)
    except BadExpression:
        return expression(written, parameters, "truth")


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
        found = {
            "file": why_bad_code(self.file, self.code),
            "entry": self._why_bad_entry(),
            "parameters": self._why_bad_names(),
        }
        for key, why in found.items():
            if why is not None:
                raise BadDefinition(key=key, why=why)
        self._check_expressions()
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

    # --- checks -------------------------------------------------------------------------------------

    def _why_bad_entry(self) -> str | None:
        if not _ENTRY.fullmatch(self.entry):
            return f'{self.entry[:40]!r} is not the name of a kernel; write it as in extern "C" __global__ void my_gemm'
        if not self.file.endswith(Language.CUBIN) and not re.search(rf"\b{self.entry}\b", self.code):
            return f"{self.file} has no {self.entry}"
        return None

    def _why_bad_names(self) -> str | None:
        for name in self.parameters:
            if not OPEN_NAME.fullmatch(name):
                return f"{name[:40]!r} is not a parameter; use up to 32 upper-case letters, digits and _, as in BM"
        limits = (("parameters", self.parameters, MAX_PARAMETERS), ("arguments", self.arguments, MAX_ARGUMENTS),
                  ("requires", self.requires, MAX_REQUIREMENTS), ("constants", self.constants, MAX_CONSTANTS))  # fmt: skip
        for key, values, limit in limits:
            if len(values) > limit:
                return f"there are {len(values)} {key}; {limit} are the maximum"
        return None

    def _check_expressions(self) -> None:
        """Checks and reads the bounds, requirements and arguments. Raises `BadDefinition`."""
        self._check_keys()
        key = ""
        try:
            for key in self._bounds_by_key:
                for text in self._bounds_by_key[key]:
                    expression(text, self.parameters)
            key = "constants"
            for _, text in self.constants:
                number_or_condition(text, self.parameters)
            key = "requires"
            for text in self.requires:
                expression(text, self.parameters, "truth")
            key = "arguments"
            named = [argument.name for argument in self.read_arguments]
        except (BadExpression, ValueError) as error:
            raise BadDefinition(key=key, why=str(error)) from None
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise BadDefinition(key="arguments", why=f"{twice} is there twice")
        if "d" not in named:
            raise BadDefinition(key="arguments", why="there is no d, which is what the kernel writes")
        if self.is_triton:
            self._check_signature(named)

    def _check_keys(self) -> None:
        """Whether the bounds are those of the language. Raises `BadDefinition`."""
        for key in ("grid",) if self.is_triton else ("grid", "block"):
            if not 1 <= len(getattr(self, key)) <= 3:
                raise BadDefinition(key=key, why="write one to three expressions, for x, y and z")
        of_triton = {"warps": self.warps, "stages": self.stages, "constants": self.constants}
        given = {"block": self.block, "shared_bytes": self.shared_bytes != "0"} if self.is_triton else of_triton
        extra = next((key for key, value in given.items() if value), None)
        if extra is not None:
            kind = "Triton knows it; use warps" if self.is_triton else f"it is for .{Language.TRITON} files alone"
            raise BadDefinition(key=extra, why=f"{self.file} takes none: {kind}")

    def _check_signature(self, given: Sequence[str]) -> None:
        """Whether a Triton kernel takes these arguments and constants. Raises `BadDefinition`."""
        taken = self.triton.functions.get(self.entry)
        if taken is None:
            others = ", ".join(self.triton.functions) or "none"
            why = f"{self.file} has no function {self.entry} with the decorator triton.jit; it has {others}"
            raise BadDefinition(key="entry", why=why)
        names = [one.name for one in taken if not one.constant]
        if len(names) != len(given):
            why = f"{self.entry} takes {len(names)} ({', '.join(names)}) as well as its constants, and there are {len(given)}"
            raise BadDefinition(key="arguments", why=why)
        constants, known = dict(self.constants), {one.name for one in taken if one.constant}
        if unknown := constants.keys() - known:
            why = f"{self.entry} takes no constant {min(unknown)}; it takes {', '.join(sorted(known)) or 'none'}"
            raise BadDefinition(key="constants", why=why)
        missing = [
            one.name
            for one in taken
            if one.constant and not one.optional and one.name not in (*constants, *self.parameters)
        ]
        if missing:
            why = f"{self.entry} takes the constant {missing[0]}; name it in parameters, or give it an expression in constants"
            raise BadDefinition(key="constants", why=why)

    @property
    def _bounds_by_key(self) -> dict[str, tuple[str, ...]]:
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
        texts = [text for of_key in self._bounds_by_key.values() for text in of_key]
        return compile_numbers([expression(text, self.parameters) for text in texts], self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*_PROBLEM_NAMES, *self.parameters)

    def _values(self, problem: Problem, parameters: Mapping[str, int]) -> tuple[Any, ...]:
        p, s, t = problem, problem.shape, problem.types
        of_problem = (
            s.m,
            s.n,
            s.k,
            p.alpha,
            p.beta,
            p.batch,
            _groups_of(p),
            p.layout,
            t.ab,
            t.cd,
            t.acc,
            p.scale,
            p.fused,
        )
        return (*of_problem, *(parameters[name] for name in self.parameters))

    def values(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, int]:
        """The values of arguments that are whole numbers."""
        return {**extents_of(problem), **{name: parameters[name] for name in self.parameters}}

    def _computed(self, problem: Problem, parameters: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The bounds by key. Raises `BadLaunch`."""
        try:
            found = iter(self._bounds(*self._values(problem, parameters)))
        except ArithmeticError as error:
            raise BadLaunch(f"its launch bounds cannot be computed: {error}") from None
        by_key = self._bounds_by_key
        return {
            key: tuple(_whole("launch bound", text, next(found)) for text in texts) for key, texts in by_key.items()
        }

    def launch(self, problem: Problem, parameters: Mapping[str, int]) -> Launch:
        """The bounds of a launch for that problem. Of Triton, the compiler adds shared memory. Raises `BadLaunch`."""
        found = self._computed(problem, parameters)
        if self.is_triton:
            self._check_options(*found["warps"], *found["stages"])
            found |= {"block": (WARP * found["warps"][0],), "shared_bytes": (0,)}
        grid, block, (shared,) = found["grid"], found["block"], found["shared_bytes"]
        for key, bounds, limits in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
            for axis, bound, limit in zip("xyz", bounds, limits, strict=False):
                if not 1 <= bound <= limit:
                    raise BadLaunch(f"its {key} has {_shown(bound)} along {axis}, and CUDA takes 1 to {limit:,}")
        if not 0 <= shared <= MAX_EXTENT:
            raise BadLaunch(f"its shared_bytes are {_shown(shared)}")
        return Launch(_three(grid), _three(block), shared)

    # --- Triton -------------------------------------------------------------------------------------

    def _check_options(self, warps: int, stages: int) -> None:
        """Raises `BadLaunch`."""
        if not (1 <= warps <= _MAX_WARPS and warps & (warps - 1) == 0):
            raise BadLaunch(f"its warps are {_shown(warps)}, and Triton takes 1, 2, 4, 8, 16 or {_MAX_WARPS}")
        if not 1 <= stages <= _MAX_STAGES:
            raise BadLaunch(f"its stages are {_shown(stages)}; use 1 to {_MAX_STAGES}")

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
            name: _whole("constant", text, value) for (name, text), value in zip(self.constants, found, strict=True)
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
        threads = device.max_threads_per_block or _MAX_THREADS
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


def _shown(bound: int) -> str:
    return f"{bound:,}" if abs(bound) < 10**18 else f"a number of {bound.bit_length()} bits"


def _whole(what: str, text: str, value: float) -> int:
    """Raises `BadLaunch`."""
    if not (isinstance(value, int) or value.is_integer()):
        raise BadLaunch(f"its {what} {text!r} is {value:g}, which is not a whole number")
    return int(value)


def _three(bounds: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*bounds, 1, 1)[:3]
    return x, y, z

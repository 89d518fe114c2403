"""How it is computed: kernel families, what each can be asked for, and what is invalid where.

A kernel is a family and values for its parameters. A configuration is a problem with a kernel. Its canonical form
is one line of text, which people can read and type; the hash of that line names the configuration everywhere.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadConfiguration, BadKernelParameter, FarmError, UnknownFamily
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape

MEMORY_SHARE = 0.9
"""The share of a device's memory that one operand set may take; the rest is for the context and the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One integer that a family can be asked for."""

    name: str
    smallest: int
    largest: int
    default: int
    meaning: str

    def why_bad(self, value: object) -> str | None:
        if type(value) is not int:
            return f"{self.name} is a whole number"
        if not self.smallest <= value <= self.largest:
            return f"{self.name} goes from {self.smallest} to {self.largest}"
        return None


Reason = str | None
Rule = Callable[[Problem, Mapping[str, int], DeviceTraits], Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """A way to compute a GEMM: its parameter space, and rules that say why a device cannot run a configuration."""

    name: str
    kind: DeviceKind
    meaning: str
    parameters: tuple[Parameter, ...] = ()
    rules: tuple[Rule, ...] = ()
    # None where this version measures the family; otherwise why it cannot yet.
    unmeasurable: Reason = None

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        known = ", ".join(p.name for p in self.parameters) or "none"
        raise BadKernelParameter(family=self.name, name=name, value="…", why=f"its parameters are: {known}")


def _same_types(*allowed: ElementType) -> Rule:
    def rule(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
        t = problem.types
        if t.ab in allowed and t.ab == t.cd == t.acc:
            return None
        return f"computes only {' and '.join(allowed)}, the same for inputs, output and accumulator, not {t}"

    return rule


def _plain_product(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.alpha == 1 and problem.beta == 0:
        return None
    return "computes A·B alone (it is NumPy's matmul): alpha must be 1 and beta 0"


def _threads_exist(_: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    if device.threads is None or parameters["threads"] <= device.threads:
        return None
    return f"needs {parameters['threads']} threads, the device has {device.threads}"


def _tile_fits(problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    tile = parameters["tile"]
    threads, shared = tile * tile, 2 * tile * tile * problem.types.ab.bytes
    if device.max_threads_per_block is not None and threads > device.max_threads_per_block:
        return f"needs {threads} threads in a block, the device allows {device.max_threads_per_block}"
    if device.shared_memory_per_block_bytes is not None and shared > device.shared_memory_per_block_bytes:
        return f"needs {shared} bytes of shared memory, the device has {device.shared_memory_per_block_bytes}"
    return None


_E = ElementType
_OUTPUTS_OF_8BIT = ((_E.BF16, _E.F32), (_E.F16, _E.F32), (_E.F32, _E.F32))
_CUBLASLT_TYPES: Mapping[ElementType, tuple[tuple[ElementType, ElementType], ...]] = {
    _E.F64: ((_E.F64, _E.F64),),
    _E.F32: ((_E.F32, _E.F32),),
    _E.TF32: ((_E.F32, _E.F32),),
    _E.F16: ((_E.F16, _E.F32), (_E.F32, _E.F32), (_E.F16, _E.F16)),
    _E.BF16: ((_E.BF16, _E.F32), (_E.F32, _E.F32)),
    _E.F8E4M3: _OUTPUTS_OF_8BIT,
    _E.F8E4M3E5M2: _OUTPUTS_OF_8BIT,
    _E.F8E5M2E4M3: _OUTPUTS_OF_8BIT,
    _E.F8E5M2: (),
    _E.I8: ((_E.I32, _E.I32),),
}
"""For each input type the outputs and accumulators that go with it: cuBLAS documentation, cublasLtMatmul()."""

_EIGHT_BIT_FLOATS = (_E.F8E4M3, _E.F8E5M2, _E.F8E4M3E5M2, _E.F8E5M2E4M3)
_FIRST_CAPABILITY = {_E.TF32: (8, 0), _E.BF16: (8, 0), **dict.fromkeys(_EIGHT_BIT_FLOATS, (8, 9))}
_CUBLASLT_8BIT_MULTIPLE = 16


def _cublaslt_types(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    t = problem.types
    if t.ab is _E.F8E5M2:
        return "multiplies f8e5m2 by f8e4m3 only (f8e5m2e4m3 and f8e4m3e5m2), not by f8e5m2"
    known = _CUBLASLT_TYPES[t.ab]
    if (t.cd, t.acc) in known:
        return None
    return f"computes {' or '.join(f'{t.ab}:{cd}:{acc}' for cd, acc in known)}, not {t}"


def _whole_scalars(problem: Problem, _: Mapping[str, int], __: DeviceTraits) -> Reason:
    if problem.types.acc is not _E.I32 or (problem.alpha.is_integer() and problem.beta.is_integer()):
        return None
    return f"scales i32 by whole numbers only, not by alpha={problem.alpha:g} and beta={problem.beta:g}"


def _tensor_types_exist(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    first, has = _FIRST_CAPABILITY.get(problem.types.ab), device.compute_capability
    if first is None or has is None or has >= first:
        return None
    return f"needs compute capability {first[0]}.{first[1]} for {problem.types.ab}, the device has {has[0]}.{has[1]}"


def _cublaslt_8bit(problem: Problem, _: Mapping[str, int], device: DeviceTraits) -> Reason:
    ab = problem.types.ab
    if ab not in _EIGHT_BIT_FLOATS:
        return None
    has, s = device.compute_capability, problem.shape
    if problem.layout is not Layout.NT and has is not None and has[0] in (8, 9, 12):
        return f"multiplies {ab} in layout nt only on compute capability {has[0]}.{has[1]}, not {problem.layout}"
    if s.n % _CUBLASLT_8BIT_MULTIPLE or s.k % _CUBLASLT_8BIT_MULTIPLE:
        return f"needs n and k to be multiples of {_CUBLASLT_8BIT_MULTIPLE} for {ab}, not {s}"
    return None


FAMILIES: Mapping[str, KernelFamily] = {
    family.name: family
    for family in (
        KernelFamily(
            name="blas",
            kind=DeviceKind.CPU,
            meaning="the machine's BLAS through NumPy",
            parameters=(Parameter(name="threads", smallest=1, largest=4096, default=1, meaning="BLAS threads"),),
            rules=(_same_types(ElementType.F32, ElementType.F64), _plain_product, _threads_exist),
        ),
        KernelFamily(
            name="tiled",
            kind=DeviceKind.CUDA,
            meaning="the paper's shared-memory kernel: one thread per element of a tile x tile block of C",
            parameters=(Parameter(name="tile", smallest=1, largest=32, default=16, meaning="edge of a tile"),),
            rules=(_same_types(ElementType.F32, ElementType.F64), _tile_fits),
        ),
        KernelFamily(
            name="cublaslt",
            kind=DeviceKind.CUDA,
            meaning="the vendor's library, its own heuristic choice or its n-th algorithm",
            parameters=(
                Parameter(name="algorithm", smallest=0, largest=255, default=0, meaning="rank in the heuristic's list"),
            ),
            rules=(_cublaslt_types, _whole_scalars, _tensor_types_exist, _cublaslt_8bit),
        ),
        KernelFamily(
            name="cutlass",
            kind=DeviceKind.CUDA,
            meaning="CUTLASS kernels built ahead of time",
            parameters=(
                Parameter(name="tile_m", smallest=8, largest=512, default=128, meaning="threadblock rows of C"),
                Parameter(name="tile_n", smallest=8, largest=512, default=128, meaning="threadblock columns of C"),
                Parameter(name="tile_k", smallest=4, largest=256, default=32, meaning="K step of a threadblock"),
                Parameter(name="warp_m", smallest=8, largest=256, default=64, meaning="warp rows of C"),
                Parameter(name="warp_n", smallest=8, largest=256, default=64, meaning="warp columns of C"),
                Parameter(name="stages", smallest=2, largest=10, default=3, meaning="pipeline stages"),
                Parameter(name="swizzle", smallest=1, largest=8, default=1, meaning="threadblock swizzle"),
                Parameter(name="split_k", smallest=1, largest=64, default=1, meaning="slices of K"),
            ),
            unmeasurable="this version of the farm cannot measure cutlass yet",
        ),
    )
}


def family_named(name: object) -> KernelFamily:
    """The family of that name. Raises `UnknownFamily`."""
    family = FAMILIES.get(str(name))
    if family is None:
        raise UnknownFamily(value=name, known=", ".join(FAMILIES))
    return family


@dataclass(frozen=True, slots=True)
class Kernel:
    """A family with a value for each of its parameters; those left out take their defaults."""

    family: str
    parameters: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, family: str, **given: int) -> Kernel:
        """Checks and completes the parameters. Raises `UnknownFamily`, `BadKernelParameter`."""
        space = family_named(family)
        for name, value in given.items():
            why = space.parameter(name).why_bad(value)
            if why is not None:
                raise BadKernelParameter(family=family, name=name, value=value, why=why)
        values = {p.name: given.get(p.name, p.default) for p in space.parameters}
        return cls(family, tuple(sorted(values.items())))

    def __str__(self) -> str:
        return f"{self.family}({','.join(f'{n}={v}' for n, v in self.parameters)})"


def _number(value: float) -> str:
    """The shortest text that reads back as the same float, without a trailing .0."""
    return repr(value).removesuffix(".0")


_CANONICAL = re.compile(
    r"(?P<family>\w+)\((?P<parameters>[^)]*)\)\s+(?P<shape>\S+)\s+(?P<types>\S+)"
    r"(?:\s+(?P<layout>[a-z]{2}))?(?:\s+alpha=(?P<alpha>\S+))?(?:\s+beta=(?P<beta>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A problem and the kernel that computes it: what one job measures."""

    problem: Problem
    kernel: Kernel
    canonical: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        p = self.problem
        text = f"{self.kernel} {p.shape} {p.types} {p.layout} alpha={_number(p.alpha)} beta={_number(p.beta)}"
        object.__setattr__(self, "canonical", text)

    def __str__(self) -> str:
        return self.canonical

    @property
    def id(self) -> uuid.UUID:
        """The first 128 bits of the SHA-256 of the canonical form."""
        return uuid.UUID(bytes=hashlib.sha256(self.canonical.encode()).digest()[:16])

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Reads a canonical form; layout, alpha and beta may be left out. Raises `BadInput`."""
        found = _CANONICAL.fullmatch(text.strip())
        if found is None:
            raise BadConfiguration(value=text, why="it does not have that form")
        try:
            pairs = (p.split("=", 1) for p in found["parameters"].replace(" ", "").split(",") if p)
            kernel = Kernel.of(found["family"], **{name: int(value) for name, value in pairs})
            problem = Problem(
                Shape.parse(found["shape"]),
                ElementTypes.parse(found["types"]),
                Layout.parse(found["layout"] or "nn"),
                float(found["alpha"] or 1),
                float(found["beta"] or 0),
            )
        except FarmError:
            raise
        except (ValueError, TypeError) as error:
            raise BadConfiguration(value=text, why=str(error)) from None
        return cls(problem, kernel)

    @classmethod
    def from_columns(cls, row: Mapping[str, Any]) -> Configuration:
        """Rebuilds a configuration from the columns m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters."""
        types = ElementTypes(ElementType(row["ab"]), ElementType(row["cd"]), ElementType(row["acc"]))
        shape = Shape(int(row["m"]), int(row["n"]), int(row["k"]))
        problem = Problem(shape, types, Layout(row["layout"]), float(row["alpha"]), float(row["beta"]))
        return cls(problem, Kernel.of(row["family"], **row["parameters"]))

    def columns(self) -> dict[str, Any]:
        """The columns that `from_columns` reads."""
        p, s, types = self.problem, self.problem.shape, self.problem.types
        return {
            **{"m": s.m, "n": s.n, "k": s.k},
            **{"ab": types.ab.value, "cd": types.cd.value, "acc": types.acc.value, "layout": p.layout.value},
            **{"alpha": p.alpha, "beta": p.beta, "family": self.kernel.family},
            "parameters": dict(self.kernel.parameters),
        }

    def why_invalid(self, device: DeviceTraits) -> Reason:
        """Why a device with these traits cannot run this configuration, or None where it can."""
        family = FAMILIES[self.kernel.family]
        if family.kind is not device.kind:
            return f"{family.name} runs on {family.kind} devices, this is a {device.kind} device"
        if family.unmeasurable is not None:
            return family.unmeasurable
        parameters = dict(self.kernel.parameters)
        for rule in family.rules:
            reason = rule(self.problem, parameters, device)
            if reason is not None:
                return f"{family.name} {reason}"
        need, have = self.problem.operand_bytes, int(device.memory_bytes * MEMORY_SHARE)
        if need > have:
            return f"its operands take {need:,} bytes, the device has {have:,} for them"
        return None

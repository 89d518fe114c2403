"""A kernel is a family and values for its parameters. A configuration is a problem with a kernel.

The canonical form of a configuration is one line of text, which people can read and type; the hash of that line names
the configuration everywhere.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.devices import DeviceTraits
from farm.errors import BadBatch, BadConfiguration, BadKernelParameter, BadProblem, FarmError
from farm.fusion import Fusion
from farm.gemm import ADDED_COLUMNS, MAX_EXTENT, ElementType, ElementTypes, Layout, Problem, Shape, number_text
from farm.groups import NONE, Groups
from farm.kernels.binary import Binary, architecture_of
from farm.kernels.families import FAMILIES, family_named
from farm.kernels.family import Reason
from farm.scale import Scale
from farm.sparsity import Sparsity

MEMORY_SHARE = 0.9
"""The share of a device's memory that one operand set may take; the rest is for the context and the reference."""


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
        values = {**{p.name: p.default for p in space.parameters}, **given}
        return cls(family, tuple(sorted(values.items())))

    def __str__(self) -> str:
        return f"{self.family}({','.join(f'{n}={v}' for n, v in self.parameters)})"


def _whole(family: str, name: str, value: str) -> int:
    """The value of a parameter from its text. Raises `BadKernelParameter`."""
    try:
        return int(value)
    except ValueError:
        raise BadKernelParameter(family=family, name=name, value=value, why=f"{name} is a whole number") from None


def _batch(text: str) -> int:
    """The batch from its text. Raises `BadBatch`."""
    try:
        return int(text)
    except ValueError:
        raise BadBatch(value=text, largest=MAX_EXTENT) from None


_CANONICAL = re.compile(r"(?P<family>\w+)\((?P<parameters>[^)]*)\)\s+(?P<problem>\S.*)", re.DOTALL)
_PROBLEM = re.compile(r"(?P<shape>\S+)\s+(?P<types>\S+)(?:\s+(?P<layout>[a-z]{2}))?(?P<rest>(?:\s+[a-z]+=\S+)*)")
_NAMED = ("alpha", "beta", *ADDED_COLUMNS)
"""What follows the layout, as `name=value`."""


def _named(rest: str) -> dict[str, str]:
    """The values by name. Raises `ValueError`."""
    pairs = [pair.split("=", 1) for pair in rest.split()]
    for name, _ in pairs:
        if name not in _NAMED:
            raise ValueError(f"there is no {name!r}; use {', '.join(_NAMED)}")
        if sum(name == other for other, _ in pairs) > 1:
            raise ValueError(f"{name} is there twice")
    return dict(pairs)


def problem_line(problem: Problem, *, scalars: bool = True) -> str:
    """A problem as one line of text: what follows the kernel in the canonical form of a configuration.

    Args:
        problem: What to write.
        scalars: Whether alpha and beta are there where they are 1 and 0.
    """
    p = problem
    text = f"{p.shape} {p.types} {p.layout}"
    if scalars or p.alpha != 1:
        text += f" alpha={number_text(p.alpha)}"
    if scalars or p.beta:
        text += f" beta={number_text(p.beta)}"
    # Without what is not there, so that configurations of before keep their ids.
    if p.batch != 1:
        text += f" batch={p.batch}"
    if p.scale is not Scale.NONE:
        text += f" scale={p.scale}"
    if p.fused is not Fusion.NONE:
        text += f" fused={p.fused}"
    if p.groups is not None:
        text += f" groups={p.groups}"
    if p.sparsity is not Sparsity.NONE:
        text += f" sparsity={p.sparsity}"
    return text


def parse_problem(text: str) -> Problem:
    """Reads the text of a problem; the layout and what follows it may be left out. Raises `BadInput`."""
    try:
        return _parsed(text)
    except ValueError as error:
        raise BadProblem(value=text, why=error) from None


def _parsed(text: str) -> Problem:
    """Raises `BadInput`, and `ValueError` for what is wrong with the form."""
    found = _PROBLEM.fullmatch(text.strip())
    if found is None:
        raise ValueError("it does not have that form")
    named = _named(found["rest"])
    return Problem(
        Shape.parse(found["shape"]),
        ElementTypes.parse(found["types"]),
        Layout.parse(found["layout"] or "nn"),
        float(named.get("alpha", 1)),
        float(named.get("beta", 0)),
        _batch(named.get("batch", "1")),
        Scale.parse(named.get("scale", Scale.NONE)),
        Fusion.parse(named.get("fused", Fusion.NONE)),
        Groups.parse(named.get("groups", NONE)),
        Sparsity.parse(named.get("sparsity", Sparsity.NONE)),
    )


def problem_of(row: Mapping[str, Any]) -> Problem:
    """The problem of a row with the columns `PROBLEM_COLUMNS`; older rows lack some (`ADDED_COLUMNS`)."""
    types = ElementTypes(ElementType(row["ab"]), ElementType(row["cd"]), ElementType(row["acc"]))
    shape = Shape(int(row["m"]), int(row["n"]), int(row["k"]))
    added: dict[str, Any] = {
        name: default if row.get(name) is None else row[name] for name, default in ADDED_COLUMNS.items()
    }
    return Problem(
        shape, types, Layout(row["layout"]), float(row["alpha"]), float(row["beta"]), int(added["batch"]),
        Scale(added["scale"]), Fusion(added["fused"]), Groups.parse(added["groups"]),
        Sparsity(added["sparsity"]),
    )  # fmt: skip


def problem_columns(problem: Problem) -> dict[str, Any]:
    """The columns that `problem_of` reads."""
    s, types = problem.shape, problem.types
    return {
        **{"m": s.m, "n": s.n, "k": s.k},
        **{"ab": types.ab.value, "cd": types.cd.value, "acc": types.acc.value, "layout": problem.layout.value},
        **{"alpha": problem.alpha, "beta": problem.beta, "batch": problem.batch},
        **{"scale": problem.scale.value, "fused": problem.fused.value, "groups": str(problem.groups or NONE)},
        "sparsity": problem.sparsity.value,
    }


def _has_only(name: str, known: Collection[str], wanted: str) -> str:
    return f"has no {name}={wanted}, only {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A problem and the kernel that computes it: what one job measures."""

    problem: Problem
    kernel: Kernel
    canonical: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "canonical", f"{self.kernel} {problem_line(self.problem)}")

    def __str__(self) -> str:
        return self.canonical

    @property
    def id(self) -> uuid.UUID:
        """The first 128 bits of the SHA-256 of the canonical form."""
        return uuid.UUID(bytes=hashlib.sha256(self.canonical.encode()).digest()[:16])

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Reads a canonical form; the layout and what follows it may be left out. Raises `BadInput`."""
        found = _CANONICAL.fullmatch(text.strip())
        if found is None:
            raise BadConfiguration(value=text, why="it does not have that form")
        try:
            pairs = (p.split("=", 1) for p in found["parameters"].replace(" ", "").split(",") if p)
            kernel = Kernel.of(found["family"], **{name: _whole(found["family"], name, value) for name, value in pairs})
            problem = _parsed(found["problem"])
        except FarmError:
            raise
        except (ValueError, TypeError) as error:
            raise BadConfiguration(value=text, why=str(error)) from None
        return cls(problem, kernel)

    @classmethod
    def from_columns(cls, row: Mapping[str, Any]) -> Configuration:
        """Rebuilds a configuration from `PROBLEM_COLUMNS`, family and parameters."""
        return cls(problem_of(row), Kernel.of(row["family"], **row["parameters"]))

    def columns(self) -> dict[str, Any]:
        """The columns that `from_columns` reads."""
        return {
            **problem_columns(self.problem),
            "family": self.kernel.family,
            "parameters": dict(self.kernel.parameters),
        }

    def binary(self, device: DeviceTraits) -> Binary | None:
        """What must have been built for devices with these traits; None where nothing is built ahead of time."""
        build = FAMILIES[self.kernel.family].binary
        if build is None or device.compute_capability is None:
            return None
        return build(self.problem, dict(self.kernel.parameters), architecture_of(device.compute_capability))

    def why_invalid(self, device: DeviceTraits) -> Reason:
        """Why a device with these traits cannot run this configuration, or None where it can."""
        family = FAMILIES[self.kernel.family]
        if family.kind is not device.kind:
            return f"{family.name} runs on {family.kind} devices, this is a {device.kind} device"
        if family.worker is None:
            return f"nothing here runs {family.name}: its rows are imported"
        if self.problem.batch != 1 and not family.batched:
            return f"{family.name} computes one product at a time: batch must be 1, not {self.problem.batch}"
        if self.problem.groups is not None and not family.grouped:
            return f"{family.name} computes no groups"
        if self.problem.scale not in family.scales:
            return f"{family.name} {_has_only('scale', family.scales, self.problem.scale)}"
        if self.problem.fused not in family.fusions:
            return f"{family.name} {_has_only('fused', family.fusions, self.problem.fused)}"
        if self.problem.sparsity not in family.sparsities:
            return f"{family.name} {_has_only('sparsity', family.sparsities, self.problem.sparsity)}"
        parameters = dict(self.kernel.parameters)
        for rule in family.rules:
            reason = rule(self.problem, parameters, device)
            if reason is not None:
                return f"{family.name} {reason}"
        need, have = self.problem.operand_bytes, int(device.memory_bytes * MEMORY_SHARE)
        if need > have:
            return f"its operands take {need:,} bytes, the device has {have:,} for them"
        return None


BASELINES = {family.kind: Kernel.of(family.name) for family in FAMILIES.values() if family.baseline}
"""What the best kernel of a problem is compared with, by kind of device: on GPUs the vendor's library, with the algorithm
that its heuristic puts first; nothing on CPUs."""

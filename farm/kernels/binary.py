"""Kernels that are compiled ahead of time: what distinguishes two binaries, and the hash that names one.

A binary is a template, the macros that it is compiled with, and an architecture. Many configurations share one, so a farm
builds far fewer than it measures. Everything here is pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from farm.errors import BadArchitecture, BadBinary
from farm.kernels.toolchains import NVCC, Toolchain, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A source of a kernel family, and how it is compiled. Its name identifies it."""

    name: str
    # None: an own kernel, whose code is that of its definition (`farm.kernels.own_triton`).
    path: Path | None = field(compare=False)
    options: tuple[str, ...] = field(compare=False)
    # What the source begins and ends with, where several templates share it.
    head: Path | None = field(default=None, compare=False)
    tail: Path | None = field(default=None, compare=False)
    toolchain: Toolchain = field(default=NVCC, compare=False)
    # A shared library for the host with the kernel in it, and not a cubin.
    library: bool = field(default=False, compare=False)

    def for_architecture(self, arch: str) -> str:
        """nvcc's option for the architecture. A library has code for one architecture only, which halves its compilation."""
        return f"-gencode=arch=compute_{arch[3:]},code={arch}" if self.library else f"-arch={arch}"


_FIRST_ARCHITECTURE = 75
_ARCHITECTURE = re.compile(r"sm_(\d{2,3})[af]?")
_NAME, _VALUE = re.compile(r"[A-Z][A-Z0-9_]*"), re.compile(r"-?[\w:]+")


@cache
def text_of(template: Template) -> str:
    """The source; empty for an own kernel."""
    parts = (template.head, template.path, template.tail)
    return "".join(part.read_text() for part in parts if part is not None)


def architecture_of(compute_capability: tuple[int, int]) -> str:
    """The architecture to compile for: (9, 0) is sm_90a. From 9.0 on, `a` enables all features of this architecture."""
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def capability_of(arch: str) -> tuple[int, int]:
    """(9, 0) for sm_90a. Raises `BadArchitecture`."""
    found = _ARCHITECTURE.fullmatch(arch)
    if found is None or int(found[1]) < _FIRST_ARCHITECTURE:
        raise BadArchitecture(value=arch)
    return divmod(int(found[1]), 10)


def ordered(definitions: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Macros in the order of a binary, because stores such as JSON columns may change their order."""
    return tuple(sorted((str(name), str(value)) for name, value in definitions.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One compilation of a template. Binaries that differ only in the label are the same."""

    template: Template
    arch: str  # as nvcc names it, sm_90a
    definitions: tuple[tuple[str, str], ...]  # macros, in the order of their names
    label: str = field(compare=False)  # one line for people: what is compiled in

    @property
    def options(self) -> tuple[str, ...]:
        """Options of nvcc, without the folders of headers. Other toolchains read the architecture and the definitions."""
        defined = (f"-D{name}={value}" for name, value in self.definitions)
        return (*self.template.options, self.template.for_architecture(self.arch), *defined)

    def toolchain(self, versions: Versions) -> str:
        """The toolchain's version as tables have it."""
        return self.template.toolchain.text(versions)

    def hash(self, versions: Versions) -> str:
        """SHA-256 of the template, the options and the toolchain's versions: equal hashes are the same kernel."""
        text = "\0".join((text_of(self.template), *self.template.toolchain.of(versions).values(), *self.options))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return self.label

    def to_json(self) -> dict[str, Any]:
        return {
            "template": self.template.name,
            "arch": self.arch,
            "definitions": dict(self.definitions),
            "label": self.label,
        }


def checked_binary(found: Mapping[str, Any], templates: Mapping[str, Template]) -> Binary:
    """The binary that `to_json` described, perhaps on another host. Raises `BadBinary`: nothing else reaches a compiler."""
    name, label = str(found.get("template")), str(found.get("label"))
    if name not in templates:
        raise BadBinary(why=f"this version of the farm has no template {name!r}", binary=label)
    definitions = ordered(dict(found.get("definitions", {})))
    made = Binary(template=templates[name], arch=str(found.get("arch")), definitions=definitions, label=label)
    capability_of(made.arch)
    for macro, value in made.definitions:
        if not (_NAME.fullmatch(macro) and _VALUE.fullmatch(value)):
            raise BadBinary(why=f"{macro!r} cannot be defined as {value!r}", binary=made)
    return made

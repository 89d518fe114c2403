"""A compiled kernel: its code, and what is known of it without a card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from farm.kernels.binary import Binary
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import TOOLCHAINS, Versions
from farm.signing import Purpose, Signer, is_signed

_DETAILS = {"cuda": "nvcc"}
"""Parts of toolchains that rows have under another name: `cuda` is the card's there."""


class Record(BaseModel):
    """Facts that are stored with a binary. Further fields are the versions of the parts of its toolchain, as `cutlass`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, str]

    hash: str  # of what it was compiled from
    template: str
    definitions: dict[str, str]
    arch: str
    label: str  # for people: what is compiled in
    seconds: float  # that the compiler took
    sha256: str  # of the code
    bytes: int  # of the code
    params_bytes: int  # of the host, for what launches one operand set
    shared_bytes: int  # of dynamic shared memory that it must be launched with
    threads: int  # of a block
    registers: int  # of a thread
    spill_bytes: int  # that a thread stores because it has no register for them
    stack_bytes: int
    static_shared_bytes: int

    @model_validator(mode="after")
    def _has_a_toolchain(self) -> Self:
        if not any(self.versions.keys() == set(toolchain.parts) for toolchain in TOOLCHAINS):
            raise ValueError(f"its versions are of no toolchain: {', '.join(self.versions) or 'there are none'}")
        return self

    @property
    def binary(self) -> Binary:
        """What it was compiled from. Raises `BadBinary`."""
        return binary_from_json(self.model_dump(include={"template", "definitions", "arch", "label"}))

    @property
    def versions(self) -> Versions:
        return self.__pydantic_extra__

    @property
    def details(self) -> dict[str, Any]:
        """Facts for the rows of this kernel, under the names that all families use."""
        return {
            "registers": self.registers,
            "static_shared_bytes": self.static_shared_bytes,
            "dynamic_shared_bytes": self.shared_bytes,
            "local_bytes": self.stack_bytes,
            "spill_bytes": self.spill_bytes,
            **{_DETAILS.get(part, part): version for part, version in self.versions.items()},
        }


@dataclass(frozen=True, slots=True)
class Built:
    """A binary that can be loaded on a card."""

    code: bytes
    record: Record
    # On the record, and so on the SHA-256 of the code, by who built it.
    signature: str = ""

    @property
    def intact(self) -> bool:
        """Whether the code is what the record was written for."""
        return hashlib.sha256(self.code).hexdigest() == self.record.sha256

    @property
    def _signed(self) -> bytes:
        """What a signature is on: the record as JSON, its names in order."""
        return json.dumps(self.record.model_dump(), sort_keys=True, separators=(",", ":")).encode()

    def signed(self, signer: Signer) -> Built:
        """The same, vouched for."""
        return replace(self, signature=signer.sign(Purpose.KERNEL, self._signed))

    def is_signed(self, public_keys: Iterable[str]) -> bool:
        """Whether the holder of one of these keys vouches for it. Raises `BadPublicKey`."""
        return is_signed(public_keys, Purpose.KERNEL, self._signed, self.signature)

"""Kernels that are built ahead of time: list them, and add one that was built elsewhere."""

from __future__ import annotations

import base64
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from farm import signing_keys
from farm.api.access import Access
from farm.api.operation import Cli, Document, operation
from farm.builds.record import Built, Record
from farm.builds.stores import store_of
from farm.db import campaigns, kernels
from farm.db.states import KernelState, Role
from farm.devices import host_name
from farm.errors import BadBinary
from farm.signing import Purpose

SECONDS = 60.0
"""What a server gives one kernel."""


class KernelLine(Document):
    """A kernel: its state, what is known of its code, and how many jobs wait for it."""

    kernel_id: int
    hash: str
    arch: str
    label: str
    toolchain: str = Field(description="the version of the toolchain that builds it")
    state: KernelState
    wanted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    builder: str | None
    record: dict[str, Any] | None
    error: str | None
    waiting_jobs: int


class Builder(Document):
    """A host that builds kernels now."""

    name: str
    toolchains: list[str] = Field(description="versions of its toolchains, whose kernels it builds")
    slots: int = Field(description="kernels that it builds at a time")


class Kernels(Document):
    """Kernels, and who builds them."""

    kernels: list[KernelLine]
    builders: list[Builder]


class BuiltKernel(Document):
    """A kernel that was built elsewhere: its code with its record, signed by its builder."""

    record: Record = Field(description="What is known of the code.")
    code: str = Field(description="The code in Base64.")
    signature: str = Field(max_length=1000, description="The signature of its builder.")

    @classmethod
    def of(cls, built: Built) -> BuiltKernel:
        """The kernel as a request has it."""
        return cls(record=built.record, code=base64.b64encode(built.code).decode(), signature=built.signature)


class Addition(StrEnum):
    ADDED = "added"
    KNOWN = "known"  # it was there already
    REFUSED = "refused"


class AddedKernel(Document):
    """What became of a kernel."""

    hash: str
    outcome: Addition
    why: str | None = Field(default=None, description="why it is refused")


@operation("GET", "/kernels")
def list_(
    access: Access,
    *,
    campaign: Annotated[
        str | None, Field(description="Only those that this campaign waits for."), Cli(argument=True)
    ] = None,
    state: Annotated[list[KernelState] | None, Field(description="Only those in this state.")] = None,
) -> Kernels:
    """List kernels: built, in work, wanted and failed, and how many jobs wait for each."""
    with access.connect() as connection:
        campaign_id = None if campaign is None else campaigns.find(connection, campaign)["id"]
        rows = kernels.listed(connection, states=state, campaign_id=campaign_id)
        builders = kernels.builders(connection, silent_after=access.silent_after)
    return Kernels(kernels=[KernelLine(**row) for row in rows], builders=[Builder(**one) for one in builders])


@operation("POST", "/kernels", role=Role.OPERATE, seconds=SECONDS, privileged=True)
def add(access: Access, built_kernel: BuiltKernel) -> AddedKernel:
    """Add a kernel to the farm's store, if a key that the farm trusts signed it. Jobs that wait for it continue."""
    record = built_kernel.record
    try:
        binary = record.binary
        code = base64.b64decode(built_kernel.code, validate=True)
        if binary.hash(record.versions) != record.hash:
            raise BadBinary(why="it was made from another template than this version's", binary=binary)
    except (BadBinary, ValueError) as error:
        return _refused(record, str(error))
    built = Built(code, record, built_kernel.signature)
    if not built.intact:
        return _refused(record, "its SHA-256 is not the recorded one")
    if not built.is_signed(signing_keys.trusted(access.settings, Purpose.KERNEL)):
        return _refused(record, "it is signed by none of FARM_KERNEL_KEYS; --trust signs it with your key")
    store_of(access.settings, access.session.engine).put(record.hash, code)
    with access.change(add) as change:
        new = kernels.add(
            change.connection,
            binary,
            record.versions,
            record=record.model_dump(),
            signature=built.signature,
            builder=host_name(),
        )
        change.record("kernel", str(binary), key=record.hash, after={"new": new, "sha256": record.sha256})
    return AddedKernel(hash=record.hash, outcome=Addition.ADDED if new else Addition.KNOWN)


def _refused(record: Record, why: str) -> AddedKernel:
    return AddedKernel(hash=record.hash, outcome=Addition.REFUSED, why=why)

"""Ids of spans: those of campaigns, batches, trainings and kernels follow from the farm, others are random (pure)."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

HEADER = "traceparent"
"""The header of HTTP in which W3C Trace Context names the caller's span."""

_HEADER = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The ids of a span, and whether its trace is sampled. None: the sampler decides by the id of the trace."""

    trace: int
    span: int
    sampled: bool | None = None

    def to_json(self) -> list[int | bool | None]:
        """The values of the fields, in their order."""
        return [self.trace, self.span, self.sampled]


def ids_of_campaign(farm: str, campaign_id: int) -> SpanIds:
    """The first span of the trace of a campaign. `farm`: see `farm.db.farm_key`."""
    return _derived("campaign", farm, campaign_id)


def ids_of_batch(farm: str, batch_id: int) -> SpanIds:
    """The first span of the trace of a batch."""
    return _derived("batch", farm, batch_id)


def ids_of_training(farm: str, training_id: int) -> SpanIds:
    """The trace of a training. Each attempt has a first span of its own in it: `new_ids` of these."""
    return _derived("training", farm, training_id)


def ids_of_kernel(farm: str, kernel_id: int) -> SpanIds:
    """The trace of a kernel. Each attempt to build it has a first span of its own in it: `new_ids` of these."""
    return _derived("kernel", farm, kernel_id)


def _derived(kind: str, farm: str, number: int) -> SpanIds:
    digest = hashlib.sha256(f"{kind} {number} of {farm}".encode()).digest()
    # Zero is no id.
    return SpanIds(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)


def new_ids(parent: SpanIds | None = None) -> SpanIds:
    """Random ids: of a span in the trace of `parent`, or of a new trace."""
    trace = secrets.randbits(128) or 1 if parent is None else parent.trace
    return SpanIds(trace, secrets.randbits(64) or 1, None if parent is None else parent.sampled)


def traceparent(ids: SpanIds) -> str:
    """The header of a request that this span sends.

    >>> traceparent(SpanIds(1, 2, sampled=True))
    '00-00000000000000000000000000000001-0000000000000002-01'
    """
    return f"00-{ids.trace:032x}-{ids.span:016x}-{_SAMPLED if ids.sampled is not False else 0:02x}"


def of_traceparent(header: str | None) -> SpanIds | None:
    """The caller's span; None for a header that is missing or no such header.

    >>> of_traceparent("00-00000000000000000000000000000001-0000000000000002-01")
    SpanIds(trace=1, span=2, sampled=True)
    """
    found = _HEADER.fullmatch(header or "")
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found.groups())
    return SpanIds(trace, span, bool(flags & _SAMPLED)) if trace and span else None

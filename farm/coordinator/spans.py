"""Spans of dispatching: a batch that was formed begins a trace, and its message is a part of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Engine

from farm.db.batches import BatchPlan, PendingJobs
from farm.db.farm_key import farm_key
from farm.tracing import Kind, Span, ids_of_batch, ids_of_campaign, new_ids, tracing
from farm.tracing.span import PREFIX


def batches_formed(
    engine: Engine, work: PendingJobs, ids: Sequence[int], plans: Sequence[BatchPlan], began_ns: int, ended_ns: int
) -> None:
    """Records batches that one transaction formed. `ids` are those of the first of the plans."""
    if not tracing().on or (farm := farm_key(engine)) is None:
        return
    for batch_id, plan in zip(ids, plans, strict=False):
        tracing().record(
            Span(
                name="form batch",
                ids=ids_of_batch(farm, batch_id),
                began_ns=began_ns,
                ended_ns=ended_ns,
                links=(ids_of_campaign(farm, work.campaign_id),),
                attributes={
                    f"{PREFIX}batch.id": batch_id,
                    f"{PREFIX}campaign.id": work.campaign_id,
                    f"{PREFIX}queue": plan.queue,
                    f"{PREFIX}batch.max_jobs": plan.jobs,
                },
            )
        )


def messages_sent(engine: Engine, messages: Iterable[tuple[int, str]], began_ns: int, ended_ns: int) -> None:
    """Records messages, by batch id and queue, that the broker took."""
    if not tracing().on or (farm := farm_key(engine)) is None:
        return
    for batch_id, queue in messages:
        root = ids_of_batch(farm, batch_id)
        tracing().record(
            Span(
                name="send message",
                ids=new_ids(root),
                parent=root,
                kind=Kind.PRODUCER,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes={f"{PREFIX}batch.id": batch_id, f"{PREFIX}queue": queue},
            )
        )

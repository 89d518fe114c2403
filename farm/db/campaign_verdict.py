"""Verdict on a campaign: whether its jobs have results, from its state and job counts (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from farm.db.campaigns import open_jobs
from farm.db.states import CampaignState, JobState
from farm.formatting import counts_text

WITHOUT_RESULT = (JobState.DEAD, JobState.INVALID)
"""Job states that ended without a result although no user cancelled the job."""


class CampaignVerdict(StrEnum):
    """Overall result of a campaign."""

    UNFINISHED = "unfinished"
    """Jobs are open."""

    COMPLETE = "complete"
    """Every job has a result."""

    INCOMPLETE = "incomplete"
    """Some jobs ended without a result."""

    NO_RESULTS = "no results"
    """Every job ended without a result."""

    CANCELLED = "cancelled"


def without_result(counts: Mapping[str, int]) -> int:
    """Number of jobs that ended without a result, without cancelled ones."""
    return sum(counts[state] for state in WITHOUT_RESULT)


def verdict(state: str, counts: Mapping[str, int]) -> CampaignVerdict:
    if state == CampaignState.CANCELLED:
        return CampaignVerdict.CANCELLED
    if open_jobs(counts):
        return CampaignVerdict.UNFINISHED
    if not without_result(counts):
        return CampaignVerdict.COMPLETE
    return CampaignVerdict.INCOMPLETE if counts[JobState.DONE] else CampaignVerdict.NO_RESULTS


def state_text(state: str, counts: Mapping[str, int]) -> str:
    """`done`, `done, 15 invalid`, `active, 2 dead`: the state, and the jobs that ended without a result."""
    lost = {name.value: counts[name] for name in WITHOUT_RESULT if counts[name]}
    return f"{state}, {counts_text(lost)}" if lost else state

"""The verdict on a campaign, and how its state is written."""

from __future__ import annotations

import pytest

from farm.api.campaigns import CampaignChange
from farm.db.campaign_verdict import CampaignVerdict, state_text, verdict, without_result
from farm.db.states import CampaignState, JobState


def jobs(**counts: int) -> dict[str, int]:
    return {state.value: counts.get(state.value, 0) for state in JobState}


@pytest.mark.parametrize(
    ("state", "counts", "expected", "text"),
    [
        ("done", jobs(done=16), CampaignVerdict.COMPLETE, "done"),
        ("done", jobs(done=1, invalid=15), CampaignVerdict.INCOMPLETE, "done, 15 invalid"),
        ("done", jobs(done=1, invalid=1200, dead=3), CampaignVerdict.INCOMPLETE, "done, 3 dead, 1,200 invalid"),
        ("done", jobs(dead=2), CampaignVerdict.NO_RESULTS, "done, 2 dead"),
        ("active", jobs(done=3, pending=1), CampaignVerdict.UNFINISHED, "active"),
        ("active", jobs(running=1, dead=2), CampaignVerdict.UNFINISHED, "active, 2 dead"),
        ("paused", jobs(later=4), CampaignVerdict.UNFINISHED, "paused"),
        # Its last job has ended, and the coordinator has not closed it yet.
        ("active", jobs(done=1, invalid=1), CampaignVerdict.INCOMPLETE, "active, 1 invalid"),
        ("cancelled", jobs(done=3, cancelled=9), CampaignVerdict.CANCELLED, "cancelled"),
        ("cancelled", jobs(dead=3, cancelled=9), CampaignVerdict.CANCELLED, "cancelled, 3 dead"),
    ],
)
def test_a_campaign_is_complete_only_where_every_job_has_a_result(
    state: str, counts: dict[str, int], expected: CampaignVerdict, text: str
) -> None:
    assert verdict(state, counts) is expected
    assert state_text(state, counts) == text


def test_cancelled_jobs_do_not_count_as_ended_without_a_result() -> None:
    assert without_result(jobs(cancelled=9, invalid=2, dead=1)) == 3


def test_documents_carry_the_verdict() -> None:
    told = CampaignChange(
        campaign="c", changed=False, state=CampaignState.DONE, counts=jobs(done=1, invalid=15)
    ).model_dump()
    assert (told["verdict"], told["state_text"]) == ("incomplete", "done, 15 invalid")

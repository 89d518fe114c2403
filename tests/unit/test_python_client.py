"""The Python API without a farm: connecting, waiting while a farm does not answer, and errors by their names."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import farm
from farm import errors
from farm.api import campaigns
from farm.api.campaigns import Progress
from farm.api.remote import Remote, RemoteError
from farm.client import campaign as waiting
from farm.db.kernels import AwaitedKernels
from farm.db.states import CampaignState, JobState
from farm.errors import (
    ApiRefused,
    BadInput,
    BadServiceUrl,
    ClientClosed,
    DatabaseUnreachable,
    NoServerForToken,
    NoSuchCampaign,
    QuotaExceeded,
    known_errors,
)
from farm.settings import settings


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FARM_API_URL", raising=False)
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("url", "token", "error", "message"),
    [
        ("postgresql://ann:secret@host/farm", None, BadServiceUrl, "set FARM_DATABASE_URL"),
        ("host:8000", None, BadServiceUrl, "write http://host:8000"),
        ("http://[half", None, BadServiceUrl, "write http://host:8000"),
        ("", None, BadServiceUrl, "write http://host:8000"),
        (8000, None, BadInput, "not a int"),
        ("http://ann:secret@host:1", None, BadServiceUrl, "FARM_API_TOKEN"),
        ("http://host:8000", "secret", errors.TokenInTheClear, "plain HTTP"),
        (None, "secret", NoServerForToken, "A token goes with the URL of a server"),
        ("http://127.0.0.1:1", "sécret", BadInput, "token: "),
        ("http://127.0.0.1:1", " ", BadInput, "token: "),
    ],
)
def test_what_is_no_server_is_refused_without_its_secrets(
    url: Any, token: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        farm.connect(url, token=token)
    assert "secret" not in str(raised.value)


def test_a_client_says_that_no_server_answers_and_that_it_is_closed() -> None:
    with farm.connect("http://127.0.0.1:1") as client, pytest.raises(errors.ApiUnreachable, match="does not answer"):
        client.campaigns()
    with pytest.raises(ClientClosed, match=r"farm\.connect\(\)"):
        client.campaigns()
    client.close()


class Scripted:
    """A farm that gives these responses in turn."""

    rows_at_once = 1

    def __init__(self, *responses: object) -> None:
        self.responses = list(responses)

    def ask(self, operation: Callable[..., Any], *_: Any, **__: Any) -> Any:
        assert operation is campaigns.progress
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def progress(**counts: int) -> Progress:
    return Progress(
        name="sweep",
        digest="ab" * 32,
        owner="ann",
        state=CampaignState.ACTIVE,
        counts={**{state.value: 0 for state in JobState}, **counts},
        percent=0,
        jobs_per_minute=None,
        seconds_left=90,
        stuck_jobs=0,
        stuck=[],
        kernels_awaited=AwaitedKernels(0, 0, 0, []),
        devices_live=1,
    )


AWAY = DatabaseUnreachable.received("The database does not answer. Try again.")


def test_a_wait_goes_on_after_the_farm_did_not_answer_and_shows_each_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    half, end = progress(pending=1, done=1), progress(done=2)
    client = farm.Client(Scripted(half, half, AWAY, half, end))
    campaign = client.campaign("sweep")
    assert campaign.wait(progress=True, poll_seconds=0) is end
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["sweep: 1 of 2 jobs, 50%, 1 min 30 s left", "sweep: 2 of 2 jobs, 100%, 1 min 30 s left"]


def test_a_wait_ends_when_the_farm_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", -1.0)
    campaign = farm.Client(Scripted(progress(), AWAY)).campaign("sweep")
    with pytest.raises(DatabaseUnreachable):
        campaign.wait(poll_seconds=0)
    campaign = farm.Client(Scripted(progress(), AWAY)).campaign("sweep")
    monkeypatch.undo()
    with pytest.raises(DatabaseUnreachable):
        campaign.wait(timeout=0)


def test_a_wait_does_not_go_on_after_the_campaign_was_deleted() -> None:
    gone = NoSuchCampaign(name="sweep", known="none")
    seen = list[Progress]()
    campaign = farm.Client(Scripted(progress(), progress(pending=1), gone)).campaign("sweep")
    with pytest.raises(NoSuchCampaign):
        campaign.wait(poll_seconds=0, progress=seen.append)
    assert [one.counts["pending"] for one in seen] == [1]


def test_a_client_closes_what_it_opened_when_neither_it_nor_a_campaign_of_it_is_left() -> None:
    closed = list[bool]()
    stack = ExitStack()
    stack.callback(closed.append, True)
    campaign = farm.Client(Scripted(progress(), progress()), stack).campaign("sweep")
    gc.collect()
    assert campaign.progress().name == "sweep"
    assert closed == []
    del campaign
    gc.collect()
    assert closed == [True]


DOCS = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


@pytest.mark.parametrize("kind", [farm.Client, farm.Campaign, farm.Table])
def test_the_guide_has_every_method_and_each_has_a_docstring(kind: type) -> None:
    methods = [name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")]
    assert len(methods) >= 2
    for name in methods:
        assert re.search(rf"^\| `{kind.__name__.lower()}\.{name}\(", DOCS, re.M), name
        assert (getattr(kind, name).__doc__ or "").rstrip()


def test_the_guide_has_every_public_name() -> None:
    assert [name for name in farm.__all__ if f"`{name}`" not in DOCS and f"farm.{name}" not in DOCS] == []


def test_no_two_errors_have_the_same_name() -> None:
    own = {one for one in known_errors() if one.__module__.startswith("farm.")}
    assert len({one.__name__ for one in own}) == len(own)


@pytest.mark.parametrize(
    ("status", "kind", "exit_code", "error"),
    [
        (404, "NoSuchCampaign", 4, NoSuchCampaign),
        (403, "QuotaExceeded", 3, QuotaExceeded),
        (403, "RoleTooSmall", 3, ApiRefused),
        (403, "CrossOrigin", 3, ApiRefused),
        (401, "SignInNeeded", 3, ApiRefused),
        (400, "ErrorOfANewerFarm", 2, BadInput),
        (503, "ErrorOfANewerFarm", 3, farm.ServiceUnavailable),
        (500, "Defect", 1, RemoteError),
        (400, "FarmError", 2, BadInput),
    ],
)
def test_an_error_of_a_server_has_the_class_of_its_name(
    status: int, kind: str, exit_code: int, error: type[Exception]
) -> None:
    body = {"error": {"kind": kind, "message": "It says why, with {braces}.", "exit_code": exit_code}}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=json.dumps(body)))
    remote = Remote("http://127.0.0.1:1", token=None, client=httpx.Client(transport=transport))
    with pytest.raises(farm.FarmError, match=r"It says why, with \{braces\}\.") as raised:
        remote.ask(campaigns.progress, "sweep")
    assert type(raised.value) is error
    assert raised.value.exit_code == (exit_code if error is not ApiRefused else 3)
    remote.close()

"""Who may do what: each role at each operation, and what lets nobody in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from farm.api import OPERATIONS, PREFIX, reports
from farm.db import tokens
from farm.db.states import Role
from support.api_farm import Asking, Served, told

DEVICES = f"{PREFIX}/devices"
COOKIE = "farm_session_8000"
BROWSER = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws a report once, which takes a second, though operations change what it shows."""
    drawn: list[Any] = []
    real = reports.rendered

    def rendered(*arguments: Any, **options: Any) -> Any:
        drawn[:] = drawn or [real(*arguments, **options)]
        return drawn[0]

    monkeypatch.setattr(reports, "rendered", rendered)


@pytest.mark.usefixtures("drawn_once")
def test_each_role_is_let_do_what_it_may_and_nobody_else_is_let_in(api_with_tokens: Served) -> None:
    names = {role: role.value for role in Role} | {Role.SUBMIT: "ann"}  # whose the campaigns are
    api_with_tokens.make("ann", Role.SUBMIT)
    for known in OPERATIONS.values():
        for headers in ({}, {"Authorization": "Bearer gfarm_no"}, {"Cookie": f"{COOKIE}=no", **BROWSER}):
            refused(api_with_tokens.asking().ask(known, headers=headers))
        for role in Role:
            answer = api_with_tokens.asking(names[role]).ask(known)
            if role.may(known.role):
                # There is no model here, and a campaign that is cancelled is not resumed: the farm's own answers.
                assert answer.status_code in (200, 400, 404), (known.name, answer.text)
            else:
                assert answer.status_code == 403, known.name
                error = told(answer)
                assert error["kind"] == "RoleTooSmall"
                assert (
                    error["message"]
                    == f"The token of {names[role]} has the role {role}. This needs the role {known.role}."
                )


def refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401, answer.text
    assert answer.headers["www-authenticate"] == "Bearer"
    assert told(answer)["kind"] == "SignInNeeded"


def test_what_is_no_token_lets_nobody_in(api_with_tokens: Served) -> None:
    token = api_with_tokens.tokens["operate"]
    for headers in (
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {token}"},
        {"Authorization": f"Bearer {token} {token}"},
        {"Authorization": f"Bearer {token}x"},
        {"Authorization": f"Bearer {token[:-1]}"},
        {"Authorization": "Bearer " + "x" * 10_000},
        {"Authorization": "Bearer \xff"},
        {"Authorization": token},
        {"Cookie": COOKIE, **BROWSER},
        {"Cookie": f"{COOKIE}=", **BROWSER},
        {"Cookie": f"a/b,c=d; expires=x; $Path=/; {COOKIE}={token}", **BROWSER},
        {"Cookie": f'{COOKIE}="', **BROWSER},
        {"X-Farm-User": "operate", "X-Token": token},
    ):
        written = {name: value.encode("latin-1") for name, value in headers.items()}
        refused(api_with_tokens.asking().client.request("GET", DEVICES, headers=written))


def test_a_token_in_an_address_lets_nobody_in_as_addresses_are_logged(api_with_tokens: Served) -> None:
    for name in ("token", "access_token", COOKIE, "authorization"):
        refused(api_with_tokens.asking().get(DEVICES, params={name: api_with_tokens.tokens["operate"]}))


def test_a_token_is_sent_as_bearer(api_with_tokens: Served) -> None:
    token = api_with_tokens.tokens["read"]
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Authorization": f"bearer   {token}"},
    ):
        assert api_with_tokens.asking().get(DEVICES, headers=headers).status_code == 200


def test_revoking_takes_effect_with_the_next_request(api_with_tokens: Served) -> None:
    ann = api_with_tokens.asking("read")
    assert ann.get(DEVICES).status_code == 200
    with api_with_tokens.engine.begin() as connection:
        tokens.revoke(connection, "read")
    refused(ann.get(DEVICES))


def test_a_token_that_expired_lets_nobody_in(api_with_tokens: Served) -> None:
    api_with_tokens.make("short", Role.OPERATE, timedelta(hours=1))
    short = api_with_tokens.asking("short")
    assert short.get(DEVICES).status_code == 200
    api_with_tokens.execute("UPDATE tokens SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'short'")
    refused(short.get(DEVICES))


def test_a_role_that_is_changed_counts_from_the_next_request(api_with_tokens: Served) -> None:
    ann = api_with_tokens.asking("operate")
    pause = f"{PREFIX}/campaigns/small/pause"
    assert ann.post(pause).status_code == 200
    api_with_tokens.execute("UPDATE tokens SET role = 'read' WHERE name = 'operate'")
    assert ann.post(pause).status_code == 403


def test_who_may_not_is_told_before_the_body_is_looked_at(api_with_tokens: Served) -> None:
    reader = api_with_tokens.asking("read")
    for body in (b"{", b"[]", b"{}", b"x" * 100_000):
        answer = reader.post(f"{DEVICES}/drain", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 403
    refused(api_with_tokens.asking().post(f"{DEVICES}/drain", content=b"{"))


def test_what_is_done_is_signed_with_the_tokens_name_and_not_with_one_that_is_claimed(api_with_tokens: Served) -> None:
    given = {"which": ["CPU-1"], "reason": "dust"}
    answer = api_with_tokens.asking("operate").post(f"{DEVICES}/drain", given, headers={"X-Farm-User": "root"})
    assert answer.json()[0]["reason"] == "dust (by operate)"


def test_its_use_is_noted_once_a_minute(api_with_tokens: Served) -> None:
    def used() -> object:
        with api_with_tokens.engine.connect() as connection:
            return connection.execute(text("SELECT last_used_at FROM tokens WHERE name = 'read'")).scalar_one()

    assert used() is None
    api_with_tokens.asking("read").get(DEVICES)
    first = used()
    assert first is not None
    api_with_tokens.asking("read").get(DEVICES)
    assert used() == first
    api_with_tokens.execute("UPDATE tokens SET last_used_at = last_used_at - interval '61 s'")
    api_with_tokens.asking("read").get(DEVICES)
    assert used() != first


def test_without_tokens_a_program_says_for_whom_it_asks(api: Asking) -> None:
    for name, signed in (("ann", "ann"), ("", "the web page"), ("a\x1b[2J", "the web page"), ("x" * 500, "x" * 100)):
        answer = api.post(f"{DEVICES}/drain", {"which": ["CPU-1"], "reason": "dust"}, headers={"X-Farm-User": name})
        assert answer.json()[0]["reason"] == f"dust (by {signed})"

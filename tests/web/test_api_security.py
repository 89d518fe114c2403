"""What attackers try: pages of other sites, names that point here, proxies, bodies, injections, paths; and what leaks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from farm.api import OPERATIONS, PREFIX, Operation
from farm.api.access import Access
from farm.db import campaigns, devices
from farm.db.engine import make_engine, take_time
from farm.db.states import Role
from farm.web import places
from farm.web.limits import MAX_BODY_BYTES, MAX_REQUESTS
from farm.web.security import HEADERS, Guard, Policy
from support.api_farm import EXAMPLES, HERE, Asking, Served, told

PAUSE = f"{PREFIX}/campaigns/small/pause"
CHECK = f"{PREFIX}/campaigns/check"
DEVICES = f"{PREFIX}/devices"

# --- pages of other sites ------------------------------------------------------------------------------


def test_pages_of_other_sites_can_do_nothing(api: Asking) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of localhost, or another host of the company
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},  # a form that is sent
        {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
        {"Sec-Fetch-Site": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:8001"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:8000.evil.example"},
        {"Origin": "http://evil.example/localhost:8000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://["},
        {"Origin": "http://localhost:port"},
        {"Origin": "file://"},
        {"Origin": "ftp://localhost:8000"},
    ):
        answer = api.post(PAUSE, headers=headers)
        assert (answer.status_code, told(answer)["kind"]) == (403, "CrossOrigin"), headers
    assert api.get(f"{PREFIX}/campaigns/small").json()["state"] == "active"


def test_the_farms_own_pages_and_programs_can(api: Asking) -> None:
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": HERE},
        {"Sec-Fetch-Site": "none"},  # typed by a person
        {"Origin": HERE},
        {"Host": "LocalHost:8000", "Origin": HERE},
    ):
        assert api.post(PAUSE, headers=headers).status_code == 200, headers


def test_the_usual_port_of_a_scheme_may_be_left_out(api_with_tokens: Served) -> None:
    operator = api_with_tokens.asking("operate")
    for host, origin, status in (
        ("farm.example", "https://farm.example", 200),
        ("farm.example", "https://farm.example:443", 200),
        ("farm.example:443", "https://farm.example", 200),
        ("farm.example:80", "http://farm.example", 200),
        ("farm.example:8443", "https://farm.example:8443", 200),
        ("farm.example:80", "https://farm.example", 403),
        ("farm.example", "https://farm.example:8443", 403),
        ("", "null", 403),
        ("", "", 403),
    ):
        answer = operator.post(f"https://farm.example{PAUSE}", headers={"Host": host, "Origin": origin})
        assert answer.status_code == status, (host, origin)


def test_other_sites_can_link_here_but_not_load_anything(api: Asking) -> None:
    for mode, status in (("navigate", 200), ("no-cors", 403), ("cors", 403), ("websocket", 403)):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
        assert api.get(DEVICES, headers=headers).status_code == status
    asked_before = api.request(
        "OPTIONS", PAUSE, headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert not [name for name in asked_before.headers if name.startswith("access-control")]


def test_a_form_is_no_request_of_the_api(api: Asking) -> None:
    """Forms can be sent without asking before, whatever a browser says of where they come from."""
    body = json.dumps({"which": ["CPU-1"]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = api.post(f"{DEVICES}/drain", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 422, kind


# --- names and proxies ---------------------------------------------------------------------------------


def test_without_tokens_only_names_of_this_machine_are_answered_to(api: Asking) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example:8000",
        "192.168.0.1:8000",
        "0.0.0.0:8000",
        "",
        "[",
        "localhost@evil",
    ):
        answer = api.get(DEVICES, headers={"Host": host})
        assert (answer.status_code, told(answer)["kind"]) == (421, "WrongHost"), host
    for host in ("localhost", "localhost:9000", "127.0.0.1:8000", "127.0.0.2", "[::1]:8000"):
        assert api.get(DEVICES, headers={"Host": host}).status_code == 200, host


def test_without_tokens_a_proxy_is_refused_as_it_would_let_everybody_in(api: Asking) -> None:
    for name, value in (
        ("X-Forwarded-For", "203.0.113.7"),
        ("Forwarded", "for=203.0.113.7"),
        ("X-Real-IP", "203.0.113.7"),
        ("X-Forwarded-Host", "farm.example"),
        ("X-Forwarded-Proto", "https"),
    ):
        answer = api.get(DEVICES, headers={name: value})
        assert (answer.status_code, told(answer)["kind"]) == (421, "ThroughProxy"), name
        assert "--tokens" in told(answer)["message"]


def test_with_tokens_every_name_will_do_over_https(api_with_tokens: Served) -> None:
    assert api_with_tokens.asking("read").get(f"https://farm.example{DEVICES}").status_code == 200


def test_methods_are_what_they_are(api: Asking) -> None:
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert api.get(PAUSE, headers={name: "POST"}).status_code == 405
    assert api.get(f"{PAUSE}?_method=POST").status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "HEAD", "OPTIONS", "FARM"):
        answer = api.request(method, PAUSE)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"
    assert api.get(f"{PREFIX}/campaigns/small").json()["state"] == "active"


# --- bodies --------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_with_a_length_and_without(api: Asking) -> None:
    for length in (str(MAX_BODY_BYTES + 1), "9" * 30, "-1", "x", "²"):
        answer = api.post(CHECK, headers={"Content-Type": "application/json", "Content-Length": length.encode()})  # type: ignore[dict-item]
        assert (answer.status_code, told(answer)["kind"]) == (413, "TooLarge"), length

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    answer = api.post(CHECK, content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert f"{MAX_BODY_BYTES:,} bytes" in told(answer)["message"]


def test_what_is_nested_deeply_or_is_no_json_is_refused(api: Asking) -> None:
    for body in (b"[" * 200_000, b'{"text":' * 100_000, b"{", b"\xff\xfe", b"NaN", b'{"text": "\\ud800"}', b"1e999"):
        answer = api.post(CHECK, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body[:20]
        told(answer)


def test_a_campaign_that_blows_up_is_refused(api: Asking) -> None:
    aliases = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for written in (
        aliases,
        "[" * 100_000,
        "a: " * 5000,
        "name: x\ntargets: !!python/object/apply:os.system [ls]",
        "\0",
    ):
        answer = api.post(CHECK, {"text": written})
        assert answer.status_code == 400, written[:40]
        assert told(answer)["kind"] == "CampaignFileError"
    assert api.post(CHECK, {"text": "x" * (4 * 2**20 + 1)}).status_code == 422


async def _asked(guard: Guard) -> list[dict[str, object]]:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"localhost")]}
    await guard(scope, None, send)  # type: ignore[arg-type]
    return sent


def test_a_body_that_stands_still_is_given_up(api_access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "BODY_SECONDS", 0.05)
    arrived = anyio.Event

    async def stops() -> AsyncIterator[bytes]:
        yield b"{"
        await arrived().wait()

    with Served(api_access, tokens=False) as served:
        answer = served.asking().post(CHECK, content=stops(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 408
    assert "did not come in time" in told(answer)["message"]


def test_more_requests_than_can_be_worked_on_are_told_to_come_again() -> None:
    async def crowd() -> list[int]:
        gate, statuses = anyio.Event(), list[int]()

        async def app(scope: object, receive: object, send: object) -> None:
            await gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]

        guard = Guard(app, policy=Policy(tokens=False))

        async def one() -> None:
            statuses.append((await _asked(guard))[0]["status"])  # type: ignore[arg-type]

        async with anyio.create_task_group() as group:
            for _ in range(MAX_REQUESTS + 2):
                group.start_soon(one)
            while len(statuses) < 2:
                await anyio.sleep(0)
            gate.set()
        assert (await _asked(guard))[0]["status"] == 200
        return statuses

    statuses = anyio.run(crowd)
    assert statuses[:2] == [503, 503]
    assert set(statuses[2:]) == {200}


# --- injections and paths ------------------------------------------------------------------------------

ATTEMPTS = (
    "'; DROP TABLE measurements; --", "' OR '1'='1", '" OR 1=1 --', "1); SELECT pg_sleep(20); --", "%' --", "\\", "${jndi:x}",
    "{0.__class__}", "{detail}", "%s %(x)s :x", "../../etc/passwd", "file:///etc/passwd", "<script>alert(1)</script>",
    "a\r\nSet-Cookie: x=1", "\x00", "a\x00b", "\u202e", "\U0001f600", "\ufeff", "a" * 5000, " ", "-1", "nan", "1e400", "9" * 400,
    "__import__('os').system('ls')", "(" * 500, "m == (" * 200, "m ** m ** m ** m > 0",
)  # fmt: skip


def strings_of(known: Operation) -> list[tuple[str, bool]]:
    """Each parameter of an operation that takes words, and each such field of its body; whether it takes several."""
    found = list[tuple[str, bool]]()
    for parameter in known.parameters:
        if known.is_model(parameter):
            for name, field in parameter.annotation.model_fields.items():
                if "str" in str(field.annotation):
                    found.append((f"{parameter.name}.{name}", "list" in str(field.annotation)))
        elif "str" in str(parameter.annotation):
            found.append((parameter.name, "list" in str(parameter.annotation)))
    return found


def test_every_operation_is_tried() -> None:
    names = {f"{known.name}.{name}" for known in OPERATIONS.values() for name, _ in strings_of(known)}
    assert {
        "results_rows.where", "results_rows.sort", "campaigns_list.search", "devices_drain.chosen.which", "models_show.name",
        "campaigns_submit.submission.text", "campaigns_show.campaign",
    } <= names  # fmt: skip


@pytest.mark.long
def test_what_is_written_anywhere_stays_words(api_with_tokens: Served, engine: Engine) -> None:
    api = api_with_tokens.asking("admin")
    for known in OPERATIONS.values():
        for name, several in strings_of(known):
            for attempt in ATTEMPTS:
                value: object = [attempt] if several else attempt
                parameter, _, part = name.partition(".")
                if part:
                    value = {**EXAMPLES[parameter], part: value}
                answer = api.ask(known, {parameter: value})
                assert answer.status_code in (200, 400, 404, 422), (known.name, name, attempt, answer.text)
                if answer.status_code != 200:
                    told(answer)
                assert "set-cookie" not in answer.headers
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() == 5
        known = {campaign["name"] for campaign in campaigns.overview(connection, limit=500)}
        assert known == {"done", "small", "asked"}
        assert len(devices.overview(connection, silent_after=20)) == 3


PATHS = (
    "/api/v1/campaigns/..%2f..%2fetc%2fpasswd", "/api/v1/../../etc/passwd", "/api/v1/campaigns/%00", "/%2e%2e/%2e%2e/etc/passwd",
    "/api/v1/campaigns/%ff%fe", "/api/v1/campaigns/" + "x" * 20_000, "/api/v1/models/..%5c..%5c", "/api/v1/campaigns/",
    "/api/v1/campaigns/small/", "/static/..%2f..%2fpyproject.toml", "/.env", "/api/v1/campaigns/%0d%0aX:%20y", "/api/v1/docs",
    "/docs", "/redoc", "/api/v1/models/%2e%2e%2f%2e%2e", "/api/v1/campaigns/a%2fb/best", "/api/v1//campaigns", "/API/v1/campaigns",
)  # fmt: skip


def test_paths_lead_nowhere_else(api: Asking) -> None:
    for path in PATHS:
        answer = api.get(path)
        assert answer.status_code in (400, 404), (path, answer.text)
        assert "location" not in answer.headers
        assert "root:" not in answer.text


# --- what every answer has, and none has ---------------------------------------------------------------


def test_every_answer_says_what_a_browser_may_do_with_it(api_access: Access) -> None:
    with Served(api_access, tokens=True) as served:
        served.make("read", Role.READ)
        reader, nobody = served.asking("read"), served.asking()
        answers = [
            reader.get(DEVICES),
            nobody.get(f"{PREFIX}/openapi.json"),
            nobody.get(DEVICES),
            reader.post(PAUSE),
            reader.get("/nowhere"),
            reader.post(DEVICES),
            reader.get(f"{PREFIX}/results?limit=0"),
            reader.post(PAUSE, headers={"Origin": "https://evil.example"}),
            reader.post(CHECK, headers={"Content-Length": "99999999999"}),
        ]
        served.execute("ALTER TABLE devices RENAME TO gone")
        answers.append(reader.get(DEVICES))
    assert [answer.status_code for answer in answers] == [200, 200, 401, 403, 404, 405, 422, 403, 413, 500]
    for answer in answers:
        assert all(answer.headers[name] == value for name, value in HEADERS.items())
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


def test_no_secret_is_in_any_answer_or_log_line(
    api_access: Access, caplog: pytest.LogCaptureFixture, engine: Engine, database_url: str
) -> None:
    caplog.set_level(logging.DEBUG, "farm")
    password = make_url(database_url).password
    assert isinstance(password, str)
    assert len(password) > 20
    said = list[str]()
    with Served(api_access, tokens=True) as served:
        token = served.make("ann", Role.ADMIN)
        ann = served.asking("ann")
        ask = [lambda known=known: ann.ask(known) for known in OPERATIONS.values()]
        said += [each().text for each in ask]
        said.append(ann.get(f"{DEVICES}?x={token}").text)
        said.append(ann.get(f"{PREFIX}/campaigns/small/jobs?limit=x").text)
        served.execute("ALTER TABLE measurements RENAME TO gone")
        broken = [each() for each in ask]
        assert 500 in {answer.status_code for answer in broken}
        served.execute("ALTER TABLE tokens RENAME TO gone_tokens")
        broken += [each() for each in ask]
        said += [answer.text for answer in broken]
    elsewhere = make_engine(
        make_url(database_url).set(host="127.0.0.1", port=1, query={}).render_as_string(hide_password=False),
        application="test",
    )
    with Served(replaced(api_access, elsewhere), tokens=True) as served:
        answer = Asking(served.asking().client, {"Authorization": f"Bearer {token}"}).get(DEVICES)
        assert (answer.status_code, told(answer)["kind"]) == (503, "DatabaseUnreachable")
        said.append(answer.text)
    elsewhere.dispose()
    assert "a defect at GET" in caplog.text
    assert "the database stopped answering" in caplog.text
    for line in (*said, caplog.text):
        for secret in (token, password, hashlib.sha256(token.encode()).hexdigest()):
            assert secret not in line


def test_a_defect_is_told_without_its_words(api_with_tokens: Served, caplog: pytest.LogCaptureFixture) -> None:
    api_with_tokens.execute("ALTER TABLE hosts RENAME TO gone")
    answer = api_with_tokens.asking("read").get(f"{PREFIX}/devices?host=%0aforged")
    assert answer.status_code == 500
    assert told(answer) == {"kind": "Defect", "message": "This is a defect of the farm; the server's log has more.", "exit_code": 1}  # fmt: skip
    assert "a defect at GET /api/v1/devices" in caplog.text
    assert 'relation "hosts" does not exist' in caplog.text


def test_who_changed_something_is_in_the_log(api_with_tokens: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "farm")
    api_with_tokens.asking("operate").post(PAUSE)
    api_with_tokens.asking("read").get(DEVICES)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("farm.web")] == [
        '"operate" (api, 127.0.0.1): campaigns_pause campaign="small"'
    ]


# --- questions that take too long ----------------------------------------------------------------------


def test_a_question_that_takes_too_long_is_stopped_and_says_what_to_do(api_access: Access, database_url: str) -> None:
    engine = make_engine(database_url, application="test", session={"statement_timeout": "1s"})
    with Served(replaced(api_access, engine), tokens=False) as served:
        served.execute("ALTER TABLE hosts RENAME TO slow_hosts")
        served.execute("CREATE VIEW hosts AS SELECT h.* FROM slow_hosts h, pg_sleep(2)")
        answer = served.asking().get(DEVICES)
        assert (answer.status_code, told(answer)["kind"]) == (503, "TookTooLong")
        assert "Ask for less" in told(answer)["message"]
        # What changes something may take its time.
        assert served.asking().post(f"{PREFIX}/campaigns/small/retry", {}).status_code == 200
    engine.dispose()


def test_the_server_gives_each_question_half_a_minute(engine: Engine) -> None:
    with engine.begin() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "30s"
        take_time(connection)
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "0"
    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "30s"


def test_where_no_connection_is_left_it_is_said(api_access: Access, database_url: str) -> None:
    engine = create_engine(database_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with engine.connect(), Served(replaced(api_access, engine), tokens=False) as served:
        answer = served.asking().get(DEVICES)
        assert (answer.status_code, told(answer)["kind"]) == (503, "DatabaseUnreachable")
    engine.dispose()


def replaced(access: Access, engine: Engine) -> Access:
    """The same farm on another engine."""
    return Access(access.settings, who="test", opened=replace(access.session, engine=engine))

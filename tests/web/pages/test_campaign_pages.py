"""What pages say and do, without a browser: on a real database, through the whole application."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event, text

import farm
from farm import registry
from farm.api import reports
from farm.api.access import Access
from farm.campaign import Campaign, plan
from farm.db import batches, campaigns, devices, imports, tokens
from farm.db.batches import Failure
from farm.db.engine import make_engine
from farm.db.states import FailureKind, Role
from farm.errors import NotPredictable
from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels import FAMILIES
from farm.measurement import Source
from farm.scale import SCALES_OF_BOTH
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.web.app import make_app
from farm.web.pages import devices as device_pages
from farm.web.pages import models, results
from farm.web.security import Policy
from support import learning_curves as curves
from support.commands import NOWHERE, farm_here
from support.samples import card, cpu, document, landed, row
from support.training_tables import log_test_set, without_champion
from support.visiting import visitor

NASTY = "<script>alert('x')</script>"

PAGES = (
    "/", "/campaigns/small", "/campaigns/small/jobs", "/campaigns/small/results", "/campaigns/small/best", "/devices", "/health",
    "/health?any_source=true&type=cpu-test", "/compare", "/cost", "/cost?m=512&n=512&k=512&types=f32", "/plan", "/models", "/models/nvidia-h200", "/submit", "/api",
    "/devices/series", "/campaigns/small/series",
    "/campaigns/nosuch", "/campaigns/small/delete", "/models/nvidia-h200/delete", "/models/nvidia-h200/delete?version=1", "/deleted",
)  # fmt: skip


@pytest.fixture
def filled(engine: Engine) -> int:
    """A device and a campaign of twelve jobs, of which some were measured and one failed for good; the device's id."""
    with engine.begin() as connection:
        device_id = devices.register(connection, host="here", host_facts={}, device=cpu())
    stored = submitted(engine, description=NASTY, owner=NASTY)
    failed: int | None = None
    for _ in range(3):
        with engine.begin() as connection:
            lane = next(one for one in batches.candidates(connection) if one.campaign_id == stored.campaign_id)
            assert batches.lock(connection, lane.lane_id)
            batch_id = batches.form(connection, lane, queue="gpu.cpu-test", jobs=3)
            assert batch_id
            lease = batches.claim(connection, batch_id, device_id=device_id, lease_seconds=60)
            assert lease is not None
            failed = failed or lease.jobs[0].id
            rest = [(job, row()) for job in lease.jobs if job.id != failed]
            batches.land(connection, lease, rest, {failed: Failure(FailureKind.FAILED, f"out of {NASTY}")})
            batches.fold(connection)
    return device_id


def submitted(engine: Engine, **changes: object) -> campaigns.Stored:
    with engine.begin() as connection:
        known = campaigns.known_devices(connection)
        campaign = Campaign.from_document(document(**changes))
        return campaigns.store(connection, campaign, plan(campaign, known, allow_missing=False).jobs())


def imported(engine: Engine, *, content: str, file: str, rows: int, source: Source = Source.IMPORTED) -> None:
    """An import of one card, which `farm import` would leave drained and never heard of."""
    found = replace(card(7, kind="nvidia-h200"), uuid=imports.uuid_of(content, "GPU-elsewhere"))
    with engine.begin() as connection:
        device_id = devices.register(connection, host="imported:elsewhere", host_facts={}, device=found)
        connection.execute(
            text("""
UPDATE devices SET state = 'drained', last_seen_at = '-infinity', first_seen_at = '2020-01-01',
    facts = jsonb_build_object('imported_from', CAST(:file AS text)) WHERE id = :id
"""),
            {"file": file, "id": device_id},
        )
    written = [f"tiled(tile=16) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, rows + 1)]
    landed(engine, device_id, [(one, row(source=source)) for one in written])


def words(page: str) -> str:
    """What a page says, without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)))


# --- what every page holds to ---------------------------------------------------------------------------


def test_pages_say_what_they_are_and_run_no_script_that_stands_in_them(browser_like: httpx.Client, filled: int) -> None:
    for path in PAGES:
        answer = browser_like.get(path)
        assert answer.status_code == (404 if "nosuch" in path else 200), f"{path}: {answer.text}"
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        page = answer.text
        assert re.search(r"<title>[^<]+ · GEMM Farm</title>", page), path
        assert len(re.findall(r"<h1[ >]", page)) == 1, path
        assert f"GEMM Farm {farm.__version__} ·" in words(page), f"the foot of {path} names the version"
        assert NASTY not in page, path
        for tag in re.findall(r"<script[^>]*>", page):
            assert 'src="/static/' in tag, path
        assert not re.search(r"<[^>]+\son\w+=", page), path
        assert "script-src 'self';" in answer.headers["content-security-policy"], path


def test_what_people_wrote_is_text_on_every_page(browser_like: httpx.Client, filled: int) -> None:
    assert NASTY in words(browser_like.get("/campaigns/small").text)
    assert NASTY in words(browser_like.get("/campaigns/small/jobs").text)
    assert NASTY in words(browser_like.get("/").text)
    searched = browser_like.get("/", params={"search": f'"{NASTY}'}).text
    assert NASTY not in searched
    assert 'value="&#34;&lt;script&gt;' in searched


def test_a_part_that_changes_comes_alone_and_for_the_last_time_where_the_campaign_is_over(
    browser_like: httpx.Client, filled: int
) -> None:
    update = {"HX-Request": "true"}
    for path in ("/", "/devices", "/campaigns/small"):
        whole, part = browser_like.get(path).text, browser_like.get(path, headers=update)
        assert part.status_code == 200
        assert part.text.strip().startswith('<div id="live" data-live')
        assert "<html" in whole
        assert "<html" not in part.text
    browser_like.post("/campaigns/small/steer", data={"to": "cancel"})
    over = browser_like.get("/campaigns/small", headers=update)
    assert over.status_code == 286
    assert "hx-get" not in over.text


@pytest.mark.parametrize("more", [1, 20])
def test_lists_ask_the_database_as_often_whatever_they_list(
    engine: Engine, browser_like: httpx.Client, filled: int, more: int
) -> None:
    for number in range(more):
        submitted(engine, name=f"more-{number}", problems={"m": 64 + number, "n": 64, "k": 64, "types": ["f32"]})
        with engine.begin() as connection:
            devices.register(connection, host=f"h{number}", host_facts={}, device=cpu(number + 2))
    for path, most in (("/", 14), ("/devices", 8)):
        with counted(engine) as statements:
            assert browser_like.get(path).status_code == 200
        assert len(statements) <= most, statements


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    found = list[str]()

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_errors_are_pages_for_people_and_json_for_programs(browser_like: httpx.Client) -> None:
    page = browser_like.get("/campaigns/nosuch")
    assert "There is no campaign 'nosuch'" in words(page.text)
    assert browser_like.get("/nowhere").headers["content-type"].startswith("text/html")
    told = browser_like.get("/campaigns/nosuch", headers={"Accept": "application/json"}).json()
    assert told["error"]["kind"] == "NoSuchCampaign"
    assert browser_like.get("/api/v1/campaigns/nosuch").json()["error"]["exit_code"] == 4


def test_a_database_that_does_not_answer_is_a_page_that_says_so(access: Access) -> None:
    engine = make_engine(NOWHERE, application="test")
    session = Session(access.settings, ServiceUrls(NOWHERE, None, ""), engine)
    app = make_app(Access(access.settings, who="test", opened=session), policy=Policy(tokens=False))
    with visitor(app) as client:
        answer = client.get("/")
    engine.dispose()
    assert answer.status_code == 503
    assert "does not answer" in words(answer.text)


def test_scripts_and_styles_are_kept_for_ever_at_addresses_of_their_content(browser_like: httpx.Client) -> None:
    page = browser_like.get("/submit").text
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {address.partition("?")[0].rpartition("/")[2] for address in addresses} >= {"pages.css", "htmx.min.js"}
    for address in addresses:
        answer = browser_like.get(address)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
        old = browser_like.get(f"{address}0")
        assert old.headers["cache-control"] == "no-cache"
        same = browser_like.get(f"{address}0", headers={"If-None-Match": old.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
    assert browser_like.get("/static/..%2Fapp.py").status_code == 404


# --- submitting and steering ------------------------------------------------------------------------------


WRONG = """\
name: x y
targets: any
problms:
  - shapes: 64x64x64
kernels: [{family: blas, threads: 0}]
"""
RIGHT = """\
name: right
owner: ann
targets: any
problems: {m: 64, n: [64, 128], k: 64, types: f32}
kernels: [{family: blas, threads: 1}]
"""


def test_mistakes_are_those_of_the_command_line_with_the_lines_they_are_about(
    browser_like: httpx.Client, filled: int, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "campaign.yaml").write_text(WRONG)
    told = farm_here(tmp_path, database_url)("submit", "campaign.yaml").stderr.removeprefix("error: ").splitlines()
    answer = browser_like.post("/submit", data={"text": WRONG.replace("\n", "\r\n"), "to": "submit"})
    assert answer.status_code == 400
    shown = words(answer.text)
    assert len(told) == 4
    for line in told:
        assert re.sub(r"\s+", " ", line) in shown
    assert '<span class="n">3</span> problms:</pre>' in answer.text
    assert WRONG in unescape(answer.text)


def test_a_check_counts_and_submits_nothing_and_submitting_leads_to_the_campaign(
    browser_like: httpx.Client, filled: int
) -> None:
    checked = browser_like.post("/submit", data={"text": RIGHT, "to": "check"})
    assert "right: 2 jobs; nothing was submitted" in words(checked.text)
    assert browser_like.get("/campaigns/right").status_code == 404
    done = browser_like.post("/submit", data={"text": RIGHT, "to": "submit"}, follow_redirects=False)
    assert done.status_code == 303
    assert "Submitted: 2 jobs." in words(browser_like.get(done.headers["location"]).text)
    assert "Submitted" not in words(browser_like.get(done.headers["location"]).text)
    again = browser_like.post("/submit", data={"text": RIGHT, "to": "submit"})
    assert "was submitted before" in words(again.text)


def test_a_check_shows_what_is_drawn_from_a_domain_and_takes_no_files(browser_like: httpx.Client, filled: int) -> None:
    block = "problems: {domain: [SOURCE], types: [f32, f64]}\nsearch: {strategy: random, problems: 10}"
    text = RIGHT.replace("problems: {m: 64, n: [64, 128], k: 64, types: f32}", block)
    shown = words(
        browser_like.post(
            "/submit", data={"text": text.replace("SOURCE", "{m: 8..16, n: 64, k: 32}"), "to": "check"}
        ).text
    )
    assert "10 configurations of 10 problems are measured." in shown
    assert "64 / 64 / 64 32 / 32 / 32" in shown
    assert shown.count("x64x32") == 8
    assert "batch" not in shown
    batched = text.replace("SOURCE", "{m: 8..16, n: 64, k: 32}").replace("[f32, f64]", "f32, batch: [2, 4]")
    shown = words(browser_like.post("/submit", data={"text": batched, "to": "check"}).text)
    assert "k: min / median / max batch: min / median / max" in shown
    assert "32 / 32 / 32 2 / " in shown
    assert re.search(r"x64x32 batch=[24]\b", shown)
    assert "scale" not in shown
    wrong = browser_like.post("/submit", data={"text": text.replace("SOURCE", "{file: /etc/hostname}"), "to": "check"})
    assert wrong.status_code == 400
    assert "/etc/hostname was not sent with the campaign, and the server opens no files; list the shapes" in words(
        wrong.text
    )


def test_a_check_shows_scale_factors_and_fused_operations_that_are_drawn(
    browser_like: httpx.Client, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "blas", replace(FAMILIES["blas"], scales=SCALES_OF_BOTH, fusions=tuple(Fusion)))
    block = """problems: {domain: [{m: 8..16, n: 64, k: 32}], types: f32, scale: [row, tensor], fused: [none, bias+gelu]}
search: {strategy: random, problems: 10}"""
    text = RIGHT.replace("problems: {m: 64, n: [64, 128], k: 64, types: f32}", block)
    shown = words(browser_like.post("/submit", data={"text": text, "to": "check"}).text)
    assert "flops: min / median / max scale fused" in shown
    assert "row, tensor bias+gelu, none" in shown
    assert re.search(r"x64x32 scale=(row|tensor) fused=bias\+gelu", shown)
    assert "batch" not in shown


def test_a_file_goes_before_the_text_and_its_name_is_in_its_mistakes(browser_like: httpx.Client, filled: int) -> None:
    def sent(name: str, content: bytes) -> str:
        return words(browser_like.post("/submit", data={"text": WRONG}, files={"file": (name, content)}).text)

    assert "right: 2 jobs" in sent("mine.yaml", RIGHT.encode())
    assert "folder/mine.yaml" not in sent("folder/mine.yaml", b"name: [")
    assert "mine.yaml:1" in sent("folder/mine.yaml", b"name: x y\n")
    assert "bad.yaml:2: byte 8 is not UTF-8" in sent("bad.yaml", b"name: x\n\xff\n")


def test_a_campaign_is_paused_resumed_retried_and_cancelled(browser_like: httpx.Client, filled: int) -> None:
    def done(path: str, **form: str) -> str:
        return words(browser_like.post(f"/campaigns/small/{path}", data=form).text)

    assert "Paused." in done("steer", to="pause")
    assert "Already in that state" in done("steer", to="pause")
    assert "Resumed." in done("steer", to="resume")
    assert "1 job is open again" in done("retry")
    assert "Cancelled." in done("steer", to="cancel")
    assert "small is cancelled, and nothing of it waits" in done("steer", to="resume")
    assert "pause, resume or cancel" in done("steer", to="melt")


def test_a_campaign_is_deleted_after_a_question_and_restored(browser_like: httpx.Client, filled: int) -> None:
    asked = browser_like.get("/campaigns/small/delete").text
    assert "campaign small (" in words(asked)
    assert "12 jobs, 2 rows" in words(asked)
    assert "Cancel its 9 open jobs" in words(asked)
    assert "small has 9 open jobs" in words(browser_like.post("/campaigns/small/delete").text)
    digest = re.search(r"/campaigns/(\w+)/delete", asked)
    assert digest is not None
    gone = browser_like.post(f"/campaigns/{digest[1]}/delete", data={"cancel": "true"}).text
    assert "Deleted. You can restore it below" in words(gone)
    assert "by the web page" in words(gone)
    assert browser_like.get("/campaigns/small").status_code == 404
    whole = re.search(r'name="name" value="(\w+)"', gone)
    assert whole is not None
    back = words(browser_like.post("/deleted/restore", data={"kind": "campaign", "name": whole[1]}).text)
    assert "Restored." in back
    assert "Nothing was deleted." in back
    assert "cancelled" in words(browser_like.get("/campaigns/small").text)


def test_an_import_is_deleted_after_its_dependents_are_shown_and_restored(
    browser_like: httpx.Client, engine: Engine
) -> None:
    # Of the source that the registered model was trained on, so that the model is among the dependents.
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=3, source=Source.MEASURED)
    listed = browser_like.get("/devices").text
    (confirmation,) = re.findall(r'href="(/imports/[^"]+/delete)"', listed)
    assert confirmation == "/imports/3fa94c0e11d2ab47/delete"
    asked = browser_like.get(confirmation).text
    assert "import elsewhere.parquet (3fa94c0e11d2): 3 rows." in words(asked)
    assert "gemm-forest-nvidia-h200/1 = champion" in words(asked), "models that may have been trained on its rows"
    assert "GPU-elsewhere" in listed, "nothing is deleted before the confirmation"
    (action,) = re.findall(r'<form method="post" action="(/imports[^"]+)"', asked)
    gone = browser_like.post(action).text
    assert "Deleted. You can restore it below" in words(gone)
    assert "GPU-elsewhere" not in browser_like.get("/devices").text
    assert browser_like.get(confirmation).status_code == 404
    assert "Restored." in words(_restored(browser_like, gone))
    assert "GPU-elsewhere" in browser_like.get("/devices").text


def test_versions_of_a_model_are_deleted_after_their_dependents_are_shown_and_restored(
    access: Access, registry_with_a_model: Path, tmp_path: Path
) -> None:
    copied = shutil.copyfile(registry_with_a_model / "mlflow.db", tmp_path / "mlflow.db")
    settings = access.settings.model_copy(update={"mlflow_tracking_uri": f"sqlite:///{copied}"})
    own = Access(settings, who="test", opened=access.session)
    with visitor(make_app(own, policy=Policy(tokens=False))) as client:
        page = client.get("/models/nvidia-h200").text
        (confirmation,) = re.findall(r'href="(/models/[^"]+/delete\?[^"]+)"', page)
        asked = client.get(unescape(confirmation)).text
        assert "gemm-forest-nvidia-h200 version 1" in words(asked)
        assert "No earlier champion is left" in words(asked)
        assert client.get("/models/nvidia-h200").status_code == 200, "nothing is deleted before the confirmation"
        (action,) = re.findall(r'<form method="post" action="(/models[^"]+)"', asked)
        (version,) = re.findall(r'name="version" value="([^"]+)"', asked)
        gone = client.post(action, data={"version": version}).text
        assert "gemm-forest-nvidia-h200/1" in words(gone)
        assert client.get("/models/nvidia-h200").status_code == 404
        assert "Restored." in words(_restored(client, gone))
        assert "champion" in words(client.get("/models/nvidia-h200").text)
        everything = client.get("/models/nvidia-h200/delete").text
        assert 'name="version"' not in everything
        assert client.post("/models/gemm-forest-nvidia-h200/delete").status_code == 200
        assert client.get("/models/nvidia-h200").status_code == 404


def _restored(client: httpx.Client, deleted: str) -> str:
    """The page after pressing the first Restore button of the list of deletions."""
    form = re.search(r'name="kind" value="(\w+)"><button name="name" value="([^"]+)"', deleted)
    assert form is not None
    return client.post("/deleted/restore", data={"kind": form[1], "name": form[2]}).text


def test_devices_come_page_by_page_with_imported_ones_last(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=3)
    with engine.begin() as connection:
        devices.register(connection, host="there", host_facts={}, device=card(1))
    at_once = re.findall(r'<tr id="(d\d+)"', browser_like.get("/devices").text)
    assert len(at_once) == 3
    monkeypatch.setattr(device_pages, "PAGE", 1)
    pages, link = [], "/devices"
    while link:
        pages.append(browser_like.get(link).text)
        (link,) = (
            map(unescape, re.findall(r'href="([^"]+)" rel="next"', pages[-1])) if "Next page" in pages[-1] else ("",)
        )
    assert [re.findall(r'<tr id="(d\d+)"', page) for page in pages] == [[one] for one in at_once]
    assert "GPU-elsewhere" in pages[-1]
    assert 'hx-get="/devices?page=2"' in pages[1], "a refresh keeps the page"
    assert 'href="/devices"' in pages[1], "the first page"
    beyond = browser_like.get("/devices?page=99").text
    assert "No devices match" in beyond
    assert browser_like.get("/devices?page=0").status_code == 422


def test_devices_are_taken_out_of_work_with_a_reason_and_back(browser_like: httpx.Client, filled: int) -> None:
    def done(to: str, reason: str = "") -> str:
        return words(browser_like.post("/devices", data={"which": "CPU-1", "to": to, "reason": reason}).text)

    assert "Give a reason" in done("quarantine", "  ")
    assert "too hot (by the web page)" in done("quarantine", "too hot")
    assert "1 device resumed" in done("resume")
    assert "drained by the web page" in done("drain")
    assert "Already in that state" in done("drain")


def test_a_page_of_another_site_changes_nothing(browser_like: httpx.Client, filled: int) -> None:
    answer = browser_like.post(
        "/campaigns/small/steer", data={"to": "cancel"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 403
    assert browser_like.get("/api/v1/campaigns/small").json()["state"] == "active"


def test_only_words_of_the_list_are_said(browser_like: httpx.Client) -> None:
    for cookie in (f"{NASTY}.1", "submitted.x", "submitted", "submitted.99999999999999"):
        browser_like.cookies.set("farm_said", cookie)
        assert 'class="said"' not in browser_like.get("/").text


# --- tokens -----------------------------------------------------------------------------------------------


@pytest.fixture
def token(engine: Engine) -> Callable[[Role], str]:
    def made(role: Role) -> str:
        with engine.begin() as connection:
            return tokens.create(connection, f"some-{role}", role, by="test")

    return made


def test_signing_in_leads_back_and_signing_out_ends_it(
    browser_with_tokens: httpx.Client, filled: int, token: Callable[[Role], str]
) -> None:
    client = browser_with_tokens
    refused = client.get("/compare?by=type", follow_redirects=False)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login?next=/compare%3Fby%3Dtype")
    assert client.get("/", headers={"HX-Request": "true"}).headers["hx-redirect"] == "/login"
    assert client.get("/api/v1/campaigns").status_code == 401
    wrong = client.post("/login", data={"token": "gfarm_no"})
    assert wrong.status_code == 401
    assert "farm_session" not in wrong.headers.get("set-cookie", "")
    done = client.post(
        "/login", data={"token": f" {token(Role.READ)} ", "next": "/compare?by=type"}, follow_redirects=False
    )
    assert (done.status_code, done.headers["location"]) == (303, "/compare?by=type")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    assert "some-read (role read)" in words(client.get("/").text)
    assert "Signed out." in words(client.post("/logout").text)
    assert client.get("/", follow_redirects=False).status_code == 303


def test_over_https_the_cookie_stays_there(access: Access, token: Callable[[Role], str]) -> None:
    app = make_app(access, policy=Policy(tokens=True))
    with visitor(app, "https://farm.example") as client:
        done = client.post("/login", data={"token": token(Role.READ)}, follow_redirects=False)
    assert "Secure" in done.headers["set-cookie"]


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"])
def test_nobody_is_led_elsewhere_after_signing_in(
    browser_with_tokens: httpx.Client, token: Callable[[Role], str], after: str
) -> None:
    done = browser_with_tokens.post("/login", data={"token": token(Role.READ), "next": after}, follow_redirects=False)
    assert done.headers["location"] == "/"


def test_a_role_sees_and_does_no_more_than_it_may(
    browser_with_tokens: httpx.Client, engine: Engine, filled: int, token: Callable[[Role], str]
) -> None:
    client = browser_with_tokens
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=1)
    seen = {}
    for role in Role:
        client.post("/login", data={"token": token(role)})
        pages = {
            path: client.get(path).text for path in ("/campaigns/small", "/devices", "/submit", "/models/nvidia-h200")
        }
        seen[role] = (
            'value="pause"' in pages["/campaigns/small"],
            'value="drain"' in pages["/devices"],
            'value="submit"' in pages["/submit"],
            "/delete" in pages["/campaigns/small"],
            "/imports/3fa94c0e11d2ab47/delete" in pages["/devices"],
            "/models/gemm-forest-nvidia-h200/delete" in pages["/models/nvidia-h200"],
        )
        if role is Role.READ:
            for path, form in (
                ("/campaigns/small/steer", {"to": "pause"}),
                ("/campaigns/small/retry", {}),
                ("/campaigns/small/delete", {"cancel": "true"}),
                ("/models/nvidia-h200/delete", {"version": "1"}),
                ("/imports/3fa94c0e11d2ab47/delete", {}),
                ("/deleted/restore", {"kind": "campaign", "name": "small"}),
                ("/devices", {"which": "CPU-1", "to": "drain"}),
                ("/submit", {"text": RIGHT, "to": "submit"}),
            ):
                assert client.post(path, data=form).status_code == 403, path
            assert client.post("/submit", data={"text": RIGHT, "to": "check"}).status_code == 200
    assert seen == {
        Role.READ: (False, False, False, False, False, False),
        Role.SUBMIT: (False, False, True, False, False, False),  # the campaign is somebody else's
        Role.OPERATE: (True, True, True, True, True, True),
        Role.ADMIN: (True, True, True, True, True, True),
    }


# --- learning campaigns --------------------------------------------------------------------------------------


def figures_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in re.findall("data-chart='(.*?)'>", page, re.DOTALL)]


def test_a_learning_campaign_shows_its_curve_as_a_chart_a_table_and_the_reason_for_its_end(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    curves.decided(engine, submitted(engine, **curves.LEARNS).campaign_id)
    page = browser_like.get("/campaigns/learning").text
    (chart,) = figures_of(page)
    band, every, *families = chart["data"]
    assert [trace["name"] for trace in (every, *families)] == ["all, with 95% interval", "blas", "tiled"]
    assert (every["x"], every["y"]) == ([100, 200, 300], [20, 10, 8])
    assert (band["fill"], band["y"]) == ("toself", [25, 12.5, 10, 6.4, 8, 16]), "upper bounds, and lower ones back"
    assert every["line"]["width"] > max(trace["line"]["width"] for trace in families)
    assert (chart["layout"]["yaxis"]["type"], chart["layout"]["xaxis"]["title"]["text"]) == ("log", "device time (s)")
    shown = words(page)
    assert f"No further round is measured: {curves.BUDGET_USED}." in shown
    assert "20.0% after 100 device seconds, 8.0% (95% interval 6.4 to 10.0%) after 300 device seconds" in shown
    assert "3 300 3,600 40 8.0% 6.4–10.0 4.0% 16.0% 10.0% 6.0% ended" in shown
    assert "2 200 2,400 40 10.0% 8.0–12.5 5.0% 20.0% 12.0% 8.0% 20 jobs of 10 problems" in shown
    for script in ("plotly.min.js", "charts.js"):
        assert script in page.partition("</head>")[0]
    assert "plotly" not in browser_like.get("/campaigns/small").text, "a campaign that does not learn loads no Plotly"


def test_a_curve_appears_and_grows_with_the_live_part_of_its_page(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    stored = submitted(engine, **curves.LEARNS)
    update = {"HX-Request": "true"}
    whole = browser_like.get("/campaigns/learning").text
    assert "plotly.min.js" in whole, "the chart may appear while somebody looks"
    assert "Learning curve" not in words(whole)
    counts = []
    for number, point in enumerate(curves.CURVE[:2], start=1):
        curves.decided(engine, stored.campaign_id, [point], first=number)
        part = browser_like.get("/campaigns/learning", headers=update).text
        assert 'id="learning1-plot" data-keep' in part, "what Plotly drew is not taken away"
        assert "No further round" not in part
        counts.append(len(figures_of(part)[0]["data"][-1]["x"]))
    assert counts == [1, 2]


def test_a_round_that_could_not_be_decided_is_told_with_its_error(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    stored = submitted(engine, **curves.LEARNS)
    curves.decided(engine, stored.campaign_id, curves.CURVE[:1], error=f"no memory {NASTY}")
    page = browser_like.get("/campaigns/learning").text
    assert f"No further round is measured: round 2 could not be decided (no memory {NASTY})." in words(page)
    assert NASTY not in page
    (chart,) = figures_of(page)
    assert "error_y" in chart["data"][0], "the interval of a single point is a bar"


# --- results, comparing, costs, models ----------------------------------------------------------------------


def test_results_come_page_by_page_and_as_a_whole_file(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, 8)]
    landed(engine, filled, [(one, row(m)) for m, one in enumerate(written, start=1)], campaign_id=1)
    monkeypatch.setattr(results, "PAGE", 4)
    monkeypatch.setattr(results, "AT_ONCE", 2)
    first = browser_like.get("/campaigns/small/results").text
    (following,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = browser_like.get(unescape(following)).text
    (last,) = re.findall(r'href="([^"]+)" rel="next"', second)
    third = browser_like.get(unescape(last)).text
    assert [page.count("<tr>") - 1 for page in (first, second, third)] == [4, 4, 1]
    assert "Next page" not in third
    file = browser_like.get("/campaigns/small/results.csv")
    assert len(file.text.splitlines()) == 10
    assert "attachment" in file.headers["content-disposition"]
    chosen = browser_like.get("/campaigns/small/results.csv", params={"where": "m <= 3"})
    assert len(chosen.text.splitlines()) == 4
    wrong = browser_like.get("/campaigns/small/results", params={"where": "nosuch > 1"})
    assert wrong.status_code == 400
    assert "nosuch" in words(wrong.text)
    assert 'value="nosuch &gt; 1"' in wrong.text


def test_burst_times_and_protocols_are_shown_where_they_differ(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in (1, 2, 3)]
    times = [{"runtime_burst_ms": 0.8125}, {"runtime_burst_ms": 0.9925}, {"protocol": "server"}]
    landed(engine, filled, list(zip(written, (row(1.0, **more) for more in times), strict=True)), campaign_id=1)
    shown = words(browser_like.get("/campaigns/small/results").text)
    assert "1 burst 0.8125" in shown
    assert "0.9925" not in shown
    assert "measured, protocol server" in shown
    assert "protocol farm" not in shown
    assert "1 burst 0.8125" in words(browser_like.get("/campaigns/small/best").text)
    assert "700 power-limited" not in words(browser_like.get("/devices").text)
    landed(engine, filled, [(written[0], row(1.0, power_limit_w=700.0, power_limited=True))])
    assert "700 power-limited" in words(browser_like.get("/devices").text)
    assert "· protocol" not in words(browser_like.get("/campaigns/small").text)
    submitted(engine, name="loaded", measure={"protocol": "server"})
    assert "· protocol server ·" in words(browser_like.get("/campaigns/loaded").text)


def test_a_comparison_is_a_link_and_says_what_the_command_line_says(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    with engine.begin() as connection:
        other = devices.register(connection, host="there", host_facts={}, device=cpu(2))
    written = [f"blas(threads=1) {m}x64x64 f32:f32:f32 nn alpha=1 beta=0" for m in range(1, 9)]
    landed(engine, filled, [(one, row(2.0)) for one in written])
    landed(engine, other, [(one, row(3.0)) for one in written])
    answer = browser_like.get("/compare", params={"side": ["here", "there", ""]})
    shown = words(answer.text)
    assert "1.5000 1.5000–1.5000" in shown
    assert "8 slower" in shown
    (chart,) = re.findall("data-chart='(.*?)'>", answer.text, flags=re.DOTALL)
    assert '"ratio"' not in chart
    assert "1.5" in chart
    told = browser_like.get("/api/v1/compare", params={"side": ["here", "there"], "top": 2}).json()
    assert told["sides"][0]["overall"]["time"]["ratio"] == pytest.approx(1.5)
    assert len(told["sides"][0]["top"]) == 2
    one = browser_like.get("/compare", params={"side": "here"})
    assert one.status_code == 400
    assert "Name two or more groups" in words(one.text)
    assert 'value="here"' in one.text


def two_cards(engine: Engine) -> list[int]:
    """Registers an H200 of each of two hosts."""
    with engine.begin() as connection:
        return [
            devices.register(connection, host=f"host{n}", host_facts={}, device=card(n, kind="nvidia-h200"))
            for n in (1, 2)
        ]


def test_a_comparison_of_two_protocols_names_the_time_that_it_compares(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    others = two_cards(engine)
    written = [f"tiled(tile=16) {n}x{n}x{n} f32:f32:f32 nn alpha=1 beta=0" for n in range(256, 1024, 64)]
    landed(engine, others[0], [(one, row(1.0, runtime_burst_ms=0.85)) for one in written])
    landed(engine, others[1], [(one, row(2.0, runtime_burst_ms=1.9)) for one in written])
    landed(engine, others[1], [(one, row(1.7, protocol="aiconfigurator")) for one in written])
    settled = words(browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=farm"]}).text)
    assert "Time Burst time TFLOP/s" in settled
    assert "2.0000 2.0000–2.0000 2.2353 2.2353–2.2353" in settled
    common = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=aiconfigurator"]}).text
    assert "Protocols differ, and burst times are compared: GPU-1 has farm (12 rows)" in words(common)
    assert "Shapes Burst time TFLOP/s" in words(common)
    assert "burst time / burst time of A (baseline)" in common
    chosen = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2,protocol=farm"], "time": "burst"})
    assert "<option selected>burst</option>" in chosen.text
    assert "2.2353 2.2353–2.2353" in words(chosen.text)
    refused = browser_like.get("/compare", params={"side": ["GPU-1", "GPU-2"], "time": "fastest"})
    assert refused.status_code == 400


def test_what_a_side_lacks_is_submitted_with_a_button_or_predicted_apart(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    others = two_cards(engine)
    written = [f"tiled(tile=16) {n}x{n}x{n} f32:f32:f32 nn alpha=1 beta=0" for n in (256, 320, 512, 640, 768, 1024)]
    landed(engine, others[0], [(one, row(2.0)) for one in written])
    landed(engine, others[1], [(one, row(2.0)) for one in written[:2]])
    sides = {"side": ["GPU-1", "GPU-2"]}
    shown = browser_like.get("/compare", params=sides).text
    assert "Measure missing configurations" in words(shown)
    assert "With predictions" not in words(shown)
    apart = browser_like.get("/compare", params={**sides, "predict": "true"}).text
    assert "With predictions" not in words(apart)
    assert "No predictions for GPU-2: gemm-forest-nvidia-h200 v1 learned from rows of another protocol" in words(apart)
    (address,) = re.findall(r'href="(/compare[^"]+)">Also predict with models of other measuring protocols', apart)
    foretold = words(browser_like.get(unescape(address)).text)
    assert "With predictions" in foretold
    assert "MIXED protocols: gemm-forest-nvidia-h200 v1" in foretold
    assert "Training data of gemm-forest-nvidia-h200 v1, which predicts GPU-2" in foretold
    assert "Protocol farm, unknown: L2, operands, clocks" in foretold
    assert "4 of GPU-2 by gemm-forest-nvidia-h200 v1" in foretold
    done = browser_like.post("/compare", data=sides)
    assert done.status_code == 200
    assert "GPU-2 4 configurations are missing. 4 jobs in fill-" in words(done.text)
    with engine.connect() as connection:
        (fill,) = [c for c in campaigns.overview(connection) if c["name"].startswith("fill-")]
    assert sum(fill["counts"].values()) == 4


def test_health_names_the_slow_device_with_its_evidence(browser_like: httpx.Client, engine: Engine) -> None:
    written = [f"tiled(tile=16) {n}x64x64 f32:f32:f32 nn alpha=1 beta=0" for n in range(64, 94)]
    for number in range(1, 5):
        with engine.begin() as connection:
            device = devices.register(connection, host="there", host_facts={}, device=card(number))
        slow = 1.2 if number == 3 else 1.0
        landed(engine, device, [(one, row(slow * (1 + n / 10))) for n, one in enumerate(written)])
    shown = words(browser_like.get("/health").text)
    assert "1 of 4 devices needs attention" in shown.replace("device needs", "devices needs")
    assert "slow takes 1.2000" in shown
    assert "drain GPU-3" in shown
    unknown = browser_like.get("/health", params={"type": "nosuch"})
    assert unknown.status_code in (200, 404)
    wrong = browser_like.get("/health", params={"since": "soon"})
    assert wrong.status_code == 400
    assert "'soon' is not a time" in words(wrong.text)


def test_a_report_opens_in_the_browser_with_its_scripts_and_without_the_farms_origin(
    browser_like: httpx.Client, filled: int
) -> None:
    page = browser_like.get("/campaigns/small").text
    (path,) = re.findall(r'href="([^"]+/report)"', page)
    report = browser_like.get(path)
    assert report.status_code == 200
    assert report.headers["content-type"].startswith("text/html")
    assert not report.headers.get("content-disposition", "").startswith("attachment")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in report.headers["content-security-policy"]
    assert NASTY not in report.text
    back = re.findall(r'<li><a href="(/[^"]*)"', report.text)
    assert back[:2] == ["/", path.removesuffix("/report")]
    assert browser_like.get(back[1]).status_code == 200
    saved = browser_like.get(unescape(back[2]))
    assert saved.headers["content-disposition"].startswith("attachment")
    for alone in (saved, browser_like.get(f"/api/v1{path}")):
        markup = re.sub(r"<script.*?</script>", "", alone.text, flags=re.DOTALL)
        assert 'href="#' in markup
        assert not re.search(r'href="[^#]', markup), "a file has no link that may lead nowhere"
    missing = browser_like.get("/campaigns/nosuch/report")
    assert (missing.status_code, "There is no campaign" in words(missing.text)) == (404, True)


def test_a_report_is_drawn_again_only_where_what_it_is_made_of_changed(
    browser_like: httpx.Client, engine: Engine, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    real = reports.rendered

    def counted(access: Access, campaign: str, **options: Any) -> Any:
        drawn.append(campaign)
        return real(access, campaign, **options)

    monkeypatch.setattr(reports, "rendered", counted)
    (path,) = re.findall(r'href="([^"]+/report)"', browser_like.get("/campaigns/small").text)
    first = browser_like.get(path)
    assert browser_like.get(path).text == first.text
    assert len(drawn) == 1
    saved = browser_like.get(path, params={"save": "true"})
    assert "<li><a" not in saved.text.split("<h1")[0]  # the file has no links, and is another page
    assert len(drawn) == 2
    with engine.begin() as connection:
        campaign_id = campaigns.find(connection, "small")["id"]
        device = connection.execute(text("SELECT min(id) FROM devices")).scalar_one()
    landed(
        engine,
        device,
        [("blas(threads=1) 640x640x640 f32:f32:f32 nn alpha=1 beta=0", row(3.0))],
        campaign_id=campaign_id,
    )
    assert browser_like.get(path).text != first.text
    assert len(drawn) == 3
    champion = SimpleNamespace(name="gemm-forest-x", version="2", aliases=(registry.CHAMPION,))
    monkeypatch.setattr(registry, "list_models", lambda _: [champion])
    browser_like.get(path)
    assert len(drawn) == 4, "another champion predicts other values"


def test_a_campaign_with_invalid_jobs_is_not_shown_as_a_success(browser_like: httpx.Client, engine: Engine) -> None:
    with engine.begin() as connection:
        devices.register(connection, host="here", host_facts={}, device=cpu())
    submitted(engine, name="refused", kernels=[{"family": "blas", "threads": [64, 128]}])
    with engine.begin() as connection:
        campaigns.finish(connection)
    for path in ("/", "/campaigns/refused"):
        (badge,) = re.findall(r'<span class="badge ([^"]*)">done, ([^<]*)</span>', browser_like.get(path).text)
        assert badge[0] == "done no-results"
        assert badge[1].endswith(" invalid")
    told = browser_like.get("/api/v1/campaigns/refused").json()
    assert (told["verdict"], told["state_text"]) == ("no results", f"done, {badge[1]}")


def test_the_plan_page_shows_what_was_measured_and_what_is_not_covered(
    browser_like: httpx.Client, engine: Engine, filled: int
) -> None:
    layers = ("8x6144x4096", "8x4096x4096", "8x28672x4096", "8x4096x14336", "8x128256x4096")
    rows = [(f"cublaslt(algorithm=0) {one} bf16 nt", row(0.01, power_w=500.0)) for one in layers]
    landed(engine, filled, rows)
    query = {"model": "llama-3.1-8b", "tokens": "8", "on": "cpu-test", "price": "cpu-test=3.6", "max_latency": "2ms"}
    page = browser_like.get("/plan", params=query)
    assert page.status_code == 200
    shown = words(page.text)
    # 129 GEMMs of 0.01 ms; 3.6 an hour is 1 for a million ms.
    assert "cpu-test 8 1.29 1.22" in shown
    assert "Cheapest within 2 ms: cpu-test with 8 tokens in a step of 1.29 ms, 0.1613 for a million tokens." in shown
    assert "Not covered: attention (32), elementwise (32)" in shown
    assert "measured measured cublaslt(algorithm=0)" in shown
    wrong = browser_like.get("/plan", params={"model": "nosuch"})
    assert wrong.status_code == 400
    assert "There is no language model 'nosuch'" in words(wrong.text)


def test_the_cost_page_has_a_batch(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=8")
    assert page.status_code == 200
    assert 'name="batch" value="8"' in page.text
    assert (
        "nvidia-h200 : The model cannot predict this: batch is 8, and this version has learned from no batches"
        in words(page.text)
    )
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "batch=8" in again[1]
    blank = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=")
    assert words(blank.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    wrong = browser_like.get("/cost?m=512&n=512&k=512&types=f32&batch=0")
    assert wrong.status_code == 400
    assert "batch: Input should be greater than or equal to 1" in words(wrong.text)


def test_the_cost_page_has_scale_factors_and_fused_operations(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=1x128:128x128&fused=bias%2Bgelu")
    assert page.status_code == 200
    for chosen in ("1x128:128x128", "bias+gelu"):
        assert f'<option value="{chosen}" selected>' in page.text
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "scale=1x128%3A128x128" in again[1]
    assert "fused=bias%2Bgelu" in again[1]
    assert browser_like.get(unescape(again[1])).status_code == 200
    plain = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=none&fused=none")
    assert words(plain.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    wrong = browser_like.get("/cost?m=512&n=512&k=512&types=f32&scale=2x128")
    assert wrong.status_code == 400
    assert "scale: Input should be 'none', 'tensor', 'row'" in words(unescape(wrong.text))
    other = browser_like.get("/cost?m=512&n=512&k=511&types=f16i4&layout=nt&scale=none:1x128")
    assert other.status_code == 400
    assert "k is 511: two elements of i4 lie in a byte" in words(unescape(other.text))
    offered = re.findall(r'<option value="(\w+)"', other.text)
    assert "bf16f4" in offered
    assert not {"i4", "f4", "i32"} & set(offered)


def test_the_cost_page_has_groups(browser_like: httpx.Client) -> None:
    page = browser_like.get("/cost?m=512&n=512&k=512&types=f32&groups=100*5,0,12")
    assert page.status_code == 200
    assert 'name="groups" value="100*5,0,12"' in page.text
    again = re.search(r'href="(/api/v1/costs[^"]*)"', page.text)
    assert again is not None
    assert "groups=100%2A5%2C0%2C12" in again[1]
    assert browser_like.get(unescape(again[1])).status_code == 200
    blank = browser_like.get("/cost?m=512&n=512&k=512&types=f32&groups=")
    assert words(blank.text) == words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    for groups, why in (
        ("100,12", "they have 112 rows together, and m is 512"),
        ("all", "'all' is not a number of rows"),
    ):
        wrong = browser_like.get(f"/cost?m=512&n=512&k=512&types=f32&groups={groups}")
        assert wrong.status_code == 400
        assert why in words(unescape(wrong.text))


def test_costs_and_recommendations_are_of_the_problem_with_its_scale_factors_fused_operations_and_groups(
    browser_like: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_model: object, problem: Problem, **_options: object) -> None:
        raise NotPredictable(
            why=f"{problem.shape} batch={problem.batch} scale={problem.scale} fused={problem.fused} groups={problem.groups}"
        )

    monkeypatch.setattr(registry, "recommend", refuse)
    query = {"shape": "8x16x32", "batch": 2, "scale": "row", "fused": "bias+relu"}
    (cost,) = browser_like.get("/api/v1/costs", params=query).json()
    refused = browser_like.get("/api/v1/recommend", params=query).text
    for why in (cost["why_not"], refused):
        assert "8x16x32 batch=2 scale=row fused=bias+relu groups=None" in why
    query = {"shape": "8x16x32", "groups": "3,0,5"}
    (cost,) = browser_like.get("/api/v1/costs", params=query).json()
    refused = browser_like.get("/api/v1/recommend", params=query).text
    for why in (cost["why_not"], refused):
        assert "8x16x32 batch=1 scale=none fused=none groups=3,0,5" in why


def test_what_a_gemm_costs_is_the_champions_prediction(browser_like: httpx.Client, access: Access) -> None:
    told = browser_like.get("/api/v1/costs", params={"shape": "512x512x512", "types": "f32", "top": 5}).json()
    best = told[0]["found"]["ranking"][0]
    shown = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    assert f"nvidia-h200 {best['runtime_ms']:.4g} " in shown
    assert best["configuration"].partition(" ")[0] in shown
    assert "Both times are shown where they differ by more than 2%:" in shown
    assert "Protocol farm, unknown: L2, operands, clocks" in shown
    assert "not the champion" not in shown
    with without_champion(access.settings.tracking_uri, "nvidia-h200"):
        labelled = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32").text)
    assert "gemm-forest-nvidia-h200 v1 challenger, not the champion" in labelled
    burst = words(browser_like.get("/cost?m=512&n=512&k=512&types=f32&time=burst").text)
    assert (
        "nvidia-h200 : The model cannot predict this: the model does not know burst times: 0 of the configurations"
        in burst
    )
    wrong = browser_like.get("/cost?m=512&n=-1&k=512&types=f32")
    assert wrong.status_code == 400
    assert "'512x-1x512' is not a shape" in words(wrong.text)
    unknown = words(browser_like.get("/cost?m=512&n=512&k=512&types=i8").text)
    assert (
        "nvidia-h200 : The model cannot predict this: i8:i32:i32 nn was not measured: the model knows tiled" in unknown
    )


def test_a_model_shows_its_errors_champions_and_card(browser_like: httpx.Client) -> None:
    shown = words(browser_like.get("/models/nvidia-h200").text)
    for said in ("unseen shapes", "Version 1 since", "Predicts times"):
        assert said in shown
    assert "Burst time" not in shown


def test_the_independent_test_set_comes_before_the_folds_of_a_model(
    access: Access, registry_with_a_model: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{shutil.copyfile(registry_with_a_model / 'mlflow.db', tmp_path / 'mlflow.db')}"
    version = registry.model_info(uri, "nvidia-h200")
    log_test_set(uri, version)
    log_test_set(uri, version, "runtime_burst_ms")
    settings = access.settings.model_copy(update={"mlflow_tracking_uri": uri})
    with visitor(make_app(Access(settings, who="test", opened=access.session), policy=Policy(tokens=False))) as client:
        shown = words(client.get("/models/nvidia-h200").text)
    row = "Runtime 6.5% 5.9–7.25 4.25% 15.5% 51.5% 79% 88.5% 93.5% 1,200"
    assert row in shown
    assert row.replace("Runtime", "Burst time") in shown
    assert shown.index("Errors on the independent test set") < shown.index(row) < shown.index("unseen shapes")
    assert shown.index("Errors on folds Interpolation inside the training table.") < shown.index("unseen shapes")
    assert "no independent test set" not in shown
    assert "test set" not in shown[shown.index("Errors on folds") : shown.index("Champions")]


def test_a_model_without_a_test_set_says_so(browser_like: httpx.Client) -> None:
    assert "This version has no independent test set." in words(browser_like.get("/models/nvidia-h200").text)


def test_a_model_card_is_markdown_and_no_markup() -> None:
    made = models.written(f"# Head\n\n{NASTY} [a](javascript:alert(1)) ![b](http://c/d.png)\n\n|x|\n|-|\n|1|")
    assert "<h3>Head</h3>" in made
    assert "<table" in made
    for refused in ("<script", 'href="javascript', "<img", "<h1"):
        assert refused not in made


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sqlite:///x/mlflow.db", None),
        ("http://flow:5000/", "http://flow:5000"),
        ("https://ann:secret@flow/ml", "https://flow/ml"),
    ],
)
def test_links_to_mlflow_hold_no_password(uri: str, shown: str | None) -> None:
    assert models._of_mlflow(uri) == shown


def test_every_operation_is_described_with_an_example(browser_like: httpx.Client) -> None:
    page = browser_like.get("/api").text
    for path in browser_like.get("/api/v1/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page
    assert "curl http" in page
    assert "/campaigns" not in browser_like.get("/api/v1/openapi.json").json()["paths"]


def test_what_pages_need_is_in_the_package() -> None:
    root = Path(farm.__file__).parent / "web"
    assert (root / "static" / "htmx.min.js").is_file()
    named = set(re.findall(r"`([\w.-]+\.js)`", (root / "static" / "README.md").read_text()))
    assert named == {path.name for path in (root / "static").glob("*.min.js")}

"""Nobody steers, forges, floods or covers up: campaigns have owners, owners have quotas, and every change is on the record."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

import farm
from farm.api import OPERATIONS, PREFIX
from farm.db import audit, campaigns, devices, quotas, tokens
from farm.db.audit import local_actor
from farm.db.quotas import OwnerLimits
from farm.db.states import Role
from farm.system_account import login_name
from support.commands import Command, farm_here, refused
from support.homes import eventually
from support.samples import cpu
from support.serving import served

FILE = """\
name: {name}
targets: any
problems: {{m: [64, 128, 256], n: {n}, k: [32, 64], types: f32}}
kernels: [{{family: blas, threads: [1, 2]}}]
"""
JOBS = 12
"""Of a campaign of that file."""

DATASET = Path(farm.__file__).parent.parent / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"


def campaign_file(name: str = "sweep", *, n: int = 64, more: str = "") -> str:
    return FILE.format(name=name, n=n) + more


@dataclass
class Somebody:
    """Who holds a token, and asks over HTTP."""

    client: httpx.Client

    def post(self, path: str, document: Any = None) -> httpx.Response:
        return self.client.post(f"{PREFIX}{path}", json=document)

    def submit(self, file: str, **more: Any) -> httpx.Response:
        return self.post("/campaigns", {"text": file, **more})


Make = Callable[..., Somebody]


@pytest.fixture
def device(engine: Engine) -> int:
    with engine.begin() as connection:
        return devices.register(connection, host="here", host_facts={}, device=cpu())


@pytest.fixture
def url(engine: Engine, device: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A farm that asks for tokens, and gives owners 1,000 jobs."""
    monkeypatch.setenv("FARM_QUOTA_OPEN_JOBS", "1000")
    with served(engine, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", tokens=True) as found:
        yield found


@pytest.fixture
def holder(engine: Engine, url: str) -> Iterator[Make]:
    """Makes tokens, and somebody who holds each."""
    made = list[httpx.Client]()

    def make(name: str, role: Role = Role.SUBMIT, **headers: str) -> Somebody:
        with engine.begin() as connection:
            token = tokens.create(connection, name, role, by="test")
        client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}", **headers}, timeout=120)
        made.append(client)
        return Somebody(client)

    yield make
    for client in made:
        client.close()


def states(engine: Engine) -> dict[str, tuple[str, str, int]]:
    """Owner, state and open jobs of each campaign."""
    with engine.connect() as connection:
        return {
            row["name"]: (row["owner"], row["state"], campaigns.open_jobs(row["counts"]))
            for row in campaigns.overview(connection)
        }


def recorded(engine: Engine, **asked: Any) -> list[audit.ChangeRecord]:
    """What is on the record, but for the making of the database; the oldest first."""
    with engine.connect() as connection:
        found = audit.records(connection, **{"after": 0, "limit": 1000, **asked})
    return [one for one in found if one.operation != "db_upgrade"]


def quota(engine: Engine, owner: str, **limits: Any) -> None:
    with engine.begin() as connection:
        quotas.set_(connection, owner, OwnerLimits(**{"open_jobs": None, "device_seconds": None, **limits}))


def forbidden(answer: httpx.Response, kind: str, *says: str) -> None:
    assert answer.status_code == 403, answer.text
    error = answer.json()["error"]
    assert error["kind"] == kind
    for words in says:
        assert words in error["message"]


# --- ownership ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "document"), [("cancel", None), ("pause", None), ("resume", None), ("retry", {"job_ids": []})]
)
def test_nobody_steers_a_campaign_of_somebody_else(
    engine: Engine, holder: Make, path: str, document: dict[str, Any] | None
) -> None:
    ann, bob = holder("ann"), holder("bob")
    assert ann.submit(campaign_file()).status_code == 200
    before = states(engine)
    forbidden(
        bob.post(f"/campaigns/sweep/{path}", document), "NotYourCampaign", "owned by ann", f"can {path} it", "digest"
    )
    assert states(engine) == before == {"sweep": ("ann", "active", JOBS)}
    assert [one.operation for one in recorded(engine)] == ["campaigns_submit"]


def test_an_owner_and_whoever_operates_steer_a_campaign(engine: Engine, holder: Make) -> None:
    ann, boss = holder("ann"), holder("boss", Role.OPERATE)
    ann.submit(campaign_file())
    assert ann.post("/campaigns/sweep/pause").json()["state"] == "paused"
    assert boss.post("/campaigns/sweep/cancel").json()["state"] == "cancelled"
    assert [(one.who, one.operation) for one in recorded(engine)] == [
        ("ann", "campaigns_submit"),
        ("ann", "campaigns_pause"),
        ("boss", "campaigns_cancel"),
    ]


def test_a_campaign_of_the_same_name_gives_no_right_to_the_other(engine: Engine, holder: Make) -> None:
    ann, bob = holder("ann"), holder("bob")
    digest = ann.submit(campaign_file()).json()["digest"]
    assert bob.submit(campaign_file()).json()["digest"] != digest
    forbidden(bob.post(f"/campaigns/{digest}/cancel"), "NotYourCampaign", "owned by ann")
    assert bob.post("/campaigns/sweep/cancel").json()["changed"]
    assert ann.post(f"/campaigns/{digest}/pause").json()["state"] == "paused"


@pytest.mark.parametrize("where", ["file", "request"])
def test_nobody_submits_in_the_name_of_somebody_else(engine: Engine, holder: Make, where: str) -> None:
    bob = holder("bob", **{"X-Farm-User": "ann"})
    forged = (
        bob.submit(campaign_file(more="owner: ann\n")) if where == "file" else bob.submit(campaign_file(), owner="ann")
    )
    forbidden(forged, "OwnerNotYours", "owner is 'ann', and you are 'bob'", "Leave out owner")
    assert states(engine) == {}
    assert bob.submit(campaign_file()).status_code == 200
    assert states(engine)["sweep"][0] == "bob"


def test_who_operates_submits_for_others_and_is_named(engine: Engine, holder: Make) -> None:
    ann, boss = holder("ann"), holder("boss", Role.OPERATE)
    assert boss.submit(campaign_file(more="owner: ann\n")).status_code == 200
    shown = ann.client.get(f"{PREFIX}/campaigns/sweep").json()
    assert (shown["owner"], shown["submitted_by"]) == ("ann", "boss")
    assert ann.post("/campaigns/sweep/pause").status_code == 200


def test_the_account_and_not_the_environment_says_who_submits(engine: Engine, device: int, tmp_path: Path) -> None:
    done = _here(engine, tmp_path)("submit", _file(tmp_path), LOGNAME="mallory", USER="mallory")
    assert done.returncode == 0, done.stderr
    assert recorded(engine)[-1].who == login_name() != "mallory"


def test_a_page_offers_no_steering_of_what_is_somebody_elses(holder: Make) -> None:
    ann, bob = holder("ann"), holder("bob")
    digest = ann.submit(campaign_file()).json()["digest"]
    for who, offered in ((ann, True), (bob, False)):
        page = who.client.get(f"/campaigns/{digest[:12]}", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert ("/steer" in page.text) is offered
    steered = bob.client.post(f"/campaigns/{digest[:12]}/steer", data={"to": "cancel"})
    assert steered.status_code == 403


# --- quotas ------------------------------------------------------------------------------------------


def test_twenty_million_jobs_in_one_request_are_refused(engine: Engine, holder: Make) -> None:
    huge = campaign_file().replace("m: [64, 128, 256]", "m: 1..1666667 +1")
    answer = holder("bob").submit(huge)
    forbidden(
        answer,
        "QuotaExceeded",
        "quota of bob",
        "more than 1,000 jobs",
        "1,000 are allowed",
        "farm quotas set bob --open-jobs",
    )
    assert states(engine) == {}
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 0


def test_jobs_of_several_campaigns_count_together(engine: Engine, holder: Make) -> None:
    bob = holder("bob")
    quota(engine, "bob", open_jobs=2 * JOBS)
    for n in (64, 128):
        assert bob.submit(campaign_file(f"n{n}", n=n)).status_code == 200
    forbidden(bob.submit(campaign_file("third", n=256)), "QuotaExceeded", f"{3 * JOBS} jobs", f"{2 * JOBS} are allowed")
    assert set(states(engine)) == {"n64", "n128"}
    assert bob.submit(campaign_file("n64")).json()["new_jobs"] == 0  # the same again adds nothing
    bob.post("/campaigns/n64/cancel")
    assert bob.submit(campaign_file("third", n=256)).status_code == 200
    forbidden(bob.submit(campaign_file("n64")), "QuotaExceeded")  # which would open it again


def test_quotas_are_of_an_owner_and_not_of_the_farm(engine: Engine, holder: Make) -> None:
    quota(engine, "bob", open_jobs=1)
    forbidden(holder("bob").submit(campaign_file()), "QuotaExceeded")
    assert holder("ann").submit(campaign_file()).status_code == 200
    assert (
        holder("boss", Role.OPERATE).submit(campaign_file("more", more="owner: bob\npriority: 100\n")).status_code
        == 200
    )


def test_trying_again_opens_no_more_jobs_than_the_quota(engine: Engine, holder: Make) -> None:
    bob = holder("bob")
    bob.submit(campaign_file())
    with engine.begin() as connection:
        lane = connection.execute(text("UPDATE jobs SET state = 'dead' RETURNING lane_id")).scalars().first()
        connection.execute(text("UPDATE lanes SET dead = jobs WHERE id = :lane"), {"lane": lane})
    quota(engine, "bob", open_jobs=JOBS - 1)
    forbidden(bob.post("/campaigns/sweep/retry", {}), "QuotaExceeded", f"{JOBS} jobs")
    assert states(engine)["sweep"][2] == 0


def test_estimated_device_time_is_limited(engine: Engine, holder: Make) -> None:
    bob = holder("bob")
    assert bob.submit(campaign_file()).status_code == 200
    used = bob.client.get(f"{PREFIX}/quotas/bob").json()["device_seconds_underway"]
    assert used > 0
    quota(engine, "bob", device_seconds=1.5 * used)
    forbidden(bob.submit(campaign_file("more", n=65)), "QuotaExceeded", "device hours", "--device-hours")
    bob.post("/campaigns/sweep/cancel")
    assert bob.submit(campaign_file("more", n=65)).status_code == 200


@pytest.mark.parametrize("priority", [1, 100, -100])
def test_priorities_have_a_range(engine: Engine, holder: Make, priority: int) -> None:
    bob = holder("bob")
    quota(engine, "ann", min_priority=-5, max_priority=5)
    answer = bob.submit(campaign_file(more=f"priority: {priority}\n"))
    if priority > 0:
        forbidden(answer, "QuotaExceeded", f"priority {priority}", "from -100 to 0", "--max-priority")
        assert states(engine) == {}
    else:
        assert answer.status_code == 200
    ann = holder("ann").submit(campaign_file(more=f"priority: {priority}\n"))
    assert ann.status_code == (200 if -5 <= priority <= 5 else 403)


def test_two_submissions_at_a_time_do_not_pass_a_quota_together(engine: Engine, holder: Make) -> None:
    bob = holder("bob")
    bob.submit(campaign_file())  # makes the pool, for which one submission would wait for the other
    bob.post("/campaigns/sweep/cancel")
    quota(engine, "bob", open_jobs=JOBS)
    answers = dict[int, httpx.Response]()

    def submit(n: int) -> None:
        answers[n] = bob.submit(campaign_file(f"n{n}", n=n))

    threads = [threading.Thread(target=submit, args=(n,)) for n in (64, 128)]
    with engine.begin() as connection:
        quotas.lock(connection, "bob")
        for thread in threads:
            thread.start()
        # Both have stored their jobs, and neither has committed them.
        eventually(lambda: _waiting(engine) == 2)
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers.values()) == [200, 403]
    assert sorted(open_jobs for _, _, open_jobs in states(engine).values()) == [0, JOBS]


def _waiting(engine: Engine) -> int:
    with engine.connect() as connection:
        waiting = text(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        found: int = connection.execute(waiting).scalar_one()
        return found


def test_nobody_sets_a_quota_of_its_own(engine: Engine, holder: Make) -> None:
    forbidden(holder("bob").post("/quotas/bob", {"open_jobs": None, "device_seconds": None}), "RoleTooSmall")
    assert (
        holder("boss", Role.OPERATE).post("/quotas/bob", {"open_jobs": 7, "device_seconds": None}).json()["open_jobs"]
        == 7
    )


# --- the record --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit SET who = 'bob'", "DELETE FROM audit", "DELETE FROM audit WHERE id = 0", "TRUNCATE audit CASCADE"],
)
def test_the_owner_of_the_database_cannot_change_the_record(engine: Engine, statement: str) -> None:
    with audit.change(engine, local_actor(), "test") as change:
        change.record("test", "one")
    before = recorded(engine)
    with pytest.raises(DBAPIError, match="rows of audit stay as they are"), engine.begin() as connection:
        connection.execute(text(statement))
    assert recorded(engine) == before != []


def test_a_superuser_that_turns_triggers_off_changes_no_record_by_that(engine: Engine) -> None:
    """`session_replication_role` turns off all triggers but those that are always on."""
    with engine.connect() as connection:
        fires = text("SELECT tgenabled FROM pg_trigger WHERE tgname = 'audit_stays'")
        assert connection.execute(fires).scalar_one() == "A"


def test_trimming_leaves_a_row(engine: Engine, tmp_path: Path) -> None:
    with audit.change(engine, local_actor(), "test") as change:
        change.record("test", "one")
    farm_command = _here(engine, tmp_path)
    done = farm_command("audit", "trim", "--before", "0s", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["removed"] == 2  # with the one of the migration
    (left,) = recorded(engine)
    assert (left.operation, left.after) == ("audit_trim", {"removed": 2})
    with pytest.raises(DBAPIError, match="stay as they are"), engine.begin() as connection:
        connection.execute(text("DELETE FROM audit"))


def test_each_way_leaves_a_row_with_the_target(engine: Engine, holder: Make, tmp_path: Path) -> None:
    boss = holder("boss", Role.OPERATE)
    here = _here(engine, tmp_path)
    digest = boss.submit(campaign_file()).json()["digest"]
    page = boss.client.post("/campaigns/sweep/steer", data={"to": "pause"})
    assert page.status_code == 303
    assert here("cancel", "sweep").returncode == 0
    submitted, paused, cancelled = recorded(engine)
    for one, way, who in ((submitted, "api", "boss"), (paused, "page", "boss"), (cancelled, "cli", login_name())):
        assert (one.kind, one.name, one.key, one.way, one.who, one.role) == (
            "campaign",
            "sweep",
            digest,
            way,
            who,
            "operate",
        )
    assert submitted.origin == paused.origin == "127.0.0.1"
    assert cancelled.origin.startswith(f"{login_name()}@")
    assert (paused.before, paused.after) == ({"state": "active"}, {"state": "paused"})
    assert (cancelled.before, cancelled.after) == ({"state": "paused"}, {"state": "cancelled"})


def test_a_change_that_is_aborted_leaves_no_row(engine: Engine, holder: Make) -> None:
    bob = holder("bob")
    bob.submit(campaign_file())
    bob.post("/campaigns/sweep/cancel")
    before = recorded(engine)
    assert (
        bob.post("/campaigns/sweep/retry", {}).status_code == 400
    )  # it is cancelled: found out after the jobs were opened
    quota(engine, "bob", open_jobs=1)
    forbidden(bob.submit(campaign_file("more", n=65)), "QuotaExceeded")  # found out after everything was stored
    assert recorded(engine) == before


def test_a_change_without_its_record_is_not_kept(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$")
        )
        connection.execute(text("CREATE TRIGGER no BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION no()"))

    def make(*, recorded: bool) -> None:
        with audit.change(engine, local_actor(), "tokens_create") as change:
            tokens.create(change.connection, "eve", Role.OPERATE, by="eve")
            if recorded:
                change.record("token", "eve")

    with pytest.raises(DBAPIError, match="full"):
        make(recorded=True)
    with pytest.raises(RuntimeError, match="does not record what it changed"):
        make(recorded=False)
    with engine.connect() as connection:
        assert tokens.list_tokens(connection) == []


CHANGING: dict[str, tuple[str, dict[str, Any] | None]] = {
    "campaigns_submit": ("/campaigns", {"text": campaign_file("other", n=65)}),
    "campaigns_pause": ("/campaigns/sweep/pause", None),
    "campaigns_resume": ("/campaigns/sweep/resume", None),
    "jobs_retry": ("/campaigns/sweep/retry", {"job_ids": []}),
    "campaigns_cancel": ("/campaigns/sweep/cancel", None),
    "confirming_confirm": (
        "/recommend/confirm",
        {"device_type": "cpu-test", "configurations": ["blas(threads=1) 96x96x96 f32:f32:f32 nn alpha=1 beta=0"]},
    ),
    "devices_drain": ("/devices/drain", {"which": ["CPU-1"]}),
    "devices_quarantine": ("/devices/quarantine", {"which": ["CPU-1"]}),
    "devices_resume": ("/devices/resume", {"which": ["CPU-1"]}),
    "deletions_delete": ("/deletions", {"kind": "campaign", "name": "sweep"}),
    "deletions_restore": ("/deletions/restore", {"kind": "campaign", "name": "sweep"}),
    "deletions_vacuum": ("/deletions/vacuum", {"older_than_s": 0.0}),
    "quotas_set": ("/quotas/ann", {"open_jobs": 1, "device_seconds": None}),
    "quotas_reset": ("/quotas/ann/reset", None),
    "tokens_create": ("/tokens", {"name": "eve"}),
    "tokens_revoke": ("/tokens/eve/revoke", None),
    "audit_trim": ("/audit/trim", {"before": "365d"}),
}
"""A request for each operation that changes something, in this order."""

ELSEWHERE = {
    "hosts_add",
    "hosts_revoke",
    "imports_import",
    "kernels_add",
    "sessions_revoke",
    "trainings_request",
    "models_promote",
    "models_rollback",
    "comparing_fill",
}
"""Operations that need models, rows or files: tests/web/test_api_audit.py and test_api_administration.py have them."""


def test_every_operation_that_changes_something_is_recorded(engine: Engine, holder: Make) -> None:
    changing = {known.name for known in OPERATIONS.values() if known.changes}
    assert changing == {*CHANGING, *ELSEWHERE}, "say how a new operation is called, so that its record is tested"
    boss = holder("boss", Role.ADMIN)
    boss.submit(campaign_file())
    for name, (path, document) in CHANGING.items():
        before = len(recorded(engine))
        answer = boss.post(path, document)
        assert answer.status_code == 200, (name, answer.text)
        added = recorded(engine)[before:]
        assert [one.operation for one in added] == [name] * len(added) != [], name
        assert all(one.who == "boss" and one.name for one in added)


def test_operations_that_record_nothing_only_read(holder: Make) -> None:
    """What needs no more than the role read must change nothing, since it leaves no row."""
    reading = {known.name for known in OPERATIONS.values() if known.method == "POST" and not known.changes}
    assert reading == {"campaigns_check", "models_predict", "confirming_measured", "plans_plan"}


def test_nothing_changes_the_farm_past_the_record() -> None:
    """Commands and operations open transactions with `change` alone."""
    root = Path(farm.__file__).parent
    past = re.compile(r"\.begin\(\)")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for folder in ("api", "cli", "importers", "compare")
        for path in sorted((root / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if past.search(line)
    ]
    assert found == []


def test_commands_that_change_the_database_are_recorded(engine: Engine, device: int, tmp_path: Path) -> None:
    here = _here(engine, tmp_path)
    commands: list[tuple[tuple[str, ...], tuple[str, str, str]]] = [
        (("tokens", "create", "ann", "--role", "submit"), ("tokens_create", "token", "ann")),
        (("tokens", "revoke", "ann"), ("tokens_revoke", "token", "ann")),
        (("submit", _file(tmp_path)), ("campaigns_submit", "campaign", "sweep")),
        (("pause", "sweep"), ("campaigns_pause", "campaign", "sweep")),
        (("devices", "drain", "CPU-1"), ("devices_drain", "device", "CPU-1 on here")),
        (("quotas", "set", "ann", "--open-jobs", "5"), ("quotas_set", "quota", "ann")),
        (("quotas", "reset", "ann"), ("quotas_reset", "quota", "ann")),
        (("cancel", "sweep"), ("campaigns_cancel", "campaign", "sweep")),
        (("delete", "campaign", "sweep", "--yes"), ("deletions_delete", "campaign", "sweep")),
        (("import", "dataset", str(DATASET)), ("imports_import", "import", DATASET.name)),
        (("delete", "import", DATASET.name, "--yes"), ("deletions_delete", "import", DATASET.name)),
    ]
    for arguments, expected in commands:
        done = here(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        last = recorded(engine)[-1]
        assert (last.operation, last.kind, last.name) == expected
        assert (last.who, last.way) == (login_name(), "cli")


def test_an_upgrade_is_recorded(engine: Engine) -> None:
    with engine.connect() as connection:
        (made,) = audit.records(connection, what="db_upgrade", limit=10)
    assert (made.kind, made.who) == ("database", login_name())
    assert made.after is not None


def test_no_secret_is_recorded(engine: Engine, device: int, tmp_path: Path) -> None:
    token = json.loads(_here(engine, tmp_path)("tokens", "create", "ann", "--json").stdout)["token"]
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT CAST(to_jsonb(audit) AS text) FROM audit")).scalars().all()
    assert not any(token in row or token.removeprefix("gfarm_") in row for row in rows)


def test_the_log_names_the_operation_and_its_target(holder: Make, caplog: pytest.LogCaptureFixture) -> None:
    boss, bob = holder("boss", Role.OPERATE), holder("bob")
    boss.submit(campaign_file())
    with caplog.at_level("INFO", logger="farm"):
        boss.client.post("/campaigns/sweep/steer", data={"to": "pause"})
        bob.post("/campaigns/sweep%0Aforged/cancel")
        boss.post("/devices/drain", {"which": ["CPU-1"], "reason": "a\nb"})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("farm.")]
    assert not any("\n" in line for line in lines)
    assert any(re.search(r'"boss" \(page, 127\.0\.0\.1\): campaigns_pause campaign="sweep"', line) for line in lines)
    assert any('"bob" (api, 127.0.0.1): campaigns_cancel campaign="sweep\\nforged"' in line for line in lines)
    assert any("devices_drain" in line and "CPU-1" in line for line in lines)


# --- reading it --------------------------------------------------------------------------------------


def test_the_record_is_for_who_operates(holder: Make) -> None:
    bob, boss = holder("bob"), holder("boss", Role.OPERATE)
    for path in ("/audit", "/audit/export"):
        assert bob.client.get(f"{PREFIX}{path}").status_code == 403
        assert boss.client.get(f"{PREFIX}{path}").status_code == 200
    assert bob.client.get("/audit").status_code == 403


def test_the_record_is_filtered_and_exported(engine: Engine, holder: Make, tmp_path: Path) -> None:
    ann, boss = holder("ann"), holder("boss", Role.OPERATE)
    digest = ann.submit(campaign_file()).json()["digest"]
    ann.submit(campaign_file("other", n=65))
    boss.post("/campaigns/sweep/pause")
    here = _here(engine, tmp_path)

    def names(*options: str) -> list[tuple[str, str]]:
        done = here("audit", *options, "--json")
        assert done.returncode == 0, done.stderr
        return [(one["operation"], one["name"]) for one in json.loads(done.stdout) if one["operation"] != "db_upgrade"]

    assert names() == [("campaigns_pause", "sweep"), ("campaigns_submit", "other"), ("campaigns_submit", "sweep")]
    assert names("--who", "boss") == names("--what", "pause") == [("campaigns_pause", "sweep")]
    assert (
        names("--on", "sweep")
        == names("--on", digest[:8])
        == [("campaigns_pause", "sweep"), ("campaigns_submit", "sweep")]
    )
    assert names("--on", "campaign other") == [("campaigns_submit", "other")]
    assert len(names("--since", "1h")) == 3
    assert names("--since", "2100-01-01") == []
    assert names("--limit", "1") == [("campaigns_pause", "sweep")]
    refused(here("audit", "--since", "soon"), 2, "soon")
    assert "sweep" in here("audit").stdout
    file = tmp_path / "audit.jsonl"
    assert here("audit", "export", str(file), "--who", "ann").returncode == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["who"], one["name"]) for one in lines] == [("ann", "sweep"), ("ann", "other")]
    page = boss.client.get("/audit?on=sweep", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "campaigns_pause" in page.text
    assert "other" not in page.text


def test_quotas_are_set_on_the_command_line(engine: Engine, holder: Make, tmp_path: Path) -> None:
    holder("ann").submit(campaign_file())
    here = _here(engine, tmp_path)
    here("quotas", "set", "ann", "--open-jobs", "50", "--device-hours", "2", "--max-priority", "10")
    (ann,) = json.loads(here("quotas", "--json").stdout)
    assert (ann["owner"], ann["open_jobs"], ann["device_seconds"], ann["max_priority"]) == ("ann", 50, 7200, 10)
    assert (ann["jobs_underway"], ann["own"]) == (JOBS, True)
    here("quotas", "set", "ann", "--device-hours", "none")
    (ann,) = json.loads(here("quotas", "--json").stdout)
    assert (ann["open_jobs"], ann["device_seconds"]) == (50, None)
    assert "ann" in here("quotas").stdout
    refused(here("quotas", "set", "ann", "--open-jobs", "many"), 2, "--open-jobs many", "none")
    refused(here("quotas", "set", "ann", "--min-priority", "20"), 2, "priority")
    here("quotas", "reset", "ann")
    (ann,) = json.loads(here("quotas", "--json").stdout)
    assert not ann["own"]


def _file(folder: Path) -> str:
    path = folder / "sweep.yaml"
    path.write_text(campaign_file())
    return str(path)


def _here(engine: Engine, folder: Path) -> Command:
    return farm_here(folder, engine.url.render_as_string(hide_password=False))

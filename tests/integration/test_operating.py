"""Operating the farm from the command line: what it says is true, and what it is told it does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.cli import progress as following
from farm.cli.campaigns import direct
from farm.cli.measuring_options import rules_of
from farm.db import batches, devices, jobs, leadership, throughput
from farm.db.batches import Failure
from farm.db.campaigns import Stored
from farm.db.states import DeviceState, FailureKind
from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from support.batch_steps import claim, counts, form, land, leased
from support.commands import Command, farm_here, farm_in, refused
from support.samples import cpu, document

Announce = Callable[[DeviceIdentity], int]
Submit = Callable[[Campaign], Stored]
DOCUMENT = document(measure={"max_attempts": 1, "timing": {"target_rse": 0.02}})


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    # Commands take seconds, and no program speaks for the device of these tests.
    return partial(farm_here(tmp_path, database_url), FARM_SILENT_AFTER_SECONDS="120")


@pytest.fixture
def small(device: int, submit: Submit) -> Stored:
    """12 jobs that are dead after one attempt."""
    return submit(Campaign.from_document(DOCUMENT))


def said(command: Command, *arguments: str) -> str:
    """What the command prints on stdout; it must succeed."""
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(command: Command, *arguments: str) -> Any:
    """The JSON document that the command prints; it must succeed."""
    return json.loads(said(command, *arguments, "--json"))


def ended_badly(engine: Engine, device_id: int) -> dict[str, int]:
    """Measures all that waits but three jobs, and returns those by the class of their error."""
    lease = leased(engine, device_id)
    final = (FailureKind.INVALID, FailureKind.FAILED, FailureKind.KILLED)
    ids = dict(zip(final, (job.id for job in lease.jobs), strict=False))
    land(engine, lease, {i: Failure(kind, f"why it is {kind} [exactly]") for kind, i in ids.items()})
    return {kind.value: i for kind, i in ids.items()}


@contextmanager
def coordinated(engine: Engine) -> Iterator[None]:
    """As while a coordinator leads."""
    with engine.begin() as connection:
        term = leadership.take(connection, host="hal", pid=9000, seconds=3600)
    assert term is not None
    yield
    with engine.begin() as connection:
        leadership.end(connection, term)


def age(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


# --- pause, resume, cancel ---------------------------------------------------------------------------


def test_a_paused_campaign_hands_out_nothing_until_it_is_resumed(
    command: Command, engine: Engine, device: int, small: Stored, tmp_path: Path
) -> None:
    held = leased(engine, device, size=3)
    waiting = form(engine, size=2)
    paused = said(command, "pause", "small")
    assert "small is paused; 9 jobs wait until farm resume small" in paused
    assert "Workers hold 3 more jobs. They finish the 0 in hand" in paused
    assert waiting is not None
    assert claim(engine, waiting, device) is None
    assert form(engine) is None
    (tmp_path / "small.yaml").write_text(json.dumps(DOCUMENT))
    assert "farm resume small" in command("submit", "small.yaml").stderr
    again = told(command, "pause", "small")
    assert (again["changed"], again["state"], again["counts"]["pending"]) == (False, "paused", 9)
    land(engine, held)
    assert "small is active again; 9 jobs wait" in said(command, "resume", "small")
    assert len(leased(engine, device).jobs) == 9
    assert "small was active already; nothing changed" in said(command, "resume", "small")


def test_a_cancelled_campaign_says_what_is_lost_and_what_still_lands(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    held = leased(engine, device, size=3)
    cancelled = said(command, "cancel", "small")
    assert "small is cancelled; 9 jobs will not be measured" in cancelled
    assert "Workers hold 3 more jobs. They finish the 0 in hand" in cancelled
    land(engine, held)
    assert counts(engine, small.campaign_id) == {"done": 3, "cancelled": 9}
    again = told(command, "cancel", "small")
    assert (again["changed"], again["cancelled_jobs"], again["counts"]["done"]) == (False, 9, 3)
    assert "was cancelled already" in said(command, "pause", "small")
    for verb in ("resume", "retry"):
        refused(command(verb, "small"), 2, "small is cancelled", "farm submit")
    assert counts(engine, small.campaign_id) == {"done": 3, "cancelled": 9}


# --- jobs and retry ----------------------------------------------------------------------------------


def test_each_job_is_listed_with_its_error_and_a_command_that_is_the_same_configuration(
    command: Command, engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    other = announce(cpu(0))  # one that could have taken them too
    with engine.begin() as connection:
        devices.set_state(connection, other, DeviceState.DRAINED, "no longer")
    ids = ended_badly(engine, device)
    with engine.connect() as connection:
        stored = {job["job_id"]: Configuration.from_columns(job) for job in jobs.listed(connection, small.campaign_id)}
    listed = told(command, "jobs", "--campaign", "small", "--state", "dead", "--state", "invalid")
    assert {job["job_id"]: job["error_class"] for job in listed} == {i: kind for kind, i in ids.items()}
    for job in listed:
        words = shlex.split(job["command"])
        assert words[:2] == ["farm", "measure"]
        assert Configuration.parse(words[2]) == stored[job["job_id"]]
        assert words[words.index("--device") + 1] == "CPU-1"
        rules = rules_of(words[words.index("--rules") + 1])
        assert (rules.max_attempts, rules.timing.target_rse) == (1, 0.02)
        assert (job["attempts"], job["failed_on"], job["host"]) == (1, "CPU-1", "here")

    killed = said(command, "jobs", "-c", "small", "--class", "killed")
    lines = killed.splitlines()
    assert lines[0].startswith(f"{ids['killed']}  dead  blas(threads=")
    assert re.fullmatch(r"    attempt 1 killed on CPU-1, [\d-]+ [\d:]+ UTC: why it is killed \[exactly\]", lines[1])
    assert lines[2].strip() in {job["command"] for job in listed}
    assert len(lines) == 3


def test_a_job_that_was_refused_when_it_was_submitted_says_so(command: Command, device: int, submit: Submit) -> None:
    submit(Campaign.from_document(document(kernels=[{"family": "blas", "threads": [1, 64]}])))
    lines = said(command, "jobs", "-c", "small", "-s", "invalid", "-n", "1").splitlines()
    assert re.fullmatch(r"    invalid when it was submitted, .+ UTC: blas needs 64 threads, the device has 2", lines[1])
    assert lines[2].endswith("alpha=1 beta=0' --device CPU-1")


def test_jobs_are_chosen_by_state_and_id_and_cut_at_the_limit(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    held = leased(engine, device, size=3)
    with engine.begin() as connection:
        batches.mark(connection, held, held.jobs[1], lease_seconds=60)
    running = told(command, "jobs", "-c", "small", "-s", "running")
    assert {job["job_id"]: job["measuring"] for job in running} == {job.id: job is held.jobs[1] for job in held.jobs}
    assert {job["device_uuid"] for job in running} == {"CPU-1"}
    assert "measured now by CPU-1" in said(command, "jobs", "-c", "small", "--job", str(held.jobs[1].id))
    cut = command("jobs", "-c", "small", "--limit", "2")
    assert cut.stdout.count("farm measure ") == 2
    assert "--all" in cut.stderr
    whole = command("jobs", "-c", "small", "--limit", "2", "--all")
    assert whole.stdout.count("farm measure ") == 12
    assert whole.stderr == ""
    assert "No job of small matches" in said(command, "jobs", "-c", "small", "--state", "dead")
    refused(command("jobs", "-c", "small", "--job", "1", "--job", "987654"), 4, "small has no job 987654")


def test_retry_opens_what_is_chosen_and_says_what_there_is_where_nothing_matches(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    ids = ended_badly(engine, device)
    assert "1 job is open again" in said(command, "retry", "small", "--class", "killed")
    assert counts(engine, small.campaign_id) == {"done": 9, "dead": 1, "invalid": 1, "pending": 1}
    nothing = said(command, "retry", "small", "--class", "killed")
    assert "No job matches (dead, of class killed)" in nothing
    assert "1 pending, 9 done, 1 invalid, 1 dead" in nothing
    named = said(command, "retry", "small", "--job", str(ids["killed"]))
    assert "The named jobs are: 1 pending" in named
    assert told(command, "retry", "small")["reopened"] == 1
    assert told(command, "retry", "small", "--job", str(ids["invalid"]))["reopened"] == 1
    assert counts(engine, small.campaign_id) == {"done": 9, "pending": 3}
    refused(command("retry", "small", "--job", "987654"), 4, "small has no job 987654")


def test_retry_of_invalid_jobs_is_asked_for(command: Command, engine: Engine, device: int, small: Stored) -> None:
    ended_badly(engine, device)
    said(command, "pause", "small")
    opened = said(command, "retry", "small", "--state", "invalid")
    assert "1 job is open again" in opened
    assert "farm resume small" in opened
    assert counts(engine, small.campaign_id) == {"done": 9, "dead": 2, "pending": 1}


# --- devices -----------------------------------------------------------------------------------------


def test_a_device_quarantined_by_hand_claims_nothing_until_it_is_resumed(
    command: Command, engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    batch_id = form(engine)
    assert batch_id is not None
    done = said(command, "devices", "quarantine", "CPU-1", "--reason", "hot")
    assert "CPU-1 on here is quarantined: hot (by " in done
    assert claim(engine, batch_id, device) is None
    announce(cpu())  # its worker starts again
    with engine.begin() as connection:
        devices.heartbeat(connection, device)
    assert claim(engine, batch_id, device) is None
    (row,) = told(command, "devices")
    assert (row["state"], row["presence"]) == ("quarantined", "live")
    assert row["state_reason"].startswith("hot (by ")
    assert re.search(r"CPU-1: quarantined .+ ago: hot \(by .+\)", said(command, "devices"))
    (change,) = told(command, "devices", "resume", "CPU-1")
    assert (change["before"], change["state"], change["changed"]) == ("quarantined", "active", True)
    assert claim(engine, batch_id, device) is not None
    assert "CPU-1 on here was active already" in said(command, "devices", "resume", "host:here")


def test_a_drained_device_finishes_what_it_holds_and_gets_no_more(
    command: Command, engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    announce(cpu(2))
    held = leased(engine, device, size=3)
    done = said(command, "devices", "drain", "host:here", "--reason", "new power supply")
    assert "CPU-1 on here is drained: new power supply (by " in done
    assert f"It finishes batch {held.batch_id} and takes no more." in done
    assert "CPU-2 on here is drained" in done
    land(engine, held)
    assert form(engine) is None
    again = said(command, "devices", "drain", "CPU-2")
    assert "CPU-2 on here was drained already (new power supply (by " in again
    changes = told(command, "devices", "resume", "CPU-1", "CPU-2")
    assert [(change["uuid"], change["changed"]) for change in changes] == [("CPU-1", True), ("CPU-2", True)]
    assert form(engine) is not None


def test_a_device_that_is_not_named_clearly_is_refused_and_nothing_changes(
    command: Command, engine: Engine, announce: Announce, device: int
) -> None:
    announce(cpu(2))
    refused(command("devices", "drain", "CPU"), 2, "'CPU'", "CPU-1 on here", "CPU-2 on here")
    refused(command("devices", "drain", "CPU-1", "GPU-7"), 4, "'GPU-7'", "CPU-1, CPU-2", "farm devices")
    refused(command("devices", "drain", "host:there"), 4, "'there'", "here")
    assert {row["state"] for row in told(command, "devices", "list")} == {"active"}


def test_devices_say_what_they_do_and_a_silent_one_is_red_above_all_others(
    command: Command,
    engine: Engine,
    announce: Announce,
    device: int,
    small: Stored,
    tmp_path: Path,
    database_url: str,
) -> None:
    lease = leased(engine, device, size=3)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.FAILED, "odd")})
    stopped, gone, silent = announce(cpu(2)), announce(cpu(3)), announce(cpu(4))
    lease = leased(engine, device, size=3)
    with engine.begin() as connection:
        batches.mark(connection, lease, lease.jobs[2], lease_seconds=60)
        devices.leave(connection, stopped)
        devices.vanish(connection, host="here", uuids=["CPU-3"])
    age(engine, f"UPDATE devices SET last_seen_at = last_seen_at - interval '1 hour' WHERE id = {silent}")
    age(engine, f"UPDATE devices SET vanished_at = vanished_at - interval '2 hours' WHERE id = {gone}")
    rows = {row["uuid"]: row for row in told(command, "devices")}
    assert {uuid: row["presence"] for uuid, row in rows.items()} == {
        "CPU-4": "silent",
        "CPU-1": "live",
        "CPU-2": "stopped",
        "CPU-3": "gone",
    }
    assert next(iter(rows)) == "CPU-4"
    assert rows["CPU-4"]["silent_s"] >= 3600
    assert rows["CPU-3"]["vanished_s"] >= 7200
    busy = rows["CPU-1"]
    assert (busy["campaign"], busy["batch_id"], busy["job_id"]) == ("small", lease.batch_id, lease.jobs[2].id)
    assert busy["busy_s"] > 0
    assert busy["measurements"] == 2
    assert busy["errors_last_hour"] == dict.fromkeys(FailureKind, 0) | {"failed": 1}
    in_colour = farm_in(tmp_path, database_url)  # as a process knows its terminal when it starts
    shown = in_colour("devices", FORCE_COLOR="1", COLUMNS="100", FARM_SILENT_AFTER_SECONDS="1800").stdout
    assert "\x1b[1;31msilent" in shown
    assert shown.index("CPU-4") < shown.index("CPU-1")
    plain = said(command, "devices")
    assert re.search(rf"small +{lease.batch_id} +{lease.jobs[2].id} ", plain)
    assert "for 2 h 0" in plain


# --- status and watch --------------------------------------------------------------------------------


def test_status_says_what_runs_where_how_fast_and_what_went_wrong(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    lease = leased(engine, device, size=4)
    land(engine, lease, {lease.jobs[0].id: Failure(FailureKind.KILLED, "its worker died")})
    held = leased(engine, device, size=2)
    with engine.begin() as connection:
        batches.mark(connection, held, held.jobs[0], lease_seconds=60)
    # What ended stays in the last minute, however slow this machine is.
    age(
        engine,
        "UPDATE batches SET claimed_at = claimed_at - interval '20 s', finished_at = finished_at + interval '1 h'",
    )
    with coordinated(engine):
        found = told(command, "status", "small")
        shown = said(command, "status", "small")
        (row,) = told(command, "status")["campaigns"]
        overview = said(command, "status")
    assert found["counts"] == {
        "pending": 6, "queued": 0, "running": 2, "later": 0, "done": 3, "invalid": 0, "dead": 1, "cancelled": 0
    }  # fmt: skip
    assert found["coordinated"]
    assert found["stuck"] == []
    (running,) = found["running"]
    where = {key: running[key] for key in ("device_uuid", "host", "batch_id", "job_id", "jobs", "silent")}
    assert where == {
        "device_uuid": "CPU-1", "host": "here", "batch_id": held.batch_id, "job_id": held.jobs[0].id, "jobs": 2,
        "silent": False,
    }  # fmt: skip
    assert running["busy_s"] >= 20
    assert found["attempts"] == {"measured": 3, "killed": 1}
    assert found["percent"] == pytest.approx(100 * 4 / 12)
    # 4 jobs ended in the 20 s and the moment since they were claimed; 8 are open.
    assert 4 <= found["jobs_per_minute"] <= 4 * 60 / 20
    assert found["seconds_left"] >= 8 * 20 / 4
    assert found["jobs_per_minute_overall"] == pytest.approx(4 * 60 / found["began_s"])
    assert [problem["error"] for problem in found["problems"]] == ["its worker died"]
    assert "12 jobs, 33.3% over: 6 pending, 2 running, 3 done, 1 dead" in shown
    assert "attempts: 3 measured, 1 killed" in shown
    assert re.search(
        r"rate: [\d.]+ jobs/min in the last minute, [\d.]+ jobs/min since it began .+ ago, .+ left\n", shown
    )
    assert "farm jobs -c small --state dead" in shown
    assert (row["state"], row["stuck_jobs"], row["counts"]) == ("active", 0, found["counts"])
    assert row["jobs_per_minute"] is not None
    assert row["seconds_left"] is not None
    assert re.search(r"small +active, 1 dead +12 +33\.3% ", overview)
    assert re.search(r"\d (s|min \d\d s) ", overview)


def test_status_says_which_coordinator_leads_and_where_none_does_that_none_does(
    command: Command, engine: Engine, small: Stored
) -> None:
    assert small
    assert "coordinator: no coordinator leads, and none ever did; farm up starts one" in command("status").stderr
    with coordinated(engine):
        found = told(command, "status", "small")["coordinator"]
        assert (found["leads"], found["host"], found["pid"], found["term"]) == (True, "hal", 9000, 1)
        line = f"coordinator: hal, process 9000 leads since {found['since'][:19].replace('T', ' ')} UTC (term 1)"
        assert line in command("status").stderr
        assert line in said(command, "status", "small")
    found = told(command, "status", "small")
    assert not found["coordinator"]["leads"]
    line = "coordinator: no coordinator leads; the last one, hal, process 9000, did until "
    assert line in command("status").stderr
    assert line in said(command, "status", "small")
    (stuck,) = found["stuck"]
    assert stuck["cause"] == "no_coordinator"


def test_status_says_what_is_stuck_and_why(
    command: Command, engine: Engine, device: int, small: Stored, submit: Submit
) -> None:
    urgent = submit(Campaign.from_document(document(name="urgent", owner="bob", priority=5)))
    held = leased(engine, device, size=2)
    (uncoordinated,) = told(command, "status", "urgent")["stuck"]
    assert (uncoordinated["cause"], uncoordinated["jobs"]) == ("no_coordinator", 10)
    with coordinated(engine):
        (behind,) = told(command, "status", "small")["stuck"]
        assert (behind["cause"], behind["jobs"], behind["target"]) == ("behind", 12, "type:cpu-test")
        assert "urgent (priority 5)" in behind["why"]
        assert told(command, "status", "urgent")["stuck"] == []
        said(command, "devices", "drain", "CPU-1", "--reason", "noisy")
        rows = {row["name"]: row for row in told(command, "status")["campaigns"]}
        assert {name: row["stuck_jobs"] for name, row in rows.items()} == {"urgent": 10, "small": 12}
        shown = said(command, "status", "urgent")
        assert re.search(
            r"stuck: 10 jobs for type:cpu-test: no device takes them: CPU-1 on here, drained .+ ago: noisy \(by ",
            shown,
        )
        age(engine, "UPDATE devices SET last_seen_at = clock_timestamp() - interval '3 minutes'")
        silent = told(command, "status", "urgent")
        assert re.search(r"CPU-1 on here, silent for \d+ min \d\d s, drained", silent["stuck"][0]["why"])
        assert silent["running"][0]["silent"]
        land(engine, held)
        said(command, "pause", "urgent")
        assert told(command, "status", "urgent")["stuck"] == []
        shown = said(command, "status", "urgent")
        assert "paused: 10 jobs wait. To continue the campaign: farm resume urgent" in shown
        assert "stuck" not in shown
        rows = {row["name"]: row for row in told(command, "status")["campaigns"]}
        urgent_now = rows["urgent"]
        assert (urgent_now["state"], urgent_now["seconds_left"], urgent_now["stuck_jobs"]) == ("paused", None, 0)
    assert counts(engine, urgent.campaign_id) == {"done": 2, "pending": 10}


def test_the_overview_names_devices_that_health_checks_took_out_of_work(
    command: Command, engine: Engine, announce: Announce, device: int, small: Stored
) -> None:
    assert told(command, "status")["excluded"] == []
    assert "quarantine" not in command("status").stderr
    others = [announce(cpu(number)) for number in range(2, 7)]
    with engine.begin() as connection:
        for one in others[:3]:
            devices.set_state(connection, one, DeviceState.QUARANTINED, "fails [what] others measure")
        devices.set_state(connection, others[3], DeviceState.PROBATION, "3 failures in a row")
        devices.set_state(connection, others[4], DeviceState.DRAINED, "for a while")
        devices.vanish(connection, host="here", uuids=["CPU-4"])
    age(engine, "UPDATE devices SET state_changed_at = state_changed_at - id * interval '1 minute'")
    line = next(line for line in command("status").stderr.splitlines() if line.startswith("devices: "))
    assert re.fullmatch(
        r"devices: 1 on probation, 2 in quarantine: "
        r"CPU-2 on here, quarantined 2 min \d\d s ago: fails \[what\] others measure; CPU-3 on here, .*; "
        r"CPU-5 on here, on probation for 5 min .*: 3 failures in a row",
        line,
    )
    found = told(command, "status")["excluded"]
    assert [(one["uuid"], one["state"], one["reason"]) for one in found] == [
        ("CPU-2", "quarantined", "fails [what] others measure"),
        ("CPU-3", "quarantined", "fails [what] others measure"),
        ("CPU-5", "probation", "3 failures in a row"),
    ]
    with engine.begin() as connection:
        devices.set_state(connection, others[4], DeviceState.QUARANTINED, "hot")
    assert "1 on probation, 3 in quarantine: CPU-6 on here, quarantined " in command("status").stderr
    assert re.search("CPU-3 on here, .* and 1 more\n", command("status").stderr)


def test_the_overview_says_why_jobs_are_stuck_and_names_their_campaigns(
    command: Command, engine: Engine, announce: Announce, device: int, small: Stored, submit: Submit
) -> None:
    announce(cpu(2, kind="cpu-other"))
    submit(Campaign.from_document(document(name="second", targets=[{"type": "cpu-test"}, {"type": "cpu-other"}])))
    stderr = command("status").stderr
    assert "stuck: 36 jobs of second, small: no coordinator runs that would send them; farm up starts one\n" in stderr
    with coordinated(engine):
        assert "stuck" not in command("status").stderr
        said(command, "devices", "quarantine", "CPU-2", "--reason", "hot")
        age(engine, "UPDATE devices SET last_seen_at = clock_timestamp()")
        rows = {row["name"]: row for row in told(command, "status")["campaigns"]}
        assert rows["small"]["stuck"] == []
        (stuck,) = rows["second"]["stuck"]
        assert (stuck["cause"], stuck["jobs"], stuck["target"]) == ("no_device", 12, "type:cpu-other")
        assert f"stuck: 12 jobs of second: {stuck['why'].partition(' quarantined')[0]}" in command("status").stderr


def test_batches_that_reach_no_worker_are_stuck(command: Command, engine: Engine, device: int, small: Stored) -> None:
    batch_id = form(engine, size=5)
    assert batch_id is not None
    age(engine, "UPDATE batches SET created_at = created_at - interval '65 seconds', sends = 4")
    with coordinated(engine):
        (stuck,) = told(command, "status", "small")["stuck"]
    assert (stuck["cause"], stuck["jobs"]) == ("not_taken", 12)
    assert "sent 4 times" in stuck["why"]


def test_watch_ends_with_the_campaign_and_tells_of_dead_jobs(
    command: Command, engine: Engine, device: int, small: Stored
) -> None:
    ended_badly(engine, device)
    done = command("watch", "small", "--json")
    assert done.returncode == 6
    assert "2 of 12 jobs of small ended dead" in done.stderr
    ended = json.loads(done.stdout)
    assert (ended["counts"]["done"], ended["verdict"]) == (9, "incomplete")
    assert "active, 2 dead, 1 invalid" in said(command, "status", "small")
    shown = command("watch", "small")
    assert "3 of 12 jobs ended without a result. For the reasons: farm status small" in shown.stderr


def test_progress_in_a_file_says_what_it_waits_for(
    engine: Engine, small: Stored, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(following, "REFRESH_SECONDS", 0.0)
    opened = Session(Settings(), ServiceUrls(str(engine.url), None, ""), engine)
    looks = iter([None, None])
    with pytest.raises(StopIteration):
        following.follow(direct(opened), "small", check=lambda: next(looks))
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines
        == ["small: 0 of 12 jobs, 0%, 12 jobs are stuck: no coordinator runs that would send them; farm up starts one"]
        * 2
    )


# --- how fast ----------------------------------------------------------------------------------------


def pace(engine: Engine, campaign_id: int) -> throughput.Throughput:
    with engine.connect() as connection:
        return throughput.of_campaigns(connection, [campaign_id])[campaign_id]


def test_nothing_is_said_of_the_pace_before_anything_ended_and_when_nothing_ended_lately(
    engine: Engine, device: int, small: Stored
) -> None:
    lease = leased(engine, device, size=4)
    assert pace(engine, small.campaign_id) == throughput.Throughput()
    land(engine, lease)
    assert pace(engine, small.campaign_id).last_minute is not None
    age(
        engine,
        "UPDATE batches SET claimed_at = claimed_at - interval '2 min', finished_at = finished_at - interval '2 min'",
    )
    then = pace(engine, small.campaign_id)
    assert then.last_minute is None
    assert then.lately is not None
    assert 0 < then.lately <= 4 * 60 / 120
    age(
        engine,
        "UPDATE batches SET claimed_at = claimed_at - interval '1 h', finished_at = finished_at - interval '1 h'",
    )
    then = pace(engine, small.campaign_id)
    assert (then.last_minute, then.lately) == (None, None)
    assert then.began_s is not None
    assert then.began_s > 3600


def test_the_pace_counts_from_when_work_was_taken_up_again(engine: Engine, device: int, small: Stored) -> None:
    first = leased(engine, device, size=4)
    land(engine, first)
    land(engine, leased(engine, device, size=4))
    age(engine, "UPDATE batches SET claimed_at = claimed_at - interval '40 s'")
    age(
        engine,
        "UPDATE batches SET claimed_at = claimed_at - interval '1 h', finished_at = finished_at - interval '1 h' "
        f"WHERE id = {first.batch_id}",
    )
    now = pace(engine, small.campaign_id)
    assert now.lately is not None
    assert 4 * 60 / 300 < now.lately <= 4 * 60 / 40


def test_the_pace_of_a_campaign_that_is_over_no_longer_changes(engine: Engine, device: int, small: Stored) -> None:
    land(engine, leased(engine, device))
    age(
        engine,
        "UPDATE batches SET claimed_at = claimed_at - interval '1 h', finished_at = finished_at - interval '30 min'",
    )
    age(engine, "UPDATE campaigns SET state = 'done', finished_at = (SELECT finished_at FROM batches)")
    began_s = pace(engine, small.campaign_id).began_s
    assert began_s == pace(engine, small.campaign_id).began_s
    assert began_s == pytest.approx(1800, abs=60)

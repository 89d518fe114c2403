"""A short chaos, with every kind of fault at least once; and what the suite itself rests on."""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections import defaultdict
from pathlib import Path
from threading import Thread

import pytest

from chaos import mischief
from chaos.__main__ import kinds_of
from chaos.audit import audit_logs, used_up
from chaos.between_hosts import FaultsBetweenHosts
from chaos.farm import HOSTS_OF
from chaos.faults import Faults
from chaos.hosts import DEVICES_OF, Disk, FarmOfHosts
from chaos.mischief import FOLDER, LANDS, landing_mark, stop_in_a_landing
from chaos.network import Unavailable
from chaos.plan import BETWEEN_HOSTS, ON_ONE_MACHINE, TRAITS, Kind, Victim, make_plan
from chaos.run import DEVICES, SICK_DEVICE, report, run
from chaos.workload import Workload
from farm.db.batches import working
from farm.variables import WORKER_DEVICE_ID
from support.homes import eventually, need_embedded_services, skip_but_fail_in_ci

NOTHING_TO_MEASURE = Workload((), (), {}, {}, ())

SEED, SECONDS = 25, 42.0

SEED_BETWEEN_HOSTS, SECONDS_BETWEEN_HOSTS = 46, 26.0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_farm_that_is_broken_every_second_measures_everything_once(tmp_path: Path) -> None:
    need_embedded_services()
    outcome = run(seed=SEED, seconds=SECONDS, keep=tmp_path, jobs_a_second=4.0, poisons=1)
    assert outcome.findings == [], report(outcome)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_farm_whose_hosts_are_cut_off_from_one_another_measures_everything_once(tmp_path: Path) -> None:
    need_embedded_services()
    try:
        outcome = run(
            seed=SEED_BETWEEN_HOSTS,
            seconds=SECONDS_BETWEEN_HOSTS,
            keep=tmp_path,
            jobs_a_second=4.0,
            poisons=1,
            kinds=BETWEEN_HOSTS,
            on_hosts=True,
            devices_of=DEVICES_OF,
        )
    except Unavailable as why:
        skip_but_fail_in_ci(f"no hosts can be made: {why}")
    assert outcome.findings == [], report(outcome)


def test_every_kind_of_fault_is_described_and_can_be_done() -> None:
    assert set(TRAITS) == set(Kind)
    farm = FarmOfHosts(Path("/nowhere"), NOTHING_TO_MEASURE)
    assert set(FaultsBetweenHosts(farm).kinds) == set(Kind)
    assert set(Faults(farm).kinds) == set(ON_ONE_MACHINE)


@pytest.mark.parametrize("seed", [SEED, *range(20)])
def test_a_plan_has_every_kind_of_fault_and_is_the_same_for_the_same_seed(seed: int) -> None:
    plan = make_plan(seed, 70.0, hosts=len(HOSTS_OF), devices=DEVICES, sick=SICK_DEVICE)
    assert plan == make_plan(seed, 70.0, hosts=len(HOSTS_OF), devices=DEVICES, sick=SICK_DEVICE)
    assert {fault.kind for fault in plan} == set(ON_ONE_MACHINE)
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(plan)]
    assert sum(gaps) / len(gaps) < 1.5


def test_two_plans_differ() -> None:
    one, other = (make_plan(seed, 70.0, hosts=2, devices=4, sick=3) for seed in (1, 2))
    assert one != other


def test_faults_of_one_victim_do_not_overlap_and_the_sick_device_is_not_drained() -> None:
    for seed in range(50):
        plan = make_plan(seed, 70.0, hosts=2, devices=4, sick=3)
        of_victim = defaultdict(list)
        for fault in plan:
            of_victim[TRAITS[fault.kind].victim, fault.target].append(fault)
            assert fault.kind is not Kind.DRAIN_DEVICE or fault.target != 3
        for (victim, _), faults in of_victim.items():
            if victim is not Victim.NOTHING:
                passing = [fault for fault in faults if fault.lasts_s < math.inf]
                assert all(a.at_s + a.lasts_s <= b.at_s for a, b in itertools.pairwise(passing))


def test_a_plan_that_is_too_short_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"5 s are too short for every kind of fault; missing: "):
        make_plan(1, 5.0, hosts=2, devices=4, sick=3)


def test_the_audit_of_logs_finds_passwords_and_tracebacks_that_nothing_explains(tmp_path: Path) -> None:
    logs, secrets = tmp_path / "logs", tmp_path / "secrets.json"
    logs.mkdir()
    secrets.write_text('{"postgres": "geheim"}')
    (logs / "worker.log").write_text(
        "10:00:00 INFO connecting to postgresql://farm:geheim@/farm\n"
        "Traceback (most recent call last):\n"
        '  File "tasks.py", line 1, in measure\n'
        "RuntimeError: chaos raised\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "tasks.py", line 2, in measure\n'
        "    raise KeyError\n"
        "KeyError\n"
        "10:00:01 INFO landed 1 of 1\n"
        "10:00:02 ERROR the batch raised\n"  # as the farm's own log has it
        "  Traceback (most recent call last):\n"
        '    File "tasks.py", line 3, in measure\n'
        "      raise TypeError\n"
        "  TypeError\n"
        "worker: Warm shutdown (MainProcess)\n"
    )
    assert audit_logs(logs, secrets) == [
        "worker.log: a password",
        "worker.log: 1 tracebacks that end in: KeyError",
        "worker.log: 1 tracebacks that end in: TypeError",
    ]


@pytest.mark.parametrize(
    ("attempts", "tried", "right"),
    [
        (4, [1, 1, 2, 1], True),
        (3, [1, 2, 1], False),
        (5, [1, 1, 1, 1, 2], True),
        (5, [2, 1, 1, 1, 1, 2], True),  # opened again after the first
        (5, [1, 1, 1, 1, 1], False),
        (5, [1, 1, 2, 1, 2], False),
        (6, [1, 1, 1, 1, 1, 2], False),
    ],
)
def test_a_job_has_one_attempt_more_on_another_device(attempts: int, tried: list[int], right: bool) -> None:
    assert used_up(attempts, tried) is right


def test_kinds_of_faults_are_chosen_by_name() -> None:
    assert kinds_of("kill_child, CUT_HOST") == (Kind.KILL_CHILD, Kind.CUT_HOST)
    with pytest.raises(argparse.ArgumentTypeError, match="there is no fault 'tickle'; there are kill_child, "):
        kinds_of("kill_child,tickle")


def test_the_disk_of_the_database_can_be_filled_up_to_the_last_byte(tmp_path: Path) -> None:
    try:
        with Disk(tmp_path / "disk", 2) as disk:
            (tmp_path / "disk" / "data").write_bytes(bytes(5000))
            disk.fill()
            with pytest.raises(OSError, match="No space left"), (tmp_path / "disk" / "row").open("wb") as file:
                file.write(b"x")
            disk.free()
            (tmp_path / "disk" / "row").write_bytes(b"x")
    except Unavailable as why:
        skip_but_fail_in_ci(f"no disk can be made: {why}")


def test_a_landing_that_should_stop_does_so_between_its_statement_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(WORKER_DEVICE_ID, "5")
    monkeypatch.setattr(mischief, "STOPPED_S", 120.0)
    mark = landing_mark(tmp_path, 5)
    mark.touch()
    land = Thread(target=stop_in_a_landing, args=(None, None, f"WITH fence AS (…) {LANDS} …"))
    stop_in_a_landing(None, None, "SELECT 1")
    assert mark.exists()
    land.start()
    reached = mark.with_suffix(".reached")
    eventually(lambda: reached.exists() and reached.read_text() == str(os.getpid()))
    assert not mark.exists()
    assert land.is_alive()
    reached.unlink()
    land.join(60)
    assert not land.is_alive()


def test_the_statement_of_a_landing_is_recognised() -> None:
    assert LANDS in str(working._LAND)
    assert LANDS not in str(working._MARK) + str(working._CLAIM) + str(working._RENEW)


def _refuse(*_: str) -> None:
    raise Unavailable("nothing may be mounted")


@pytest.mark.parametrize(
    ("missing", "instead", "why"),
    [
        ("chaos.network.shutil.which", lambda _: None, "iproute2 is not installed"),
        ("chaos.hosts._run", _refuse, "mounted"),
    ],
)
def test_where_hosts_cannot_be_made_a_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, instead: object, why: str
) -> None:
    monkeypatch.setattr(missing, instead)
    with pytest.raises(Unavailable, match=why if os.getuid() == 0 else "only root"):
        run(seed=1, seconds=60, keep=tmp_path, kinds=BETWEEN_HOSTS, on_hosts=True)

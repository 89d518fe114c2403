"""`farm prune`: removes old data that nothing needs, in steps, and only with --yes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from farm.db import deletions
from farm.db.campaigns import Stored
from farm.retention import sessions
from support.commands import farm_here, refused
from support.compared import Put, taken
from support.samples import card

OLD, USED, WAITING, YOUNG, ELSEWHERE = ("a" * 64, "b" * 64, "c" * 64, "d" * 64, "e" * 64)
DAYS = 86_400


@pytest.fixture
def farm_with_old_data(engine: Engine, put: Put, small: Stored, tmp_path: Path) -> Engine:
    """Kernels that are used and unused, sessions, a deleted campaign, logs and a cache: old and young."""
    put(card(), taken())
    with engine.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO kernels (hash, description, toolchain, state, signature, record, finished_at)
            SELECT h, jsonb_build_object('template', 'none-such/x'), 't', 'built', 's', '{"bytes": 1000000}',
                now() - CASE WHEN h = :young THEN interval '1 day' ELSE interval '100 days' END
            FROM unnest(CAST(:hashes AS text[])) h
            """),
            {"hashes": [OLD, USED, WAITING, YOUNG, ELSEWHERE], "young": YOUNG},
        )
        connection.execute(text("INSERT INTO kernel_code (hash, code) SELECT hash, 'code' FROM kernels"))
        connection.execute(text("SET LOCAL farm.deleting = 'on'"))
        connection.execute(text("UPDATE measurements SET kernel_hash = :used"), {"used": USED})
        connection.execute(
            text("""
            INSERT INTO waiting_jobs (kernel_id, job_id, lane_id)
            SELECT k.id, j.id, j.lane_id FROM kernels k, (SELECT id, lane_id FROM jobs LIMIT 1) j WHERE k.hash = :it
            """),
            {"it": WAITING},
        )
        connection.execute(
            text("""
            INSERT INTO web_sessions (sha256, login, issuer, origin, address, browser, last_used_at, idle_limit, expires_at, ended_at)
            SELECT sha256(CAST(concat(i, age) AS bytea)), 'ann', 'here', 'o', 'a', 'b', now() - age, interval '1 day', now() - age,
                CASE WHEN i = 1 THEN now() - age END
            FROM generate_series(1, 5) i, unnest(ARRAY[interval '100 days', interval '10 days']) age
            """)
        )
    home = tmp_path / ".farm"
    for name, age in {"gone.log": 100, "coordinator.log": 100, "new.log": 1}.items():
        aged(home / "logs" / name, age)
    (home / "logs/link.log").symlink_to(home / "logs/new.log")
    for hash_, age in {OLD: 100, YOUNG: 1}.items():
        aged(home / "kernels" / hash_ / "kernel.cubin", age)
        aged(home / "kernels" / hash_, age)
    return engine


def aged(path: Path, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(b"x" * 1000)
    os.utime(path, (time.time() - days * DAYS,) * 2)


def hashes(engine: Engine, table: str) -> set[str]:
    with engine.connect() as connection:
        return set(connection.execute(text(f"SELECT hash FROM {table}")).scalars())


def test_what_is_old_and_unused_is_removed_and_all_else_stays(
    farm_with_old_data: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, farm, home = farm_with_old_data, farm_here(tmp_path, database_url), tmp_path / ".farm"
    names = ("sessions", "kernels", "cache", "logs", "deleted")
    everything = {OLD, USED, WAITING, YOUNG, ELSEWHERE}
    (home / "run").mkdir()
    with engine.begin() as connection:
        # A deleted campaign that can still be restored uses a kernel.
        connection.execute(
            text("""
            INSERT INTO deletions (kind, name, key, deleted_by, jobs, rows, bytes, kernels)
            VALUES ('campaign', 'young', 'k', 'ann', 0, 0, 0, ARRAY[:it])
            """),
            {"it": ELSEWHERE},
        )
    with (home / "run/coordinator.up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = json.loads(farm("prune", *names, "--older-than", "90d", "--json").stdout)
        counts = {name: one["count"] for name, one in shown["pruned"].items()}
        assert counts == {"deleted": 0, "sessions": 5, "kernels": 1, "cache": 1, "logs": 1}
        assert shown["dry_run"]
        assert hashes(engine, "kernels") == everything
        assert (home / "logs/gone.log").exists()

        done = farm("prune", *names, "--older-than", "90d", "--yes")
        assert done.returncode == 0, done.stderr
    assert "Removed the above." in done.stdout
    assert hashes(engine, "kernels") == hashes(engine, "kernel_code") == everything - {OLD}
    assert {path.name for path in (home / "logs").iterdir()} >= {"coordinator.log", "new.log", "link.log"}
    assert not (home / "logs/gone.log").exists()
    assert [path.name for path in (home / "kernels").iterdir()] == [YOUNG]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM web_sessions")).scalar_one() == 5
        assert connection.execute(text("SELECT count(*) FROM measurements")).scalar_one() > 0
        recorded = connection.execute(text("SELECT kind, after ->> 'removed' FROM audit WHERE operation = 'prune'"))
        assert {kind: int(count) for kind, count in recorded} == {"sessions": 5, "kernels": 1, "cache": 1, "logs": 1}


def test_a_deleted_campaign_goes_when_it_is_old_enough(
    farm_with_old_data: Engine, database_url: str, tmp_path: Path
) -> None:
    farm = farm_here(tmp_path, database_url)
    with farm_with_old_data.begin() as connection:
        name = connection.execute(text("SELECT name FROM campaigns")).scalar_one()
        deletions.delete_campaign(connection, name, by="ann", cancel=True)
    kept = json.loads(farm("prune", "--yes", "--json", FARM_KEEP_DELETED="30d").stdout)
    assert kept["pruned"] == {"deleted": {"older_than": "30d", "count": 0, "bytes": 0}}
    gone = json.loads(farm("prune", "deleted", "--older-than", "0s", "--yes", "--json").stdout)
    assert gone["pruned"]["deleted"]["count"] == 1
    with farm_with_old_data.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM deleted_rows")).scalar_one() == 0


def test_an_interrupted_removal_is_recorded_and_continues(
    farm_with_old_data: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five sessions go in the first step, and then the program is interrupted."""
    farm = farm_here(tmp_path, database_url)
    small_steps = text(str(sessions._REMOVE).replace("LIMIT 1000", "LIMIT 2"))
    monkeypatch.setattr(sessions, "_REMOVE", small_steps)
    real, steps = sessions.Sessions.remove, []

    def interrupted(self: sessions.Sessions, *given: object) -> object:
        steps.append(given)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions.Sessions, "remove", interrupted)
    assert farm("prune", "sessions", "--older-than", "90d", "--yes").returncode == 130
    left = json.loads(farm("prune", "sessions", "--older-than", "90d", "--json").stdout)
    assert left["pruned"]["sessions"]["count"] == 3
    done = json.loads(farm("prune", "sessions", "--older-than", "90d", "--yes", "--json").stdout)
    assert done["pruned"]["sessions"]["count"] == 3
    with farm_with_old_data.connect() as connection:
        recorded = connection.execute(
            text("SELECT after ->> 'removed' FROM audit WHERE operation = 'prune' ORDER BY id")
        )
        assert recorded.scalars().all() == ["2", "3"]


def test_what_is_mistyped_is_named(tmp_path: Path) -> None:
    farm = farm_here(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    refused(farm("prune"), 2, "Nothing was pruned: nothing says how long to keep it", "FARM_KEEP_LOGS")
    refused(farm("prune", "logs"), 2, "logs: nothing says how long", "set FARM_KEEP_LOGS")
    refused(farm("prune", "lost", "--older-than", "9d"), 2, "nothing named 'lost' to prune. Use: deleted, sessions")
    refused(farm("prune", "--older-than", "9d"), 2, "--older-than needs the names")
    refused(farm("prune", "logs", "--older-than", "9 parsecs"), 2, "9 parsecs")
    refused(farm("prune", FARM_KEEP_LOGS="soon"), 2, "FARM_KEEP_LOGS")

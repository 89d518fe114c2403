"""Does a farm lose a job when it is upgraded while it measures?

    python -m benchmarks.upgrade [--before COMMIT] [--jobs 4000] [--job-seconds 0.1]

The farm of an earlier commit, from `git archive`, measures a campaign on two devices of made-up recordings, which take the time
that they say. Then the programs are replaced by those of this checkout, in the order of docs/upgrading.md: the database, the
coordinator, and one `farm-worker` after the other, when the one before measures. At last the workers go back to the earlier
commit.

`--before` is the last commit before the newest migration, unless given. A job is lost where it has no row at the end. The
longest time without a row is between two rows of either device, in the whole run and in each step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.common import end_like_interrupted, markdown, write
from benchmarks.farms import farm_home, made_up_devices
from benchmarks.made_up import campaign_text
from farm.db import migrate
from farm.db.engine import DISPATCHING, make_engine
from farm.settings import settings

ROOT = Path(__file__).parent.parent
STEP_SECONDS = 120.0
"""How long a program may take to start and take over."""
SETTLED_ROWS = 50
"""Rows that land between two steps."""


@dataclass
class Farm:
    """Programs of two checkouts on one database."""

    engine: Engine
    logs: Path
    variables: Mapping[str, str]
    steps: list[tuple[str, datetime]] = field(default_factory=list)

    def start(self, code: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words], cwd=code, env=self._environment(code), stdout=log, stderr=log
            )

    def run(self, code: Path, *words: str) -> None:
        subprocess.run([sys.executable, "-m", *words], cwd=code, env=self._environment(code), check=True)

    def _environment(self, code: Path) -> dict[str, str]:
        return {**os.environ, **self.variables, "PYTHONPATH": str(code)}

    def scalar(self, statement: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(statement)).scalar_one()

    def begin(self, name: str) -> None:
        """Lets the farm settle, and begins a step."""
        rows = self.scalar("SELECT count(*) FROM measurements")
        self.wait(lambda: self.scalar("SELECT count(*) FROM measurements") >= rows + SETTLED_ROWS or self.is_over())
        self.steps.append((name, self.scalar("SELECT clock_timestamp()")))
        print(f"{name}, {self.scalar('SELECT count(*) FROM jobs WHERE state = $$open$$')} jobs are open", flush=True)

    def is_over(self) -> bool:
        return bool(self.scalar("SELECT NOT EXISTS (SELECT FROM jobs WHERE state = 'open')"))

    def wait(self, condition: Callable[[], object], seconds: float = STEP_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"it takes over {seconds:.0f} s; see the logs in {self.logs}")
            time.sleep(0.1)


def stop(program: subprocess.Popen[bytes]) -> None:
    program.terminate()
    if program.wait(STEP_SECONDS) != 0:
        raise SystemExit(f"{program.args!r} ended with status {program.returncode}")


def commit_before() -> str:
    """The last commit before the newest migration."""
    (newest,) = (migrate.MIGRATIONS / "versions").glob(f"{migrate.head()}_*.py")
    command = ["git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=%H", "--", str(newest)]
    added = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not added:
        raise SystemExit(f"{newest.name} is in no commit yet: commit it, or name a commit with --before")
    return f"{added[-1]}^"


def check_out(commit: str, folder: Path) -> str:
    """Puts the files of a commit into a folder. Returns its short name."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    named = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", commit], capture_output=True, text=True, check=True
    )
    return named.stdout.strip()


@contextmanager
def two_checkouts(before: str) -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory(prefix="farm-bench-before-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder, check_out(before, folder)


@contextmanager
def farm_of(old: Path, logs: Path) -> Iterator[Farm]:
    """A farm whose database the earlier commit made."""
    with farm_home(None, FARM_DEVICES="cpu") as (urls, owner):
        with owner.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE upgraded")
        url = owner.url.set(database="upgraded").render_as_string(hide_password=False)
        engine = make_engine(url, application="benchmark", session=DISPATCHING)
        farm = Farm(engine, logs, {"FARM_DATABASE_URL": url, "FARM_BROKER_URL": str(urls.broker_url)})
        try:
            farm.run(old, "farm", "db", "upgrade")
            yield farm
        finally:
            engine.dispose()


def upgrade(farm: Farm, old: Path, campaign: Path, words: Sequence[str]) -> dict[str, Any]:
    """The whole upgrade and the way back. Returns its figures."""

    def replace_worker(number: int, code: Path) -> None:
        stop(workers[number])
        since = farm.scalar("SELECT clock_timestamp()")
        workers[number] = farm.start(code, f"worker-{number}", "workers.main", "--devices", words[number])
        measures = (
            "SELECT EXISTS (SELECT FROM devices d JOIN measurements m ON m.device_id = d.id "
            f"WHERE d.session_began_at > '{since}' AND m.measured_at > d.session_began_at AND m.job_id IS NOT NULL)"
        )
        farm.wait(lambda: farm.scalar(measures) or farm.is_over())

    coordinator = farm.start(old, "coordinator-old", "farm.coordinator")
    workers = [farm.start(old, f"worker-{n}", "workers.main", "--devices", word) for n, word in enumerate(words)]
    with ExitStack() as ending:
        for program in (coordinator, *workers):
            ending.callback(program.kill)
        farm.wait(lambda: farm.scalar("SELECT count(*) FROM devices WHERE last_seen_at > first_seen_at") == len(words))
        farm.run(old, "farm", "submit", str(campaign))
        revision = farm.scalar("SELECT version_num FROM alembic_version")
        farm.begin("database")
        farm.run(ROOT, "farm", "db", "upgrade")
        farm.begin("coordinator")
        following = farm.start(ROOT, "coordinator-new", "farm.coordinator")
        ending.callback(following.kill)
        farm.wait(lambda: farm.scalar("SELECT count(*) FROM programs WHERE program = 'coordinator'") == 1)
        term = farm.scalar("SELECT term FROM leadership")
        stop(coordinator)
        farm.wait(lambda: farm.scalar("SELECT term FROM leadership") > term)
        for code, name in ((ROOT, "worker"), (old, "back: worker")):
            for number in range(len(words)):
                farm.begin(f"{name} {number + 1}")
                replace_worker(number, code)
                ending.callback(workers[number].kill)
        farm.begin("end")
        loaded = not farm.is_over()
        farm.wait(farm.is_over, 600.0)
        for program in (*workers, following):
            stop(program)
    return {
        "revision_before": revision,
        "revision_after": farm.scalar("SELECT version_num FROM alembic_version"),
        "measured_until_the_end_of_the_last_step": loaded,
        **figures(farm),
    }


def figures(farm: Farm) -> dict[str, Any]:
    with farm.engine.connect() as connection:
        measured = list(
            connection.execute(
                text("SELECT measured_at FROM measurements WHERE job_id IS NOT NULL ORDER BY measured_at")
            ).scalars()
        )
    gaps = [(after, (after - before).total_seconds()) for before, after in itertools.pairwise(measured)]
    ends = [began for _, began in farm.steps[1:]]
    steps = {
        name: {
            "seconds": round((end - began).total_seconds(), 1),
            "longest_seconds_without_a_row": round(max((s for at, s in gaps if began < at <= end), default=0.0), 2),
        }
        for (name, began), end in zip(farm.steps, ends, strict=False)
    }
    jobs = farm.scalar("SELECT count(*) FROM jobs")
    distinct = farm.scalar("SELECT count(DISTINCT job_id) FROM measurements WHERE job_id IS NOT NULL")
    return {
        "jobs": jobs,
        "jobs_lost": jobs - distinct,
        "measured_twice": len(measured) - distinct,
        "failures": farm.scalar("SELECT count(*) FROM failures"),
        "longest_seconds_without_a_row": round(max(seconds for _, seconds in gaps), 2),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the commit that the farm runs first")
    parser.add_argument("--jobs", type=int, default=4000, help="a multiple of 1000")
    parser.add_argument("--job-seconds", type=float, default=0.1)
    asked = parser.parse_args()
    end_like_interrupted()
    with (
        tempfile.TemporaryDirectory(prefix="farm-bench-data-") as name,
        two_checkouts(asked.before or commit_before()) as (
            old,
            commit,
        ),
    ):
        folder = Path(name)
        folder.chmod(0o755)
        campaign = folder / "campaign.yaml"
        campaign.write_text(campaign_text(asked.jobs))
        words = made_up_devices(folder, [campaign], 2, asked.job_seconds)
        logs = folder / "logs"
        logs.mkdir()
        try:
            with farm_of(old, logs) as farm:
                found = {"before": commit, "job_seconds": asked.job_seconds, **upgrade(farm, old, campaign, words)}
        except (TimeoutError, SystemExit):
            for log in sorted(logs.iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        settings.cache_clear()
    table = markdown(
        ["jobs", "lost", "measured twice", "failures", "longest time without a row, s"],
        [[found[key] for key in ("jobs", "jobs_lost", "measured_twice", "failures", "longest_seconds_without_a_row")]],
    )
    of_steps = markdown(
        ["step", "s", "longest time without a row, s"],
        [[name, one["seconds"], one["longest_seconds_without_a_row"]] for name, one in found["steps"].items()],
    )
    write("upgrade", found, f"{table}\n\n{of_steps}", repetitions=1)


if __name__ == "__main__":
    main()

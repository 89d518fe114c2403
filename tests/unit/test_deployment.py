"""Units of systemd, scripts of Slurm and their pages: what they start exists, and they do what the pages say."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.errors import BadSettings, DatabaseIsNewer
from farm.settings import Settings
from support.command_tree import imported, top_level
from support.homes import eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SYSTEM = sorted((DEPLOY / "systemd" / "system").glob("*.service"))
USER = sorted((DEPLOY / "systemd" / "user").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SERVICES = {
    "migrate": "migrate",
    "coordinator": "coordinator",
    "serve": "web",
    "trainer": "trainer",
    "builder": "builder",
}
"""The service of Compose that a unit is; workers have logins of their own."""


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), flags=re.MULTILINE)


def name_of(unit: Path) -> str:
    return unit.stem.removeprefix("gemm-farm-")


def variables(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "etc" / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def check_command(words: list[str]) -> None:
    """The program is one that the wheel installs, and takes these arguments."""
    program, *rest = words
    assert program in SCRIPTS
    if program != "farm":
        assert rest in ([], ["--build"])
        return
    command: Any = top_level()
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = imported(command.commands[rest.pop(0)])
    known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.parametrize("unit", SYSTEM, ids=lambda unit: unit.stem)
def test_a_unit_starts_programs_of_the_release_that_the_link_names(unit: Path) -> None:
    """Programs, whose first line names their release. `current/bin/python -m` would load modules through the link, also
    after it was switched."""
    for line in values(unit, "ExecStart"):
        path, *rest = line.split()
        assert path.startswith("/opt/gemm-farm/current/bin/")
        check_command([Path(path).name, *rest])


@pytest.mark.parametrize("unit", USER, ids=lambda unit: unit.stem)
def test_a_unit_of_a_user_starts_programs_that_tools_install(unit: Path) -> None:
    for line in values(unit, "ExecStart") + values(unit, "ExecStop"):
        path, *rest = line.split()
        assert path.startswith("%h/.local/bin/")
        check_command([Path(path).name, *rest])


@pytest.mark.parametrize("unit", SYSTEM, ids=lambda unit: unit.stem)
def test_a_unit_has_no_right_that_it_does_not_need(unit: Path) -> None:
    for key in ("NoNewPrivileges", "ProtectHome", "ProtectKernelTunables", "ProtectControlGroups", "RestrictSUIDSGID"):
        assert values(unit, key) == ["yes"], key
    assert values(unit, "CapabilityBoundingSet") == [""]
    assert values(unit, "ProtectSystem") == ["strict"]
    assert values(unit, "User") == ["gemm-farm"]
    assert values(unit, "StateDirectoryMode") == ["0700"]
    of_worker = unit.stem == "gemm-farm-worker"
    assert values(unit, "PrivateDevices") == ([] if of_worker else ["yes"])
    assert bool(values(unit, "ReadWritePaths")) == of_worker


def test_a_unit_is_not_started_again_for_what_a_start_does_not_mend() -> None:
    for unit in (*SYSTEM, DEPLOY / "systemd" / "user" / "gemm-farm-worker.service"):
        if name_of(unit) != "migrate":
            codes = {int(code) for code in values(unit, "RestartPreventExitStatus")[0].split()}
            assert codes == {BadSettings.exit_code, DatabaseIsNewer.exit_code}


def test_a_unit_has_variables_that_the_settings_know_and_the_role_that_compose_gives() -> None:
    known = {f"FARM_{name.upper()}" for name in Settings.model_fields} | {"MLFLOW_TRACKING_URI", "FORWARDED_ALLOW_IPS"}
    for unit in SYSTEM:
        name = name_of(unit)
        assert values(unit, "EnvironmentFile") == values(unit, "AssertPathExists") == [f"/etc/gemm-farm/{name}.env"]
        given = variables(name)
        assert set(given) <= known
        secrets = re.findall(r"://[\w.-]+:([^@]*)@", " ".join(given.values()))
        secrets += [value for key, value in given.items() if key.endswith("_PASSWORD")]
        assert set(secrets) == {"CHANGE-ME"}
        if name in SERVICES:
            of_compose = COMPOSE["services"][SERVICES[name]]["environment"]
            for url in ("FARM_DATABASE_URL", "FARM_BROKER_URL"):
                user = re.compile(r"://(\w+):")
                assert user.findall(given.get(url, "")) == user.findall(of_compose.get(url, "")), f"{name} {url}"


def test_units_are_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in (*SYSTEM, *USER):
        there = re.sub(r"(/opt/gemm-farm/current|%h/.local)/bin/[\w-]+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(there)
    words = ["systemd-analyze", "verify", "--man=no", "--generators=no", *sorted(map(str, tmp_path.glob("*.service")))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "gemm-farm" in line]
    assert complaints == []


# --- Slurm -------------------------------------------------------------------------------------------

WORKER = """#!/bin/bash
echo "$FARM_DATABASE_URL $FARM_DEVICES $FARM_HOME" > started
trap 'echo handed back > ended; exit 0' TERM
while :; do sleep 0.05; done
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job whose worker only notes what it gets."""
    program, settings = tmp_path / "worker", tmp_path / "worker.env"
    program.write_text(WORKER)
    program.chmod(0o755)
    settings.write_text("FARM_DATABASE_URL='postgresql://farm_worker:a$b@db/farm'\n")
    settings.chmod(0o600)
    own = {"GEMM_FARM_WORKER": str(program), "GEMM_FARM_SETTINGS": str(settings), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}  # fmt: skip
    return {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **own}


def submitted(job: dict[str, str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = ["bash", str(DEPLOY / "slurm" / "gemm-farm-worker.sbatch")]
    return subprocess.run(script, cwd=tmp_path, env=job, capture_output=True, text=True, timeout=60, check=False)


def test_a_job_passes_its_signal_on_waits_for_the_worker_and_leaves_nothing(
    job: dict[str, str], tmp_path: Path
) -> None:
    script = ["bash", str(DEPLOY / "slurm" / "gemm-farm-worker.sbatch")]
    with subprocess.Popen(script, cwd=tmp_path, env=job) as process:
        eventually(lambda: (tmp_path / "started").exists() and (tmp_path / "started").read_text().endswith("\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "ended").read_text() == "handed back\n"
    url, devices, home = (tmp_path / "started").read_text().split()
    assert (url, devices) == ("postgresql://farm_worker:a$b@db/farm", "cuda")
    assert home.startswith(f"{tmp_path}/gemm-farm-7.")
    assert not Path(home).exists()


def test_a_job_ends_with_the_exit_code_of_its_worker(job: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "worker").write_text("#!/bin/sh\nexit 5\n")
    assert submitted(job, tmp_path).returncode == 5


def test_a_job_refuses_a_file_of_passwords_that_others_may_read(job: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "worker.env").chmod(0o640)
    done = submitted(job, tmp_path)
    assert done.returncode == 2
    assert f"chmod 600 {tmp_path}/worker.env" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("variable", "named"), [("GEMM_FARM_SETTINGS", "farm db worker-role"), ("GEMM_FARM_WORKER", "GEMM_FARM_WORKER")])  # fmt: skip
def test_a_job_says_what_is_missing(job: dict[str, str], tmp_path: Path, variable: str, named: str) -> None:
    done = submitted({**job, variable: str(tmp_path / "none")}, tmp_path)
    assert done.returncode == 2
    assert named in done.stderr


class Node:
    """A node with a systemctl that notes its calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.jobs = folder / "jobs"
        self.systemctl("exit 0")

    def systemctl(self, then: str) -> None:
        for name, lines in (("systemctl", f'echo "$*" >> {self._folder}/calls\n{then}'), ("logger", "exit 1")):
            (self._folder / name).write_text(f"#!/bin/sh\n{lines}\n")
            (self._folder / name).chmod(0o755)

    def run(self, script: str, job: int) -> list[str]:
        """The calls of systemctl. The script always ends with 0."""
        calls = self._folder / "calls"
        calls.write_text("")
        path = f"{self._folder}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "SLURM_JOB_ID": str(job), "GEMM_FARM_JOBS": str(self.jobs)}
        subprocess.run(["bash", str(DEPLOY / "slurm" / script)], env=own, check=True, timeout=60)
        return [line.split()[-2] for line in calls.read_text().splitlines()]


def test_the_worker_of_a_node_stops_for_jobs_and_starts_after_the_last(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.run("epilog.sh", 0) == []
    assert node.run("prolog.sh", 1) == ["stop"]
    assert node.run("prolog.sh", 2) == ["stop"]
    assert node.run("epilog.sh", 1) == []
    assert node.run("epilog.sh", 2) == ["is-enabled", "start"]


def test_a_worker_that_is_not_enabled_is_not_started(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("prolog.sh", 1)
    node.systemctl("exit 1")
    assert node.run("epilog.sh", 1) == ["is-enabled"]


def test_a_fault_of_the_farm_drains_no_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.systemctl("exit 1")
    assert node.run("prolog.sh", 1) == ["stop"]
    node.jobs.joinpath("1").unlink()
    node.jobs.rmdir()
    node.jobs.write_text("no folder")
    assert node.run("prolog.sh", 2) == []
    assert node.run("epilog.sh", 2) == []


# --- pages -------------------------------------------------------------------------------------------


def test_the_passwords_of_compose_are_made_by_the_lines_of_its_page(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (block,) = re.findall(
        r"^(cp \.env\.example.*?^done)$", (ROOT / "docs" / "compose.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    shutil.copy(ROOT / ".env.example", tmp_path)
    subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, check=True, timeout=60)
    made = dict(
        re.findall(r"^(\w+(?:_PASSWORD|_SECRET_KEY))=(\w*)$", (tmp_path / ".env").read_text(), flags=re.MULTILINE)
    )
    assert len(made) == len({*made.values()}) == 13
    assert all(len(value) == 48 for value in made.values())
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


def test_the_table_of_sizes_follows_from_what_was_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    thousand = json.loads((results / "thousand_devices.json").read_text())
    many = json.loads((results / "many_devices.json").read_text())["owners"]["1"]
    text = (ROOT / "docs" / "deploying.md").read_text()
    assert (
        f"1,000 devices, {thousand['jobs_per_second']:.0f} jobs/s | coordinator: {thousand['coordinator_cpu_pct']:.0f}%"
        in text
    )
    assert f"coordinator: {many['coordinator_cpu_pct']:.0f}% of a core" in text
    million = re.findall(r"^\| 1,000,000 \|(.*)\|$", (results / "million_jobs.md").read_text(), flags=re.MULTILINE)
    submit, *_, status = (float(cell) for cell in million[0].split("|"))
    gigabytes = sum(int(cell) for cell in million[-1].split("|")) / 1000
    assert f"submission: {submit:.0f} s; `farm status`: {status:.1f} s; database: {gigabytes:.2f} GB" in text
    sizes = json.loads((results / "ten_million_rows.json").read_text())["sizes"]
    few, many_rows = sizes["100000"], sizes["10000000"]
    assert (
        f"landing: {many_rows['land_us']:.0f} µs a job, and {few['land_us']:.0f} with 100,000 rows; "
        f"database: {many_rows['database_gb']:.1f} GB"
    ) in text
    table = json.loads((results / "training_tables.json").read_text())["sizes"][-1]
    peak = max(table[f"{step}_peak_mb"] for step in ("read", "hash", "reduce")) / 1000
    assert f"| {table['rows'] / 1e6:.1f} million rows of one device type | trainer: {peak:.1f} GB until" in text
    bytes_of_job = many_rows["database_gb"] * 100
    assert f"growth is {bytes_of_job:,.0f} bytes for each job" in text
    for devices in (10, 100, 1000):
        jobs = thousand["jobs_per_second"] / 1000 * devices * 86_400
        row = re.findall(
            rf"^\| {devices:,} devices \| ([\d.]+) million \| \d \| ([\d.]+) GB \|$", text, flags=re.MULTILINE
        )
        assert row == [(f"{jobs / 1e6:.1f}", f"{jobs * bytes_of_job / 1e9:.1f}")]

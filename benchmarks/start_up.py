"""How long do commands take to start, and how much memory does a farm of four devices hold?

    python -m benchmarks.start_up [--before PYTHON] [--repetitions 3] [--no-memory] [--no-model]

Each side is an environment with the farm installed: this one, and with `--before` another one, named by its Python. Each gets a
farm of its own in a temporary folder: a small campaign is measured on the CPU there, and a model of it trained and made the
champion, unless `--no-model` says otherwise. A command that fails ends the benchmark. Then each command runs on both sides in turn, so that whatever else the machine does meets both: seconds from start to
end, and processor seconds, medians of the repetitions. `completion` is what the shell runs for `farm st<TAB>`, and
`completion_campaign` for `farm status <TAB>`.

Memory is of `farm up` with a CPU and three recorded devices, some seconds after all of them are live and idle: the proportional
set size of each process (`Pss` of /proc/PID/smaps_rollup, in which a page that n processes share counts 1/n for each), added
up over all processes of that farm, Postgres and Redis included; and the resident set size, which counts shared pages for each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import end_like_interrupted, markdown, write

ROOT = Path(__file__).parent.parent
RECORDINGS = ("nvidia-h200-paper-tiled", "nvidia-h200-compare-cards", "nvidia-h100-80gb-hbm3-compare-cards")
DEVICES = ",".join(["cpu", *(f"recorded:{ROOT / 'examples' / 'datasets' / name}.parquet" for name in RECORDINGS)])
CAMPAIGN = {
    "name": "start-up",
    "targets": "any",
    "problems": [{"shapes": [[m, n, 256] for m in (64, 128, 256, 512) for n in (64, 192, 384)], "types": ["f32"]}],
    "kernels": [{"family": "blas", "threads": [1, 2]}],
    "measure": {"timing": {"target_rse": 0.05, "max_seconds": 0.05, "warmup_seconds": 0.0}},
}
CONFIGURATION = "blas(threads=1) 512x192x256 f32"
SETTLE_SECONDS = 5.0
LIVE_SECONDS = 300.0
MIB = 2**20

COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "help": ("--help",),
    "completion": (),
    "completion_campaign": (),
    "status": ("status",),
    "devices": ("devices",),
    "doctor": ("doctor",),
    "models": ("models",),
    "predict": ("predict", CONFIGURATION),
}
COMPLETED = {"completion": ("farm st", "1"), "completion_campaign": ("farm status ", "2")}
"""The words on the command line, and which of them is completed, as the bash of a user gives them."""

NEEDS_MODEL = ("predict",)


@dataclass
class Side:
    name: str
    python: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_", "_FARM", "COMP_"))}
        return {**kept, "FARM_HOME": str(self.home), **more}

    def farm(self, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        program = self.python.with_name("farm")
        return subprocess.run(
            [program, *arguments], env=self.environment(**more), capture_output=True, text=True, check=check, cwd=self.home.parent
        )  # fmt: skip

    def timed(self, command: str) -> tuple[float, float]:
        """Seconds from start to end, and of processor time."""
        more = {}
        if command in COMPLETED:
            words, which = COMPLETED[command]
            more = {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": which}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = self.farm(*COMMANDS[command], check=False, **more)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode and command != "doctor":  # it may find something wrong with the machine
            raise SystemExit(f"farm {command} of {self.name} ended with {done.returncode}: {done.stderr}")
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def train(self) -> None:
        """Measures the campaign on the CPU and makes the model of it the champion, however busy the machine is."""
        file = self.home.parent / "start-up.yaml"
        file.write_text(json.dumps(CAMPAIGN))
        self.farm("run", str(file), check=False, FARM_DEVICES="cpu")  # 6: no champion
        (model,) = json.loads(self.farm("models", "--json").stdout)
        self.farm("models", "promote", model["name"], model["version"], "--force", "--reason", "benchmark")

    def processes(self) -> list[psutil.Process]:
        """Those of this farm: they have its home in their environment, or work in a folder of its services."""
        folders = [self.home]
        note = self.home / "postgres.json"
        if note.exists():
            folders += [
                Path(v) for v in json.loads(note.read_text()).values() if isinstance(v, str) and v.startswith("/")
            ]
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("FARM_HOME") == str(self.home)
                if ours or any(Path(process.cwd()).is_relative_to(folder) for folder in folders):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def memory(self) -> dict[str, Any]:
        """Of `farm up`, when its devices are live and idle."""
        self.farm("up", FARM_DEVICES=DEVICES)
        try:
            end = time.monotonic() + LIVE_SECONDS
            while sum(role_of(p) == "device, child"
                      for p in self.processes()) < len(DEVICES.split(",")):  # fmt: skip
                if time.monotonic() > end:
                    raise SystemExit(f"the devices of {self.name} did not come up in {LIVE_SECONDS:.0f} s")
                time.sleep(0.5)
            time.sleep(SETTLE_SECONDS)
            by_role: Counter[str] = Counter()
            counts: Counter[str] = Counter()
            pss = rss = 0
            for process in self.processes():
                try:
                    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                    role = role_of(process)
                except (OSError, psutil.Error):
                    continue
                sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
                pss, rss = pss + sizes["Pss"], rss + sizes["Rss"]
                by_role[role] += sizes["Pss"]
                counts[role] += 1
            roles = {
                role: {"processes": counts[role], "pss_mib": round(size / MIB, 1)} for role, size in by_role.items()
            }
            return {"processes": sum(counts.values()), "pss_mib": round(pss / MIB, 1), "rss_mib": round(rss / MIB, 1),
                    "roles": roles}  # fmt: skip
        finally:
            self.farm("down", check=False)


def role_of(process: psutil.Process) -> str:
    """What a process is for, by its command line."""
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return "ended"
    if "guardian.py" in words:
        return "guardian"
    if "semaphore_tracker" in words:
        return "resource tracker"
    if "spawn_main" in words:
        return "device, child"
    for part, role in (
        ("workers.process", "device, parent"), ("--build", "builder"), ("workers.main", "worker host"),
        ("farm.coordinator", "coordinator"), ("trainer.main", "trainer"), ("supervisor", "supervisor"),
        ("postgres", "postgres"), ("redis", "redis"),
    ):  # fmt: skip
        if part in words:
            return role
    return "other"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="PYTHON", help="the Python of an environment to compare with")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--model", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--busy", action="store_true", help="say in the results that the machine did other work too")
    asked = parser.parse_args()
    end_like_interrupted()
    folder = Path(tempfile.mkdtemp(prefix="start-", dir="/tmp"))
    folder.chmod(0o755)
    sides = [Side("after", Path(sys.executable), folder / "after" / ".farm")]
    if asked.before is not None:
        sides.insert(0, Side("before", asked.before.absolute(), folder / "before" / ".farm"))
        at = sys.argv.index("--before")
        sys.argv[at + 1] = "PYTHON"
    try:
        commands, memory = run(sides, asked)
    finally:
        for side in sides:
            side.farm("down", check=False)
        shutil.rmtree(folder, ignore_errors=True)
    names = [side.name for side in sides]
    rows = [[command.replace("_", " "), *(of[name]["wall_s"] for name in names), *(of[name]["cpu_s"] for name in names)]
            for command, of in commands.items()]  # fmt: skip
    table = markdown(["command", *(f"{n}, s" for n in names), *(f"{n}, processor s" for n in names)], rows)
    if memory:
        table += "\n\n" + markdown(
            ["farm up, 4 devices", *names],
            [["processes", *(memory[n]["processes"] for n in names)],
             ["Pss, MiB", *(memory[n]["pss_mib"] for n in names)],
             ["Rss, MiB", *(memory[n]["rss_mib"] for n in names)]],
        )  # fmt: skip
    figures = {"machine_was_busy": asked.busy, "commands": commands, "memory": memory}
    write("start_up", figures, table, repetitions=asked.repetitions)


def run(sides: list[Side], asked: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    for side in sides:
        side.home.mkdir(parents=True)
    memory = {side.name: side.memory() for side in sides} if asked.memory else {}
    for side in sides:
        if asked.model:
            side.train()
        side.farm("up", "--no-workers", "--no-trainer", "--no-builder")  # so that no command starts Postgres
    chosen = [command for command in COMMANDS if asked.model or command not in NEEDS_MODEL]
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {c: {s.name: [] for s in sides} for c in chosen}
    for repetition in range(asked.repetitions + 1):
        for command in chosen:
            for side in sides:
                measured = side.timed(command)
                if repetition:  # the first run fills caches
                    taken[command][side.name].append(measured)
    commands: dict[str, Any] = {}
    for command, of in taken.items():
        commands[command] = {
            name: {
                "wall_s": round(statistics.median(wall for wall, _ in runs), 3),
                "cpu_s": round(statistics.median(cpu for _, cpu in runs), 3),
                "wall_min_s": round(min(wall for wall, _ in runs), 3),
            }
            for name, runs in of.items()
        }
    return commands, memory


if __name__ == "__main__":
    main()

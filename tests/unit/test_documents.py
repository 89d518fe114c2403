"""The documents and the deployment held to the code: what they name exists."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import farm
from farm.api import OPERATIONS
from farm.campaign import load
from farm.cli.commands import COMMANDS, LOCAL
from farm.settings import Settings
from support.command_tree import imported, top_level

ROOT = Path(farm.__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def blocks(text: str, *languages: str) -> list[str]:
    """The code blocks of these languages, also those in items of a list."""
    return re.findall(rf"^ *```(?:{'|'.join(languages)})\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)


def in_blocks(text: str) -> list[str]:
    """Lines of shell scripts, and those of sessions that somebody types."""
    scripts = [line for block in blocks(text, "sh") for line in block.splitlines()]
    sessions = [line.strip() for block in blocks(text, "console") for line in block.splitlines()]
    return scripts + [line.removeprefix("$ ") for line in sessions if line.startswith("$ ")]


def commands_of(lines: list[str]) -> list[list[str]]:
    """The `farm …` commands of shell lines, split into words."""
    found = []
    for line in lines:
        for command in simple_commands(line):
            words = list(itertools.dropwhile(lambda word: "=" in word, command))
            if words and words[0].rpartition("/")[2] == "farm":
                found.append(words)
    return found


def simple_commands(line: str) -> list[list[str]]:
    """The words of each command of a shell line, without the comment."""
    lexer = shlex.shlex(line.partition("  #")[0], posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|()<>"):
            found.append([])
        else:
            found[-1].append(word)
    return found


def every_command(*, spans: bool) -> list[tuple[str, list[str]]]:
    """The commands of all documents: those of shell blocks, and with `spans` those in the text, which may lack arguments."""
    texts = {path.name: path.read_text() for path in DOCUMENTS}
    return [
        (name, words)
        for name, text in texts.items()
        for words in commands_of(in_blocks(text) + (re.findall(r"`(farm [^`]*)`", text) if spans else []))
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_row_of_a_table_follows_its_head(path: Path) -> None:
    """A row after an empty line is printed as text, with its bars."""
    lines = ["", *path.read_text().splitlines(), ""]
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]
    assert [lines[i] for i in starts if not re.fullmatch(r"\|[\s:|-]+\|", lines[i + 1])] == []


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The parser of a command, and the words behind its name."""
    command: Any = top_level()
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0).rstrip(",.:;")
        assert name in command.commands, f"no command {name}"
        command = imported(command.commands[name])
    return command, rest


def id_of(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(value)


@pytest.mark.parametrize(("document", "words"), every_command(spans=True), ids=id_of)
def test_a_command_in_a_document_exists_with_its_options(document: str, words: list[str]) -> None:
    command, rest = command_of(words)
    known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    given = {word.split("=")[0] for word in rest if word.startswith("--") or re.fullmatch(r"-[a-zA-Z]", word)}
    assert given <= known | {"--help"}, f"{document}: {words[:2]} has no {given - known}"


@pytest.mark.parametrize(("document", "words"), every_command(spans=False), ids=id_of)
def test_a_command_line_in_a_document_has_no_argument_too_many(document: str, words: list[str]) -> None:
    command, rest = command_of(words)
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(rest)
    assert left == [], f"{document}: {' '.join(words)}"


def test_every_command_is_in_the_table_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    missing = [entry.name for entry in COMMANDS if f"farm {entry.name}" not in text]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_and_files_named_in_a_document_exist(path: Path) -> None:
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:farm|workers|trainer|docs|examples|benchmarks|tests|migrations)/[\w./-]+)`", text)
    missing = [name for name in links if not (path.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_the_campaign_in_the_tutorial_loads(tmp_path: Path) -> None:
    (block,) = blocks((ROOT / "docs" / "tutorial.md").read_text(), "yaml")
    file = tmp_path / "tutorial.yaml"
    file.write_text(block)
    assert load(file, limit=10_000).size == 4 * 4 * 3


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/tutorial.md"])
def test_make_targets_in_a_document_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", (ROOT / name).read_text()))
    assert named
    assert named <= targets


def tables_in(path: Path) -> list[str]:
    return [block for block in re.split(r"\n{2,}", path.read_text().strip()) if block.startswith("| ")]


@pytest.mark.parametrize(
    ("document", "figures"),
    [
        ("docs/scale.md", 13),
        ("docs/measuring.md", 11),
        ("docs/reporting.md", 1),
        ("docs/serving.md", 1),
        ("docs/operating.md", 1),
        ("docs/backing_up.md", 1),
        ("docs/installing.md", 1),
        ("docs/problems.md", 2),
        ("docs/planning.md", 2),
        ("docs/models.md", 5),
        ("docs/upgrading.md", 2),
        ("docs/exporting.md", 1),
        ("docs/checking.md", 1),
    ],
)
def test_documents_show_the_figures_of_the_committed_benchmarks(document: str, figures: int) -> None:
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    measured = {table for path in results for table in tables_in(path)}
    heads = {table.splitlines()[0] for table in measured}
    shown = [table for table in tables_in(ROOT / document) if table.splitlines()[0] in heads]
    assert len(shown) == figures
    assert set(shown) <= measured


def test_every_benchmark_is_in_the_table_of_benchmarks() -> None:
    folder = ROOT / "benchmarks"
    listed = set(re.findall(r"^\| `(\w+)` \|", (folder / "README.md").read_text(), flags=re.MULTILINE))
    programs = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text()}
    assert listed == programs - {"nvbench_round"}  # a part of another one


def test_the_shares_of_a_core_in_the_readme_are_those_that_were_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    thousand = json.loads((results / "thousand_devices.json").read_text())
    one, forty = (json.loads((results / "many_devices.json").read_text())["owners"][owners] for owners in ("1", "40"))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"a thousand devices busy with {thousand['coordinator_cpu_pct']:.0f}% of a core" in readme
    assert (
        f"{one['coordinator_cpu_pct']:.0f}% of a core for one owner, and with {forty['coordinator_cpu_pct']:.0f}% for 40"
        in readme
    )
    assert one["worst_idle_pct"] == forty["worst_idle_pct"] == 0


def test_the_needs_of_a_hundred_thousand_devices_follow_from_the_measured_costs() -> None:
    steps = json.loads((ROOT / "benchmarks" / "results" / "hundred_thousand_devices.json").read_text())["steps"]
    (large,) = (s for s in steps if (s["devices"], s["owners"], s["settings"]) == (100_000, 1, "default"))
    scale = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    beat_us = large["postgres_us_per_beat"]
    assert f"{1e6 / beat_us:,.0f} a second for each core of Postgres" in scale
    assert f"25,000 a second: {25_000 * beat_us / 1e6:.1f} cores" in scale
    assert f"begins with {large['read_schedule_ms']:.0f} ms of reading devices" in scale
    many = json.loads((ROOT / "benchmarks" / "results" / "many_devices.json").read_text())["owners"]["1"]
    batch_us = 1e4 * many["coordinator_cpu_pct"] / many["batches_per_second"]
    assert f"{1e6 / batch_us:,.0f} batches a second at {batch_us:.0f} µs each" in scale


# --- containers --------------------------------------------------------------------------------------


def test_compose_runs_programs_that_exist() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("redis-users", "migrate", "coordinator", "trainer", "web", "worker-cpu", "worker-gpu"):
        words = COMPOSE["services"][name]["command"]
        lines = [line.split() for line in words[2].split("&&")] if words[:2] == ["sh", "-c"] else [words]
        for line in lines:
            if line[:2] == ["python", "-m"]:
                assert (ROOT / line[2].replace(".", "/") / "__main__.py").exists()
            else:
                assert line[0] in scripts
            if line[:2] == ["farm", "db"]:
                assert line[2] in imported(top_level().commands["db"]).commands


def test_compose_builds_targets_that_the_dockerfile_has_from_locks_that_exist() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\w+)", dockerfile, flags=re.MULTILINE))
    built = {s["build"]["target"] for s in COMPOSE["services"].values() if "build" in s}
    assert built <= targets
    for lock in re.findall(r"requirements/\S+\.txt", dockerfile):
        for cuda in ("cuda12", "cuda13"):
            assert (ROOT / lock.replace("${CUDA_EXTRA}", cuda)).exists()


def test_compose_sets_variables_that_the_settings_read() -> None:
    known = {f"FARM_{name.upper()}" for name in Settings.model_fields}
    known |= {f"MLFLOW_TRACKING_{name}" for name in ("URI", "USERNAME", "PASSWORD")}
    for name in ("migrate", "coordinator", "trainer", "web", "builder", "worker-cpu", "worker-gpu"):
        assert set(COMPOSE["services"][name]["environment"]) <= known | {"FORWARDED_ALLOW_IPS", "HOME"}  # uvicorn's


def test_locks_name_packages_and_hashes_but_no_place_to_fetch_them_from() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text, lock.name


def test_no_tracked_file_names_a_path_of_this_checkout() -> None:
    listed = subprocess.run(
        ["git", "grep", "-lIF", "-e", str(ROOT)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 128:
        pytest.skip("not a git checkout")
    assert listed.stdout == ""


# --- files of the hosting service --------------------------------------------------------------------


@pytest.mark.parametrize(("workflow", "command"), [("ci", ".ci/run"), ("nightly", ".ci/run test-all")])
def test_hosted_workflows_run_ci_on_every_supported_python(workflow: str, command: str) -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text())["jobs"]["run"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [command]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == ">=3.11,<3.13"
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12"]


def test_hooks_before_a_commit_run_programs_of_the_environment() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    programs = {Path(hook["entry"].split()[0]) for hook in repository["hooks"]}
    assert all((Path(sys.prefix) / "bin" / program.name).exists() for program in programs)
    assert {program.parent for program in programs} == {Path(".venv/bin")}


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_a_form_for_issues_has_a_name_and_distinct_fields(form: Path) -> None:
    document = yaml.safe_load(form.read_text())
    assert document["name"]
    assert document["description"]
    fields = [part["id"] for part in document["body"] if part["type"] != "markdown"]
    assert len(set(fields)) == len(fields)


def test_the_document_of_the_api_lists_what_does_not_work_over_it() -> None:
    local = [
        "| command | reason |",
        "| --- | --- |",
        *(f"| `farm {words}` | {reason} |" for words, reason in LOCAL.items()),
    ]
    privileged = [
        "| operation | method | path |",
        "| --- | --- | --- |",
        *(
            f"| {known.name} | {known.method} | `{known.path}` |"
            for known in sorted(OPERATIONS.values(), key=lambda known: known.name)
            if known.privileged
        ),
    ]
    document = (ROOT / "docs" / "serving.md").read_text()
    for table in (local, privileged):
        assert "\n".join(table) + "\n\n" in document

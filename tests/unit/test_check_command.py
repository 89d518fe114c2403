"""`farm check`: two versions are measured in turn until a change is shown or excluded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import farm
from farm.cli.check import check as check_command
from farm.errors import BadInput, FarmError
from farm.kernel_versions import Pair, campaign_with, pairs_of
from farm.kernels import Configuration
from farm.paired import Arm
from support.commands import NOWHERE, called
from support.homes import environment, eventually, processes_under
from support.own_kernels import CODE, block_of, defined
from workers import check

ROOT = Path(farm.__file__).parent.parent
RECORDING = ROOT / "examples" / "datasets" / "nvidia-h200-paper-tiled.parquet"
SLOW, FAST = (f"tiled(tile={tile}) 2048x2048x512 f32" for tile in (28, 16))
ON_RECORDING = ("--device", f"recorded:{RECORDING}")

Command = Callable[..., subprocess.CompletedProcess[str]]


def nowhere(folder: Path) -> dict[str, str]:
    return environment(folder / ".farm", FARM_DATABASE_URL=NOWHERE)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    yield lambda *arguments: called(("check", *arguments), tmp_path, nowhere(tmp_path))
    assert processes_under(tmp_path) == []


# --- what is told ------------------------------------------------------------------------------------


def test_a_slower_head_is_shown_and_ends_with_code_7(command: Command) -> None:
    done = command(FAST, SLOW, *ON_RECORDING)
    assert done.returncode == 7
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("2048x2048x512"))
    assert (row[3:6], row[-1]) == (["0.5346", "0.6031", "+12.80"], "slower")
    assert "1 is slower than base by 2% or more: 2048x2048x512 f32 nn (+12.80%)" in done.stderr
    assert f"base: {Configuration.parse(FAST).kernel}" in done.stderr
    assert done.stdout in (ROOT / "docs" / "checking.md").read_text()


def test_a_kernel_is_as_fast_as_itself(command: Command) -> None:
    done = command(SLOW, SLOW, *ON_RECORDING, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (found,) = document["checks"]
    assert (found["verdict"], found["ratio"], found["interval"]) == ("unchanged", 1.0, [1.0, 1.0])
    assert found["base"]["times_ms"] == found["head"]["times_ms"] == 6 * [pytest.approx(0.603, rel=1e-3)]
    assert document["device"]["type"] == "recorded-nvidia-h200"


def test_each_environment_has_a_process_of_its_own(command: Command) -> None:
    options = ("--head-env", "OPENBLAS_CORETYPE=PRESCOTT", "--device", "cpu", "--budget", "0.01s", "--json")
    done = command("blas(threads=1) 16x16x16 f32", *options)
    (found,) = json.loads(done.stdout)["checks"]
    assert found["rounds"] == 1
    base, head = (found[arm]["libraries"]["blas"] for arm in ("base", "head"))
    assert base.split()[:2] == head.split()[:2]
    assert head.split()[2] != base.split()[2]


def test_a_version_that_hangs_fails_and_the_next_pair_is_measured(command: Command, tmp_path: Path) -> None:
    campaign = {
        "name": "two", "problems": [{"shapes": "2048x2048x512", "types": "f32"}],
        "kernels": [{"family": "tiled", "tile": [28, 16]}],
        "measure": {"job_seconds": 0.4},
    }  # fmt: skip
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(campaign))
    # A row takes 1000 times as long as on the card.
    done = command("--campaign", "two.yaml", "--head-env", "NOTHING=1", "--device", f"recorded:{RECORDING}?scale=1000")
    assert done.returncode == 6
    assert "2 are not decided" in done.stderr
    assert "base killed: it took longer than 0.4 s" in done.stderr


def test_an_environment_in_which_nothing_starts_is_one_message(command: Command) -> None:
    done = command(FAST, "--head-env", "PYTHONHOME=/nowhere", *ON_RECORDING)
    assert done.returncode == 6
    assert "could not be measured (killed): its process ended with status 1" in done.stderr


@pytest.mark.parametrize(("known", "printed"), [(1, 1), (0, 0)])
def test_results_are_shown_where_the_device_is_lost_after_them(
    known: int, printed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = {
        "name": "two", "problems": [{"shapes": "2048x2048x512", "types": "f32"}],
        "kernels": [{"family": "tiled", "tile": [28, 16]}],
    }  # fmt: skip
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(campaign))
    result = {"pair": 0, "result": {"verdict": "unchanged", "ratio": 1.0}}
    lost = {"refused": {"exit_code": 3, "message": "the device is lost"}}
    monkeypatch.setattr("farm.cli.check.measured_in_turn", lambda _: iter([*[result] * known, lost]))
    with pytest.raises(FarmError, match="the device is lost"):
        check_command(campaign=tmp_path / "two.yaml", head_env=["A=1"], as_json=True)
    documents = capsys.readouterr().out
    assert len(json.loads(documents)["checks"] if documents else []) == printed


def test_ctrl_c_shows_what_is_known_and_leaves_nothing_behind(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "farm", "check", SLOW, SLOW, "--device", f"recorded:{RECORDING}?scale=1000"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=nowhere(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: any("workers.arm" in line for line in processes_under(tmp_path)))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupted: 0 of 1 problems were checked. Nothing is stored" in stderr
    assert processes_under(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "There is nothing to compare. Give two configurations"),
        ((FAST,), "There is nothing to compare tiled(tile=16)"),
        ((FAST, "tiled(tile=16) 64x64x64 f32"), "are different problems"),
        (("main", "HEAD"), "'main' is not a configuration"),
        ((FAST, "--head-env", "PATH"), "--head-env 'PATH' is not NAME=VALUE"),
        ((FAST, "--head-env", "A=1", "--head-env", "A=2"), "has A twice"),
        ((FAST, SLOW, "--budget", "0s"), "--budget 0s is no time at all"),
        ((FAST, SLOW, "--rules", '{"timming":1}'), "did you mean timing?"),
        (("--campaign", "none.yaml", "--head-env", "A=1"), "none.yaml: [Errno 2] No such file"),
        (("main", "--campaign", "plain.yaml"), "it names no own kernel"),
        (("--campaign", "plain.yaml"), "There is nothing to compare plain.yaml with"),
        (("main", "--campaign", "plain.yaml", "--source", "plain.yaml"), "--source is for a configuration"),
        (("--campaign", "plain.yaml", "--head-env", "A=1", "--protocol", "farm"), "measuring rules of its own"),
        (("--campaign", "search.yaml", "--head-env", "A=1"), "it searches, or draws its problems"),
        (("--campaign", "large.yaml", "--head-env", "A=1"), "more than 200 configurations"),
    ],
)
def test_bad_input_is_one_clear_message(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    plain = {
        "name": "plain",
        "problems": {"shapes": "64x64x64", "types": "f32"},
        "kernels": {"family": "blas", "threads": 1},
    }
    search = {**plain, "search": {"strategy": "random", "kernels": 1}}
    large = {**plain, "problems": {"m": "1..300", "n": 1, "k": 1, "types": "f32"}}
    for name, campaign in (("plain", plain), ("search", search), ("large", large)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(campaign))
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# --- the order of measurements -----------------------------------------------------------------------

BASE, HEAD = Configuration.parse("blas(threads=1) 8x8x8 f32"), Configuration.parse("blas(threads=2) 8x8x8 f32")
REQUEST = {"threshold": 0.02, "confidence": 0.95, "seconds": 100.0}


def row(ms: float, *, digest: str | None = "ab", seed: int = 0) -> dict[str, Any]:
    return {"row": {"ms": ms, "power_limited": None, "digest": digest, "seed": seed, "libraries": {}}}


def answers(measure: Callable[[Arm, Configuration], dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    pair = {Arm.BASE: BASE, Arm.HEAD: HEAD}
    return list(check.measured_in_turn(measure, pair, REQUEST | changes, clock=iter(range(10_000)).__next__))


def test_versions_alternate_in_a_balanced_order_after_one_measurement_of_each_that_is_left_out() -> None:
    order = list[str]()

    def measure(arm: Arm, configuration: Configuration) -> dict[str, Any]:
        assert configuration == (BASE if arm is Arm.BASE else HEAD)
        order.append(arm[0])
        if len(order) <= 2:
            return row(100.0)
        # A device that becomes 1% slower with each measurement.
        return row(1.01 ** len(order) * (1.05 if arm is Arm.HEAD else 1.0))

    *progress, last = answers(measure)
    assert "".join(order) == "bh" + "bhhb" + "hbbh" + "bhhb"
    assert [answer["rounds"] for answer in progress] == [1, 2, 3]
    assert last["result"]["ratio"] == pytest.approx(1.05)
    assert last["result"]["verdict"] == "slower"
    assert last["result"]["same_bits"] is True


def test_a_pair_that_is_not_decided_in_its_time_is_undecided() -> None:
    times = iter([1.0, 1.0] + 100 * [1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.1, 1.1])
    *progress, last = answers(lambda *_: row(next(times)), seconds=10.0)
    assert last["result"]["verdict"] == "undecided"
    assert 2 < last["result"]["rounds"] == len(progress) < 10


def test_a_failure_names_its_version_and_ends_the_pair() -> None:
    failure = {"kind": "failed", "message": "wrong result"}
    found = answers(lambda arm, _: {"failure": failure} if arm is Arm.HEAD else row(1.0))
    assert found == [{"failure": {"arm": "head", **failure}}]


@pytest.mark.parametrize(
    ("of_head", "same"), [({"digest": "cd"}, False), ({"digest": None}, None), ({"seed": 7}, None)]
)
def test_bits_are_compared_where_operands_are_equal(of_head: dict[str, Any], same: bool | None) -> None:
    last = answers(lambda arm, _: row(1.0, **of_head) if arm is Arm.HEAD else row(1.0))[-1]
    assert last["result"]["same_bits"] is same


def test_the_device_rests_between_two_processes_only() -> None:
    rests = list[float]()
    request = {"device": "cpu", "rules": {"job_seconds": 1}, "definitions": []}
    for head in ({}, {"A": "1"}):
        arms = check.Alternation({**request, "environments": {Arm.BASE: {}, Arm.HEAD: head}}, sleep=rests.append)
        for process in arms._processes.values():
            process.measure = lambda _: row(1.0)  # type: ignore[method-assign]
        for arm in (Arm.BASE, Arm.HEAD, Arm.HEAD, Arm.BASE):
            arms.measure(arm, BASE)
    assert rests == 2 * [check.REST_SECONDS]


def test_a_process_that_ends_between_two_measurements_is_a_failure_of_that_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens = ["sh", "-c", """read request; echo '{"opened": {"uuid": "CPU-1"}}'"""]
    monkeypatch.setattr(check.python_program, "program", lambda *_: opens)
    process = check.ArmProcess({"device": "cpu", "rules": {"job_seconds": 9}, "definitions": []}, {})
    process.open()
    assert process._process is not None
    process._process.wait()
    (failure,) = process.measure(BASE).values()
    assert failure["message"].startswith("its process ended with status 0")
    assert process._process is None


# --- versions of own kernels -------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose kernel changed since the tag `old`, with the campaign file in another folder."""
    for folder in ("kernels", "campaigns"):
        (tmp_path / folder).mkdir()
    block = block_of(defined(), BM=[16, 32], BN=16)
    block["file"] = "../kernels/my_gemm.cu"
    document = {
        "name": "own",
        "problems": {"shapes": ["64x64x64", "128x64x64"], "types": "f32"},
        "kernels": [block, {"family": "cublaslt"}],
    }
    (tmp_path / "campaigns" / "own.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "kernels" / "my_gemm.cu").write_text(CODE)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "old"], ["tag", "old"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})
    (tmp_path / "kernels" / "my_gemm.cu").write_text(f"{CODE}// faster\n")
    return tmp_path


def versions(folder: Path, base: str | None, head: str | None) -> list[Pair]:
    path = folder / "campaigns" / "own.yaml"
    both = [campaign_with(path, version, limit=1000) for version in (base, head)]
    codes = {definition.id: definition.code for campaign in both for definition in campaign.definitions.values()}
    pairs = pairs_of(*both)
    for pair in pairs:
        assert "faster" not in codes[dict(pair.base.kernel.parameters)["definition"]]
        assert "faster" in codes[dict(pair.head.kernel.parameters)["definition"]]
        assert (pair.base.problem, pair.base.kernel.parameters[:2]) == (
            pair.head.problem,
            pair.head.kernel.parameters[:2],
        )
    return pairs


def test_an_own_kernel_at_a_revision_is_paired_with_that_of_now(repository: Path) -> None:
    assert len(versions(repository, "old", None)) == 4, "two tile sizes and two shapes; cuBLASLt has one version"
    assert versions(repository, "old", "HEAD") == [], "not committed, so both are the same"


def test_two_files_of_an_own_kernel_are_paired(repository: Path) -> None:
    old, new = repository / "old.cu", repository / "new.cu"
    old.write_text(CODE)
    new.write_text(f"{CODE}// faster, in a file of another name\n")
    assert len(versions(repository, str(old), str(new))) == 4


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("no-such", "../kernels/my_gemm.cu at the git revision no-such cannot be read: "),
        ("--help", "is not a git revision"),
        ("none.cu", "none.cu"),
        ("my_gemm.py", "it names 0 files of that kind"),
    ],
)
def test_a_version_that_cannot_be_read_is_one_clear_message(repository: Path, version: str, says: str) -> None:
    with pytest.raises(BadInput) as found:
        campaign_with(repository / "campaigns" / "own.yaml", version, limit=1000)
    assert says in str(found.value)

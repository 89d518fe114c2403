"""Do tuned kernels of a language model stay faster than the default on another card, in a later run?

    export FARM_TRITON_VERSION=3.6.0                     the version that is installed
    python -m benchmarks.tuned --folder /tmp/tuned       on a host with one or two cards: again, until it writes results

The problems are the linear layers in block-scaled FP8 of one GPU (`--model`, `--tp`) at several numbers of tokens. There are three phases.
Each continues where an earlier call with the same options ended, and no call takes much longer than `--seconds`:

  tune    compiles the kernels of `SPACE` ahead of time on all cores, then searches by successive halving: of each problem, `--kernels`
          drawn kernels are measured briefly, and the best ones longer
  prove   measures the fastest kernel and vLLM's default in turn, A-B-B-A, and writes vLLM's files. A kernel is a winner if the interval
          excludes that it is no faster. All intervals hold together with 95%
  later   measures the winners and the defaults in turn again, by new processes, on the other card

With two cards, each tunes and proves half of the problems, and the other one measures these later. With one card, the same one does: then
`other_card` is false.

Figures: `problems`, `compared` (others have the default as their fastest kernel), `proven`, `median_speed_up` and `best_speed_up` of the winners,
`tuned_seconds` (compiling, searching and proving, over all calls), and of the later run `still_win_pct`, the share of winners whose paired
time is below that of the default, with its Wilson interval of 95%. A winner that fails does not win. `proven_again_pct` is the share whose later interval alone
shows it. The defaults and the winners are kernels of the farm's family `triton` with the parameters that vLLM's files have.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import end_like_interrupted, markdown, write
from farm.builds.cache import KernelCache
from farm.campaign import Campaign
from farm.campaign.strategies.draws import Draw
from farm.campaign.strategies.halving import Halving
from farm.cli.check_view import Compared, Run
from farm.errors import FarmError
from farm.exporters.block_linears import TRITON, Vllm
from farm.exporters.tuned import REPORT, TunedChoice, read_proofs
from farm.gemm import Problem
from farm.kernel_versions import Pair
from farm.kernels import Configuration, problem_line
from farm.language_models.built_in import built_in
from farm.language_models.steps import Parallelism, layer_gemms
from farm.measurement import MeasuringRules, TimingRules
from farm.paired import CONFIDENCE, THRESHOLD, Arm
from farm.python_program import program
from farm.services.measuring_in_turn import measured_in_turn
from farm.settings import settings
from workers.answers import DeviceUnusable
from workers.check import ArmProcess
from workers.device_lock import DeviceLock, lock_folder
from workers.devices import discover

TOKENS = (1, 16, 64, 128, 256, 512, 1024, 4096)

SPACE = {
    "family": TRITON,
    "tile_m": [16, 32, 64, 128],
    "tile_n": [32, 64, 128, 256],
    "tile_k": [64, 128],
    "group_m": [1, 32],
    "warps": [4, 8],
    "stages": [2, 3, 4],
}
"""Some of the values that vLLM's own tuning tries (`benchmarks/kernels/benchmark_w8a8_block_fp8.py`)."""

FULL = MeasuringRules(timing=TimingRules(max_seconds=0.2), job_seconds=60)

PAIR_SECONDS = 12.0
"""Time limit of a pair. After it, the pair is undecided."""

FORMAT = Vllm()
PHASES = ("tune", "prove", "later")

Document = dict[str, Any]


class Refused(Exception):
    """A phase cannot begin or continue. The message says why."""


class Lines:
    """JSON objects in a file, one a line, that threads and later calls add to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> list[Document]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def add(self, one: Document) -> None:
        with self._lock, self.path.open("a") as file:
            file.write(json.dumps(one) + "\n")


# --- what is tuned ------------------------------------------------------------------------------------


def problems_of(model: str, tp: int, tokens: Iterable[int]) -> list[Problem]:
    """The layers of one GPU that vLLM's files can have, at each number of tokens."""
    gemms = (gemm for m in tokens for gemm in layer_gemms(built_in(model), m, Parallelism(tp)))
    found = dict.fromkeys(gemm.problem for gemm in gemms)
    return [problem for problem in found if FORMAT.why_not(FORMAT.default(problem)) is None]


def campaign_of(problems: Sequence[Problem]) -> Document:
    """The space of all problems. Without half-empty tiles of rows, but those of the least size."""
    return {
        "name": "tuned",
        "problems": [{"gemms": [problem_line(problem) for problem in problems]}],
        "kernels": [SPACE],
        "constraints": ["tile_m == 16 or tile_m < 2 * m"],
    }


def drawn(campaign: Campaign, problem: Problem, kernels: int, card: Any) -> list[str]:
    """The first candidates of a problem: the default, and kernels at random that the card can run."""
    default, draw = FORMAT.default(problem), Draw(kernels - 1, seed=0)
    for configuration in campaign.kernels_for(problem):
        if configuration != default and configuration.why_invalid(card.traits) is None:
            draw.add(configuration)
    return [default.canonical, *(one.canonical for one in draw.drawn())]


# --- tune ---------------------------------------------------------------------------------------------


def build(campaign: Mapping[str, Any], folder: Path, arch: str) -> None:
    """Compiles what is not compiled yet. Kernels that do not compile fail later, by themselves."""
    file = folder / "campaign.yaml"
    file.write_text(yaml.safe_dump(dict(campaign), sort_keys=False))
    kernels = folder / "kernels"
    command = program("farm", "kernels", "build", str(file), "--arch", arch, "--output", str(kernels))
    subprocess.run(command, check=False, stdout=sys.stderr)
    if not any(KernelCache(kernels).records()):
        raise Refused("No kernel was built. FARM_TRITON_VERSION must be the version of Triton that is installed.")


Times = dict[str, dict[int, dict[str, float | None]]]
"""By problem, round and configuration: ms, or None where it failed."""


def times_of(rows: Iterable[Document]) -> Times:
    found: Times = {}
    for row in rows:
        problem = row["configuration"].partition(" ")[2]
        found.setdefault(problem, {}).setdefault(row["round"], {})[row["configuration"]] = row["ms"]
    return found


def fastest(times: Mapping[str, float | None]) -> list[str]:
    """Those that did not fail, the fastest first."""
    return [name for _, name in sorted((ms, name) for name, ms in times.items() if ms is not None)]


@dataclass(frozen=True)
class Search:
    """Successive halving of the candidates of each problem.

    Attributes:
        halving: The strategy.
        first: The candidates of each problem, by its line.
    """

    halving: Halving
    first: Mapping[str, Sequence[str]]

    @property
    def rounds(self) -> int:
        return len(self.halving.rounds(max(map(len, self.first.values()))))

    def rules(self, number: int) -> MeasuringRules:
        return FULL if number == self.rounds - 1 else self.halving.short_rules(FULL, number)

    def candidates(self, problem: str, number: int, times: Times) -> list[str]:
        """What a round measures of a problem, once the one before is over."""
        if number == 0:
            return list(self.first[problem])
        before = fastest(times.get(problem, {}).get(number - 1, {}))
        return before[: self.halving.going_on(len(before))]

    def is_over(self, problem: str, times: Times) -> bool:
        rounds = times.get(problem, {})
        return all(
            set(self.candidates(problem, number, times)) <= rounds.get(number, {}).keys()
            for number in range(self.rounds)
        )

    def winner(self, problem: str, times: Times) -> str | None:
        """The fastest of the last round; None where every kernel failed."""
        return next(iter(fastest(times.get(problem, {}).get(self.rounds - 1, {}))), None)

    def measure(self, uuid: str, problems: Sequence[str], rows: Lines, deadline: float) -> bool:
        """Measures on a card until all is known, or the deadline. Returns whether all is known. Raises `Refused`."""
        times = times_of(rows.read())
        lock = DeviceLock.take(uuid, lock_folder())
        try:
            return all(self._round(number, uuid, problems, times, rows, deadline) for number in range(self.rounds))
        except DeviceUnusable as error:
            raise Refused(f"{uuid}: {json.dumps(error.answer)}") from None
        finally:
            lock.release()

    def _round(
        self, number: int, uuid: str, problems: Sequence[str], times: Times, rows: Lines, deadline: float
    ) -> bool:
        request = {"device": uuid, "rules": self.rules(number).model_dump(mode="json"), "definitions": []}
        process = ArmProcess(request, {})
        try:
            for problem in problems:
                known = times.setdefault(problem, {}).setdefault(number, {})
                for name in self.candidates(problem, number, times):
                    if name in known:
                        continue
                    if time.monotonic() > deadline:
                        return False
                    answer = process.measure(Configuration.parse(name))
                    known[name] = answer["row"]["ms"] if "row" in answer else None
                    failed = {"failure": answer["failure"]} if "failure" in answer else {}
                    rows.add({"configuration": name, "round": number, "ms": known[name], "card": uuid, **failed})
        finally:
            process.close()
        return True


# --- prove and later ----------------------------------------------------------------------------------

Pairs = Sequence[tuple[Configuration, Configuration]]
"""The default and a kernel that may be faster."""


def compare(uuid: str, pairs: Pairs, proofs: Lines, confidence: float, deadline: float) -> bool:
    """Measures pairs in turn on a card. Adds for each what `farm check --json` prints. Returns whether all are known.

    Raises `Refused`.
    """
    known = {one["head_configuration"] for document in proofs.read() for one in document["checks"]}
    left = [pair for pair in pairs if pair[1].canonical not in known]
    if not left or time.monotonic() > deadline:
        return not left
    request = {
        "device": uuid,
        "pairs": [{Arm.BASE: base.canonical, Arm.HEAD: head.canonical} for base, head in left],
        "rules": FULL.model_dump(mode="json"),
        "definitions": [],
        "environments": {arm: {} for arm in Arm},
        "threshold": THRESHOLD,
        "confidence": confidence,
        "seconds": PAIR_SECONDS,
    }
    device: Document | None = None
    done = 0
    with closing(measured_in_turn(request)) as answers:
        for answer in answers:
            if "opened" in answer:
                device = answer["opened"]
            elif "pair" in answer:
                base, head = left[answer["pair"]]
                names = {Arm.BASE: str(base.kernel), Arm.HEAD: str(head.kernel)}
                run = Run(Compared([Pair(base, head)], names, ()), 100 * THRESHOLD, device, {0: answer})
                at = datetime.now(UTC).isoformat(timespec="seconds")
                proofs.add({**run.document(), "confidence": confidence, "at": at})
                done += 1
            elif "progress" not in answer:
                raise Refused(f"{uuid}: {json.dumps(answer)}")
            if time.monotonic() > deadline:
                break
    return done == len(left)


def together(pairs: int) -> float:
    """The confidence of one interval, so that all hold together."""
    return 1 - (1 - CONFIDENCE) / max(1, pairs)


def proofs_of(proofs: Lines, device_type: str) -> list[TunedChoice]:
    """What is known of each pair that was measured. Pairs that failed are left out."""
    if not proofs.path.exists():
        return []
    return [TunedChoice(one.base, one.head, one.paired) for one in read_proofs(proofs.path, device_type)]


def export(choices: Sequence[TunedChoice], device_name: str, folder: Path) -> None:
    """Writes vLLM's files, with the default where no winner is proven, and the report."""
    folder.mkdir(exist_ok=True)
    for file in FORMAT.files(choices, device_name):
        (folder / file.name).write_bytes(file.content)
    report = {"device": device_name, "choices": [choice.to_json() for choice in choices]}
    (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")


# --- figures ------------------------------------------------------------------------------------------


def wilson_pct(count: int, of: int, z: float = 1.959964) -> list[float] | None:
    """The interval of 95% of a share, in percent. E. B. Wilson, JASA 22 (1927)."""
    if not of:
        return None
    share, shrink = count / of, 1 + z**2 / of
    middle = (share + z**2 / (2 * of)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    return [round(100 * max(0.0, middle - half), 1), round(100 * min(1.0, middle + half), 1)]


def percent(count: int, of: int) -> float | None:
    return round(100 * count / of, 1) if of else None


def speed_ups(choices: Iterable[TunedChoice]) -> list[float]:
    return [round(1 / choice.paired.ratio, 4) for choice in choices if choice.paired is not None]


def is_faster(choice: TunedChoice | None) -> bool:
    return choice is not None and choice.paired is not None and choice.paired.ratio < 1


def figures(choices: Sequence[TunedChoice], later: Sequence[TunedChoice]) -> Document:
    """Figures of all problems, and each problem.

    Args:
        choices: What was proven of each problem.
        later: What the later run says. A winner without a result failed.
    """
    again = {choice.winner: choice for choice in later}
    winners = [choice for choice in choices if choice.proven]
    still = sum(is_faster(again.get(choice.winner)) for choice in winners)
    proven_again = sum(choice.winner in again and again[choice.winner].proven for choice in winners)
    gains = speed_ups(winners)
    return {
        "problems": len(choices),
        "compared": sum(choice.winner != choice.default for choice in choices),
        "proven": len(winners),
        "median_speed_up": statistics.median(gains) if gains else None,
        "best_speed_up": max(gains, default=None),
        "still_win": still,
        "still_win_pct": percent(still, len(winners)),
        "still_win_95_pct": wilson_pct(still, len(winners)),
        "proven_again_pct": percent(proven_again, len(winners)),
        "later_worst_speed_up": min(speed_ups(again[one.winner] for one in winners if one.winner in again), default=None),
        "each": [
            choice.to_json() | {"later": again[choice.winner].to_json() if choice.winner in again else None}
            for choice in choices
        ],
    }  # fmt: skip


def table(choices: Sequence[TunedChoice], later: Sequence[TunedChoice]) -> str:
    """A line for each weight [n, k]."""
    weights = dict[tuple[int, int], list[TunedChoice]]()
    for choice in choices:
        weights.setdefault((choice.problem.shape.n, choice.problem.shape.k), []).append(choice)
    rows = []
    for (n, k), own in weights.items():
        found = figures(own, later)
        gains = [found[name] for name in ("median_speed_up", "best_speed_up", "later_worst_speed_up")]
        shown = [f"{gain:.3f}" if gain is not None else "–" for gain in gains]
        rows.append([f"{n} x {k}", found["problems"], found["proven"], *shown, found["still_win"]])
    heads = ["weight n x k", "problems", "proven", "median speed-up", "best", "later: smallest", "still win"]
    return markdown(heads, rows)


# --- all of it ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """The state of all calls, in a folder."""

    folder: Path
    cards: Sequence[Any]
    problems: Sequence[Problem]
    search: Search
    deadline: float

    @property
    def rows(self) -> Lines:
        return Lines(self.folder / "rows.jsonl")

    def proofs(self, phase: str) -> Lines:
        return Lines(self.folder / f"{phase}.json")

    def card_of(self, number: int, phase: str) -> Any:
        """The card of a problem: the next one in the later run."""
        return self.cards[(number + (phase == "later")) % len(self.cards)]

    def on_cards(self, phase: str, task: Callable[[str, list[Problem]], bool]) -> bool:
        """Runs a task for the problems of each card, on all cards at a time. Returns whether all are over."""
        shares: dict[str, list[Problem]] = {}
        for number, problem in enumerate(self.problems):
            shares.setdefault(self.card_of(number, phase).uuid, []).append(problem)
        with ThreadPoolExecutor(len(shares)) as threads:
            return all(list(threads.map(task, shares, shares.values())))

    def tune(self) -> bool:
        rows = self.rows
        return self.on_cards(
            "tune",
            lambda uuid, own: self.search.measure(
                uuid, [problem_line(problem) for problem in own], rows, self.deadline
            ),
        )

    def pairs(self) -> Pairs:
        """The default and the fastest kernel of each problem that has another one. Raises `Refused`."""
        times = times_of(self.rows.read())
        lines = [problem_line(problem) for problem in self.problems]
        if not all(self.search.is_over(line, times) for line in lines):
            raise Refused("The phase tune is not over. Continue it with --phase tune.")
        found = [self.search.winner(line, times) for line in lines]
        both = [
            (FORMAT.default(problem), Configuration.parse(name))
            for problem, name in zip(self.problems, found, strict=True)
            if name is not None
        ]
        return [(default, fastest) for default, fastest in both if fastest != default]

    def choices(self) -> list[TunedChoice]:
        """What is proven of each problem."""
        proven = {choice.problem: choice for choice in proofs_of(self.proofs("prove"), self.cards[0].type)}
        defaults = (FORMAT.default(problem) for problem in self.problems)
        return [proven.get(default.problem, TunedChoice(default, default)) for default in defaults]

    def prove(self) -> bool:
        done = self._compare("prove", self.pairs())
        if done:
            export(self.choices(), self.cards[0].name, self.folder / "vllm")
        return done

    def later(self) -> bool:
        known = {one["head_configuration"] for document in self.proofs("prove").read() for one in document["checks"]}
        if not {head.canonical for _, head in self.pairs()} <= known:
            raise Refused("The phase prove is not over. Continue it with --phase prove.")
        return self._compare("later", [(one.default, one.winner) for one in self.choices() if one.proven])

    def _compare(self, phase: str, pairs: Pairs) -> bool:
        proofs, confidence = self.proofs(phase), together(len(pairs))
        return self.on_cards(
            phase,
            lambda uuid, own: compare(
                uuid, [pair for pair in pairs if pair[0].problem in own], proofs, confidence, self.deadline
            ),
        )


@contextmanager
def timed(file: Path, phase: str) -> Iterator[None]:
    """Adds the seconds of the block to those of earlier calls."""
    began = time.monotonic()
    try:
        yield
    finally:
        found = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**found, phase: found.get(phase, 0.0) + time.monotonic() - began}))


def tuning_of(asked: argparse.Namespace, began: float) -> tuple[Tuning, Document]:
    """The state in the folder, and the campaign. Raises `Refused`, and the reason why there is no card."""
    cards = discover("cuda")[: asked.cards]
    if len({card.type for card in cards}) > 1:
        raise Refused("The cards are of several types. Select cards of one type with CUDA_VISIBLE_DEVICES.")
    problems = problems_of(asked.model, asked.tp, asked.tokens)
    if not problems:
        raise Refused(f"{asked.model} has no linear layers in block-scaled FP8.")
    document = campaign_of(problems)
    campaign = Campaign.from_document(document)
    first = {problem_line(problem): drawn(campaign, problem, asked.kernels, cards[0]) for problem in problems}
    search = Search(Halving(kernels=asked.kernels), first)
    return Tuning(asked.folder, cards, problems, search, began + asked.seconds), document


def run(asked: argparse.Namespace) -> bool:
    """The phases, in their order. Returns whether all phases are over, so that the results can be written."""
    began, clock = time.monotonic(), asked.folder / "seconds.json"
    tuning, document = tuning_of(asked, began)
    if "tune" in asked.phase:
        with timed(clock, "build"):
            major, minor = tuning.cards[0].traits.compute_capability
            build(document, asked.folder, f"sm_{major}{minor}a" if (major, minor) == (9, 0) else f"sm_{major}{minor}")
    for phase in asked.phase:
        with timed(clock, phase):
            over = getattr(tuning, phase)()
        print(f"{phase}: {'over' if over else 'not over yet'}, {time.monotonic() - began:.0f} s", file=sys.stderr)
        if not over:
            print("Run the same command again to continue.", file=sys.stderr)
            return False
    if "later" not in asked.phase:
        return False
    choices, later = tuning.choices(), proofs_of(tuning.proofs("later"), tuning.cards[0].type)
    seconds = json.loads(clock.read_text())
    rows = tuning.rows.read()
    facts = {
        "model": asked.model,
        "tp": asked.tp,
        "tokens": asked.tokens,
        "device_type": tuning.cards[0].type,
        "other_card": len(tuning.cards) > 1,
        "tuned_seconds": round(sum(seconds.get(phase, 0.0) for phase in ("build", "tune", "prove")), 1),
        "seconds": {phase: round(spent, 1) for phase, spent in seconds.items()},
        "measurements": len(rows),
        "failed": sum(row["ms"] is None for row in rows),
    }
    write("tuned", facts | figures(choices, later), table(choices, later), repetitions=1)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for what is measured and built, and vLLM's files")
    parser.add_argument("--phase", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--model", default="deepseek-v3", help="of the built-in ones")
    parser.add_argument("--tp", type=int, default=8, help="tensor parallelism")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--kernels", type=int, default=96, help="kernels that are tried for each problem")
    parser.add_argument("--cards", type=int, default=2, help="cards at most")
    parser.add_argument("--seconds", type=float, default=500, help="after which a call ends")
    asked = parser.parse_args()
    asked.folder = asked.folder.absolute()
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"FARM_HOME": str(asked.folder / "home"), "FARM_KERNELS": str(asked.folder / "kernels")}
    settings.cache_clear()
    end_like_interrupted()
    try:
        run(asked)
    except (Refused, FarmError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

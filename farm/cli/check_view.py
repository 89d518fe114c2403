"""The presenter of `farm check`: a table, notes, a document, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.text import Text

from farm.cli.output import remarks
from farm.cli.tables import Column, Table
from farm.errors import FarmError, NotMeasured
from farm.formatting import problem_text, some_of
from farm.kernel_versions import Pair, without_definition
from farm.kernels.configuration import problem_columns
from farm.kernels.definition import Definition
from farm.measurement import MeasuringRules
from farm.paired import CONFIDENCE, Arm, Verdict

Answer = dict[str, Any]


class HeadSlower(FarmError):
    """Of {checked}, {slower} slower than base by {pct}% or more: {which}."""

    exit_code = 7


class NotDecided(NotMeasured):
    """Of {checked}, {count} not decided: {which}."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What is measured, and what people call both versions."""

    pairs: Sequence[Pair]
    names: Mapping[Arm, str]
    definitions: Sequence[Definition]
    rules: MeasuringRules | None = None  # of a campaign
    two_environments: bool = False


_CHECKS = Table(
    "paired checks",
    Column("problem", folds=True),
    Column("base", "ms", number=True, priority=1),
    Column("head", "ms", number=True, priority=1),
    Column("change", "%", number=True),
    Column("interval", "%", priority=2),
    Column("rounds", number=True, priority=4),
    Column("power-limited", priority=3),
    Column("verdict", folds=True),
    sparse=True,
)

_COLOURS = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.UNDECIDED: "yellow"}


@dataclass(slots=True)
class Run:
    """What is known so far."""

    compared: Compared
    threshold_pct: float
    device: Answer | None = None
    answers: dict[int, Answer] = field(default_factory=dict)
    interrupted: bool = False

    def opened(self, answer: Answer, selection: str) -> None:
        """The device is open. Says which one it is where several were named."""
        self.device = answer["opened"]
        if answer["of"] > 1:
            text = f"{selection} names {answer['of']} devices; the first is used: {{name}}, {{uuid}}"
            remarks.print(text.format(**answer["opened"]), markup=False)

    def name_of(self, pair: Pair) -> str:
        """The problem, with the kernel unless there is only one problem."""
        problem = problem_text(problem_columns(pair.problem))
        return problem if len(self.compared.pairs) == 1 else f"{without_definition(pair.base.kernel)} {problem}"

    @property
    def found(self) -> dict[int, Answer]:
        """Results by the number of their pair."""
        return {number: answer["result"] for number, answer in self.answers.items() if "result" in answer}

    @property
    def failures(self) -> dict[int, Answer]:
        """Failures by the number of their pair, but of configurations that the device cannot run in either version."""
        found = {number: answer["failure"] for number, answer in self.answers.items() if "failure" in answer}
        return {number: failure for number, failure in found.items() if not _cannot_run(failure)}

    @property
    def left_out(self) -> list[Answer]:
        """Why the device cannot run the base's configurations."""
        return [
            answer["failure"]
            for answer in self.answers.values()
            if "failure" in answer and _cannot_run(answer["failure"])
        ]

    def those(self, keep: Callable[[Answer], bool]) -> list[str]:
        """The names of pairs with such a result, with the change."""
        return [
            f"{self.name_of(self.compared.pairs[number])} ({_percent(result['ratio'])}%)"
            for number, result in sorted(self.found.items())
            if keep(result)
        ]

    def document(self) -> Answer:
        """All of it as JSON data."""
        pairs = self.compared.pairs
        each = [
            {
                "base_configuration": pairs[number].base.canonical,
                "head_configuration": pairs[number].head.canonical,
                **answer.get("result", {"verdict": "failed", "failure": answer.get("failure")}),
            }
            for number, answer in sorted(self.answers.items())
        ]
        return {
            "base": self.compared.names[Arm.BASE],
            "head": self.compared.names[Arm.HEAD],
            "device": self.device,
            "threshold_pct": self.threshold_pct,
            "confidence": CONFIDENCE,
            "pairs": len(pairs),
            "two_environments": self.compared.two_environments,
            "interrupted": self.interrupted,
            "checks": each,
        }

    def print(self) -> None:
        """Prints the table, and notes."""
        for arm in Arm:
            remarks.print(f"{arm}: {self.compared.names[arm]}", markup=False)
        if not self.compared.pairs:
            remarks.print("The kernels are the same in both versions. There is nothing to measure.")
            return
        if self.device is not None:
            remarks.print("device: {name} ({type}), {uuid}".format(**self.device), markup=False)
        if rows := list(self._rows()):
            _CHECKS.print(rows)
        for line in self._notes():
            remarks.print(line, markup=False)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        failures = self.failures
        for number, pair in enumerate(self.compared.pairs):
            name = self.name_of(pair)
            if number in failures:
                text = "{arm} {kind}: {message}".format(**failures[number])
                yield name, None, None, None, None, None, None, Text(text, style="red")
            elif (result := self.found.get(number)) is not None:
                verdict = Verdict(result["verdict"])
                text = f"no change of {self.threshold_pct:g}%" if verdict is Verdict.UNCHANGED else str(verdict)
                low_high = result["interval"]
                yield (
                    name, f"{result['base']['ms']:.4g}", f"{result['head']['ms']:.4g}", _percent(result["ratio"]),
                    None if low_high is None else " to ".join(map(_percent, low_high)), str(result["rounds"]),
                    _limited(result), Text(text, style=_COLOURS.get(verdict, "")),
                )  # fmt: skip

    def _notes(self) -> Iterator[str]:
        if self.left_out:
            yield f"Configurations that cannot run on this device: {len(self.left_out)}. {self.left_out[0]['message']}"
        results = list(self.found.values())
        if results and self.compared.two_environments:
            yield _libraries(results)
        if differing := sum(result["same_bits"] is False for result in results):
            yield f"The bits of the results differ between base and head for {differing} of {len(results)} problems."
        if self.interrupted:
            measured, total = len(self.answers), len(self.compared.pairs)
            yield f"Interrupted: {measured} of {total} problems were checked. Nothing is stored, and no process is left running."

    def end(self) -> None:
        """Ends the command with the exit code of the results. Raises `HeadSlower`, `NotDecided` and `typer.Exit`."""
        if self.interrupted:
            raise typer.Exit(130)
        checked, total = len(self.found) + len(self.failures), len(self.compared.pairs)
        of = f"{checked} problems" if checked != 1 else "1 problem"
        if slower := self.those(lambda result: result["verdict"] == Verdict.SLOWER):
            count = f"{len(slower)} {'is' if len(slower) == 1 else 'are'}"
            raise HeadSlower(checked=of, slower=count, pct=f"{self.threshold_pct:g}", which=some_of(slower, limit=4))
        if total and not checked:
            raise NotMeasured(kind=self.left_out[0]["kind"], why=self.left_out[0]["message"])
        undecided = self.those(lambda result: result["verdict"] == Verdict.UNDECIDED)
        failed = [
            f"{self.name_of(self.compared.pairs[number])}: {failure['arm']} {failure['kind']}: {failure['message']}"
            for number, failure in sorted(self.failures.items())
        ]
        if not_decided := [*failed, *undecided]:
            count = f"{len(not_decided)} {'is' if len(not_decided) == 1 else 'are'}"
            which = some_of(not_decided, limit=4)
            if undecided:
                which += ". A larger --budget or --threshold decides more"
            raise NotDecided(checked=of, count=count, which=which)


def _cannot_run(failure: Answer) -> bool:
    """Whether the device cannot run the base; a head that it cannot run is a failure."""
    return bool(failure["kind"] == "invalid" and failure["arm"] == Arm.BASE)


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}"


def _limited(result: Answer) -> str | None:
    known = {result[arm]["power_limited"] for arm in Arm}
    if known == {None}:
        return None
    if len(known) == 1:
        return "yes" if known == {True} else "no"
    return " and ".join(arm for arm in Arm if result[arm]["power_limited"]) or "no"


def _libraries(results: Sequence[Answer]) -> str:
    """Which versions differ between the environments, or that none do."""
    differing = {
        name: (value, result[Arm.HEAD]["libraries"].get(name))
        for result in results
        for name, value in result[Arm.BASE]["libraries"].items()
        if value != result[Arm.HEAD]["libraries"].get(name)
    }
    if not differing:
        return "Both environments report the same versions of all libraries, so the variables may have had no effect."
    return "Versions: " + ", ".join(f"{name} {base} and {head}" for name, (base, head) in sorted(differing.items()))

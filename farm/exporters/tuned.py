"""Tuned kernels for other tools: which kernel of each problem a file names, and why it may.

The fastest row of a campaign is often noise. The fastest kernel is therefore written only if a paired measurement (`farm.paired`) shows
at 95% that it is faster than what the tool does by default. Otherwise the default is written. Proofs of other kernels do not count: the
best of several would be proven by chance more often. `tuned.json` next to the tool's files says which of both each problem has, with
the ratio and its interval.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from farm import __version__
from farm.api import Farm
from farm.api.results import TypesOfPages, pages
from farm.errors import BadInput, FarmError, NothingToExport, first_line
from farm.exporters.consumer import Consumer
from farm.exporters.exporter import Export, ExportedFile
from farm.exporters.timed_rows import TimedRow, timed_rows
from farm.gemm import Problem
from farm.kernels import Configuration, problem_line
from farm.paired import PairedResult, Verdict
from farm.protocols import Time

REPORT = "tuned.json"


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """The kernel of one problem.

    Attributes:
        default: What the tool runs without a file.
        winner: The kernel with the least median time.
        paired: The winner's time over the default's; None where nothing compared them.
    """

    default: Configuration
    winner: Configuration
    paired: PairedResult | None = None

    @property
    def problem(self) -> Problem:
        return self.default.problem

    @property
    def proven(self) -> bool:
        """Whether the interval excludes that the winner is no faster."""
        return self.paired is not None and self.paired.interval[1] < 1

    @property
    def written(self) -> Configuration:
        return self.winner if self.proven else self.default

    def to_json(self) -> dict[str, Any]:
        paired = self.paired
        return {
            "problem": problem_line(self.problem),
            "default": self.default.canonical,
            "winner": self.winner.canonical,
            "written": "winner" if self.proven else "default",
            "proven": self.proven,
            "ratio": None if paired is None else paired.ratio,
            "interval": None if paired is None or paired.interval[0] == 0 else list(paired.interval),
            "rounds": 0 if paired is None else paired.rounds,
            "check": None if self.winner == self.default else shlex.join(
                ["farm", "check", self.default.canonical, self.winner.canonical, "--json"]
            ),
        }  # fmt: skip


class TunedFormat(ABC):
    """The files of one tool.

    Attributes:
        name: Its name for `farm export`.
        consumer: The package that reads the files, and its versions.
        help: The help of its command.
        use: How the tool gets the files, for people.
    """

    name: ClassVar[str]
    consumer: ClassVar[Consumer]
    help: ClassVar[str]
    use: ClassVar[str]

    @abstractmethod
    def default(self, problem: Problem) -> Configuration:
        """What the tool runs for a problem without a file."""

    @abstractmethod
    def why_not(self, configuration: Configuration) -> str | None:
        """Why the files cannot name a kernel for a problem, as the end of a sentence; None where they can."""

    @abstractmethod
    def files(self, choices: Sequence[TunedChoice], device_name: str) -> list[ExportedFile]:
        """The tool's files of one device type."""

    def export(
        self, farm: Farm, query: Mapping[str, Any], *, time: Time, proofs: Sequence[Path], consumer_version: str | None = None
    ) -> Export:  # fmt: skip
        """The files and the report.

        Args:
            query: The arguments of the operation `farm.api.results.rows`, with the device type.
            time: The time by which the fastest kernel is found.
            proofs: Files of `farm check --json`.

        Raises:
            OtherConsumerVersion: The files are for another version of the tool.
            NothingToExport: No row can be in the files.
            BadInput: A proof cannot be read, or is of another device type.
        """
        version = self.consumer.checked(consumer_version)
        device_type: str = query["type"]
        proven = [one for path in proofs for one in read_proofs(path, device_type)]
        types = TypesOfPages()
        choices, remarks = self.choices(types.rows(pages(farm, None, **query)), time=time, proofs=proven)
        if not choices or types.identity is None:
            raise NothingToExport(tool=self.name, why=" ".join(remarks) or f"no row of {device_type} matches.")
        report = {
            "written_by": f"gemm-farm {__version__}",
            "for": f"{self.consumer.package} {version}",
            "device": types.identity.name,
            "device_type": device_type,
            "time": time,
            "choices": [choice.to_json() for choice in choices],
        }
        won = sum(choice.proven for choice in choices)
        remarks.append(
            f"{won:,} of {len(choices):,} problems have a winner that is proven; the others have the default. See {REPORT}."
        )
        files = self.files(choices, types.identity.name)
        text = json.dumps(report, indent=1) + "\n"
        return Export([*files, ExportedFile(REPORT, text.encode(), len(choices), "problems")], remarks)

    def choices(
        self, rows: Iterable[Mapping[str, Any]], *, time: Time, proofs: Sequence[Proof] = ()
    ) -> tuple[list[TunedChoice], list[str]]:
        """A choice for each problem, and remarks on rows that are left out.

        The winner is the kernel with the least median time, and of several proofs of it the weakest counts: rows chose what is
        proven, and no result of a proof does.
        """
        times, remarks = timed_rows(rows, time, self.why_not)
        tried = {problem: kernels for problem, kernels in times.items() if set(kernels) != {self.default(problem)}}
        if len(tried) < len(times):
            remarks.append(f"{len(times) - len(tried):,} problems have rows of the default alone, and are left out.")
        choices = [self._choice(problem, kernels, proofs) for problem, kernels in tried.items()]
        winners = {(choice.default, choice.winner) for choice in choices}
        if others := sum((one.base, one.head) not in winners for one in proofs):
            remarks.append(
                f"{others:,} proofs do not compare the default of a problem with its fastest kernel, and are left out."
            )
        return sorted(choices, key=lambda one: (one.problem.shape.n, one.problem.shape.k, one.problem.shape.m)), remarks

    def _choice(
        self, problem: Problem, kernels: Mapping[Configuration, Sequence[TimedRow]], proofs: Sequence[Proof]
    ) -> TunedChoice:
        default = self.default(problem)
        fastest = min(kernels, key=lambda one: median(ms for _, ms in kernels[one]))
        checked = [one.paired for one in proofs if (one.base, one.head) == (default, fastest)]
        return TunedChoice(default, fastest, max(checked, key=lambda one: one.interval[1], default=None))


@dataclass(frozen=True, slots=True)
class Proof:
    """What a paired measurement says about two configurations."""

    base: Configuration
    head: Configuration
    paired: PairedResult


def read_proofs(path: Path, device_type: str) -> list[Proof]:
    """The comparisons of a file with what `farm check --json` printed, once or several times. Raises `BadInput`."""
    try:
        documents = list(_documents(path.read_text()))
        found = [_proof(one) for document in documents for one in document["checks"] if "ratio" in one]
        types = {str(document["device"]["type"]) for document in documents}
        environments = any(document["two_environments"] for document in documents)
    except OSError as error:
        raise BadInput(detail=f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FarmError) as error:
        raise BadInput(detail=f"{path} is no output of farm check --json: {first_line(error)}") from None
    if types - {device_type}:
        measured_on = ", ".join(sorted(types - {device_type}))
        raise BadInput(detail=f"{path} was measured on {measured_on}, and the export is for {device_type}.")
    if environments:
        why = "its versions had different environment variables, which may have made the difference"
        raise BadInput(detail=f"{path} proves nothing here: {why}. Check without --base-env and --head-env.")
    return found


def _documents(text: str) -> Iterator[Any]:
    """JSON documents that follow each other. Raises `ValueError` where there is none."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while True:
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()
        if not rest:
            return


def _proof(check: Mapping[str, Any]) -> Proof:
    low, high = map(float, check["interval"] or (0.0, inf))
    return Proof(
        Configuration.parse(check["base_configuration"]),
        Configuration.parse(check["head_configuration"]),
        PairedResult(float(check["ratio"]), (low, high), int(check["rounds"]), Verdict(check["verdict"])),
    )

"""Two versions of the kernels of a campaign: own kernels at git revisions or of other files, and the pairs to compare."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath

from farm.campaign import Campaign, loads, texts_named
from farm.campaign.shape_files import BINARY_SUFFIX, reading_in
from farm.errors import BadInput, first_line
from farm.gemm import Problem
from farm.kernels import Configuration, Kernel
from farm.kernels.definition import Definition, known
from farm.kernels.own_code import Language
from farm.kernels.source import DEFINITION, SOURCE

MAX_PAIRS = 200
"""Each pair takes some seconds at least."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same problem in both versions."""

    base: Configuration
    head: Configuration

    @property
    def problem(self) -> Problem:
        return self.base.problem


def without_definition(kernel: Kernel) -> Kernel:
    """The kernel without the number of its definition, which changes with its source."""
    return replace(kernel, parameters=tuple(pair for pair in kernel.parameters if pair[0] != DEFINITION))


def campaign_with(path: Path, version: str | None, *, limit: int) -> Campaign:
    """A campaign whose own kernels are those of a version.

    Args:
        path: The campaign file.
        version: A git revision of the files that it names, the path of a file to take instead of the one that it names, or None
            for the present files.
        limit: Configurations that it may have before constraints.

    Raises:
        BadInput: It names no own kernel, or the version cannot be read.
        CampaignFileError: The campaign has mistakes with these kernels.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(detail=f"{path}: {first_line(error)}") from None
    texts = texts_named(text, path)
    kernels = [name for name in texts if _language_of(name) is not None]
    if version is not None:
        if not kernels:
            why = "it names no own kernel, and other kernels have no versions here. Compare libraries with --base-env and --head-env"
            raise BadInput(detail=f"{path}: {why}.")
        texts |= _texts_of(version, path, kernels)
    return loads(text, name=str(path), limit=limit, owner=None, files=texts)


def _language_of(name: str) -> Language | None:
    suffix = PurePath(name).suffix.removeprefix(".")
    return Language(suffix) if suffix in tuple(Language) else None


def _texts_of(version: str, path: Path, kernels: Sequence[str]) -> dict[str, str]:
    """The texts of the kernels' files in a version. Raises `BadInput`."""
    language = _language_of(version)
    if language is None:
        return {name: _at_revision(version, path.parent, name) for name in kernels}
    fitting = [name for name in kernels if _language_of(name) is language]
    if len(fitting) != 1:
        named = ", ".join(kernels)
        why = f"it names {len(fitting)} files of that kind ({named}); name one, or give git revisions"
        raise BadInput(detail=f"{version} cannot be taken for the own kernel of {path}: {why}.")
    try:
        return {fitting[0]: reading_in(Path.cwd())(version)}
    except ValueError as error:
        raise BadInput(detail=str(error)) from None


def _at_revision(revision: str, folder: Path, name: str) -> str:
    """The text of a file at a git revision; of a cubin in base64. Raises `BadInput`."""
    if not re.fullmatch(r"[^\s:(-][^\s:(]*", revision):
        raise BadInput(detail=f"{revision!r} is not a git revision. Write for example main or HEAD~1.")
    where = f"{name} at the git revision {revision}"
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "cat-file", "blob", f"{revision}:./{name}"],
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise BadInput(detail=f"{where} cannot be read: there is no git here. Name two files instead.") from None
    if done.returncode:
        why = first_line(Exception(done.stderr.decode(errors="replace"))).removeprefix("fatal: ").rstrip(".")
        raise BadInput(detail=f"{where} cannot be read: {why}. Fetch the revision, or name two files instead.")
    if name.endswith(BINARY_SUFFIX):
        return base64.b64encode(done.stdout).decode()
    try:
        return done.stdout.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(detail=f"{where} is not UTF-8") from None


def pairs_of(base: Campaign, head: Campaign) -> list[Pair]:
    """The configurations of both versions that differ in the source of their kernel alone.

    All configurations of a campaign are paired with themselves if both versions are the same campaign object. Otherwise those
    of other families than `source` are left out, and own kernels whose definition did not change.

    Raises:
        BadInput: The campaign searches or draws what it measures, it has more than `MAX_PAIRS`, or a version lacks kernels
            that the other one has.
    """
    if base is head:
        return [Pair(one, one) for one in _listed(base)]
    arms = [_by_place(_own(_listed(campaign))) for campaign in (base, head)]
    only = next((place for place in (*arms[0], *arms[1]) if not (place in arms[0] and place in arms[1])), None)
    if only is not None:
        which = "base" if only in arms[0] else "head"
        raise BadInput(
            detail=f"{base.where}: only the {which} has {only[1]} of {only[2]}, so there is nothing to compare"
        )
    pairs = [Pair(one, arms[1][place]) for place, one in arms[0].items()]
    return [pair for pair in pairs if pair.base != pair.head]


def _listed(campaign: Campaign) -> list[Configuration]:
    if campaign.search is not None or campaign.draws:
        why = "it searches, or draws its problems. A check measures every configuration; list problems and kernels, and remove search"
        raise BadInput(detail=f"{campaign.where}: {why}.")
    found = list(islice(campaign.expand(), MAX_PAIRS + 1))
    if len(found) > MAX_PAIRS:
        why = f"it has more than {MAX_PAIRS} configurations, which is the maximum of a check. List fewer problems or kernels"
        raise BadInput(detail=f"{campaign.where}: {why}.")
    return found


def _own(configurations: Iterable[Configuration]) -> Iterator[tuple[Configuration, Definition]]:
    for one in configurations:
        if one.kernel.family == SOURCE.name:
            definition = known(dict(one.kernel.parameters)[DEFINITION])
            assert definition is not None, "the campaign holds it"
            yield one, definition


_Place = tuple[Problem, Kernel, str, int]


def _by_place(own: Iterable[tuple[Configuration, Definition]]) -> Mapping[_Place, Configuration]:
    """Configurations by what is the same in both versions: problem, parameters, entry and its place among equal ones."""
    seen, found = Counter[tuple[Problem, Kernel, str]](), dict[_Place, Configuration]()
    for one, definition in own:
        key = (one.problem, without_definition(one.kernel), definition.entry)
        found[(*key, seen[key])] = one
        seen[key] += 1
    return found

"""Loading campaign files: from a path, or from their text and the files that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from farm.campaign.campaign import Campaign, Origin
from farm.campaign.constraints import parse_constraint
from farm.campaign.reading import Located, Location, entries_of, parse, read
from farm.campaign.shape_files import FileContext, ReadText, among, reading_in
from farm.campaign.targets import Target
from farm.campaign.trace_texts import GEMMS_SUFFIX
from farm.errors import CampaignFileError
from farm.language_models.configuration import is_file
from farm.operands import files_named


def load(path: Path, *, limit: int) -> Campaign:
    """Reads and checks a campaign file. Nothing is expanded before its size is known.

    Raises:
        CampaignFileError: Everything that is wrong with the file, one line each.
        CampaignTooLarge: It has more than `limit` configurations before constraints.
        TooManyCandidates: It draws kernels for problems of a domain from more than that.
    """
    return _loaded(read(path), path, limit=limit, owner=None, read_text=reading_in(path.parent))


def loads(
    text: str, *, name: str, limit: int, owner: str | None, files: Mapping[str, str] = MappingProxyType({})
) -> Campaign:
    """As `load`, of the text of a campaign file. No file is opened.

    Args:
        text: The campaign file.
        name: The name of the file in errors.
        limit: Configurations that it may have before constraints.
        owner: The owner, if the file names none.
        files: The texts of the files that it names, by name. See `texts_named`.

    Raises:
        CampaignFileError: As `load`.
        CampaignTooLarge: As `load`.
    """
    path = Path(name)
    return _loaded(parse(text, path), path, limit=limit, owner=owner, read_text=among(files))


def texts_named(text: str, path: Path) -> dict[str, str]:
    """The texts of the files that a campaign file names, by name, for `loads` on another machine.

    Of a tensor that fills a matrix, the text is its description: its path and SHA-256.

    Empty if the campaign file is not valid YAML, which `loads` reports.

    Args:
        text: The campaign file.
        path: Where it is. Names are relative to its folder.

    Raises:
        CampaignFileError: A file cannot be read.
    """
    try:
        file = parse(text, path)
    except CampaignFileError:
        return {}
    read_text, texts = reading_in(path.parent), dict[str, str]()
    for location, name in _named_files(file.data):
        try:
            texts[name.strip()] = read_text(name.strip())
        except ValueError as error:
            file.add(location, str(error))
    file.problems.raise_if_any()
    return texts


def _named_files(data: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """The files that the problems, operands and kernels of a campaign name, with the location of each name."""
    measure = data.get("measure")
    for at, name in files_named(measure.get("operands") if isinstance(measure, dict) else None):
        yield ("measure", "operands", *at), name
    for i, block in entries_of(data.get("problems")):
        trace = block.get("trace") if isinstance(block, dict) else None
        if isinstance(trace, str) and trace.strip():
            yield ("problems", *i, "trace"), trace.strip() + GEMMS_SUFFIX
        model = block.get("model") if isinstance(block, dict) else None
        if is_file(model):
            yield ("problems", *i, "model"), str(model).strip()
        for key in ("domain", "routing"):
            for j, source in entries_of(block.get(key) if isinstance(block, dict) else None):
                if isinstance(source, dict) and isinstance(source.get("file"), str) and source["file"].strip():
                    yield ("problems", *i, key, *j, "file"), source["file"]
    for i, block in entries_of(data.get("kernels")):
        if isinstance(block, dict) and isinstance(block.get("file"), str) and block["file"].strip():
            yield ("kernels", *i, "file"), block["file"]


def _loaded(file: Located, path: Path, *, limit: int, owner: str | None, read_text: ReadText) -> Campaign:
    campaign = Campaign.validated(file, owner=owner, context=FileContext(path, limit, read_text))
    _check_search_fits(campaign, file)
    readers = {"targets": Target.parse, "constraints": parse_constraint}
    lines = {
        str(reader(written)): file.line_of((key, *at))
        for key, reader in readers.items()
        for at, written in entries_of(file.data.get(key, []))
    }
    return campaign.read_from(Origin(path, lines))


def _check_search_fits(campaign: Campaign, file: Located) -> None:
    """Whether the search fits the kernels, and draws problems if, and only if, there is a domain."""
    search = campaign.search
    if search is not None:
        kernels, draws = campaign.kernel_count, campaign.draws
        for name, why in search.mistakes_in(kernels=kernels, families=campaign.families, draws=draws):
            file.add(("search", name), why)
    file.problems.raise_if_any()
    draws_problems = search is not None and any(search.drawn_problems().values())
    if campaign.draws and campaign.listed_blocks:
        file.add(
            ("problems",), "some blocks list their problems and some draw them from a domain; make them two campaigns"
        )
    elif campaign.draws and not draws_problems:
        where = ("search",) if "search" in file.data else ("problems",)
        example = "search: {strategy: random, problems: 500}"
        file.add(where, f"the problems are drawn from a domain: say how many, as in {example}")
    elif not campaign.draws and draws_problems:
        why = "the problems of this campaign are listed, not drawn from a domain; remove it"
        file.add(("search", "problems"), why)
    file.problems.raise_if_any()

"""From a campaign file or a stored document to a checked campaign in normal form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from farm.campaign.campaign import PRODUCT_KEYS, SIZE_LIMIT, Campaign, Origin, SizeLimit
from farm.campaign.constraints import parse_constraint
from farm.campaign.domain import READ_TEXT
from farm.campaign.messages import add_findings, missing_key
from farm.campaign.reading import FileProblems, Located, Location, parse, read
from farm.campaign.shape_files import ReadText, among, reading_in
from farm.campaign.strategies import STRATEGIES, Search, search_model
from farm.campaign.targets import Target
from farm.errors import CampaignFileError, CampaignTooLarge
from farm.expressions.tree import BadExpression
from farm.kernels import FAMILIES
from farm.measurement import TimingRules


def load(path: Path, *, limit: int) -> Campaign:
    """Reads and checks a campaign file. Nothing is expanded before its size is known.

    Raises:
        CampaignFileError: everything that is wrong with the file, one line each.
        CampaignTooLarge: it asks for more than `limit` configurations before constraints.
        TooManyCandidates: the kernels for problems of a domain are drawn from more than that.
    """
    return _loaded(read(path), path, limit=limit, owner=None, read_text=reading_in(path.parent))


def loads(
    text: str, *, name: str, limit: int, owner: str | None, files: Mapping[str, str] = MappingProxyType({})
) -> Campaign:
    """As `load`, of the text of a campaign file. No file is opened.

    Args:
        text: The campaign file.
        name: What errors call it.
        limit: Configurations that it may have before constraints.
        owner: Whose the campaign is where it names no owner.
        files: The texts of the files that it names, by name. See `texts_named`.

    Raises:
        CampaignFileError: As `load`.
        CampaignTooLarge: As `load`.
    """
    path = Path(name)
    return _loaded(parse(text, path), path, limit=limit, owner=owner, read_text=among(files))


def texts_named(text: str, path: Path) -> dict[str, str]:
    """The texts of the files that a campaign file names, by name, for `loads` on another machine.

    None where the campaign file is not valid YAML, which `loads` reports.

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
    """The files that the domains of a campaign name, and where it names them."""
    for i, block in _items(data.get("problems")):
        for j, source in _items(block.get("domain") if isinstance(block, dict) else None):
            if isinstance(source, dict) and isinstance(source.get("file"), str) and source["file"].strip():
                yield ("problems", *i, "domain", *j, "file"), source["file"]


def _items(written: object) -> Iterator[tuple[Location, object]]:
    """The items of a list, or the one that stands for it, and what they add to a location."""
    if isinstance(written, list):
        yield from (((i,), item) for i, item in enumerate(written))
    else:
        yield (), written


def _loaded(file: Located, path: Path, *, limit: int, owner: str | None, read_text: ReadText) -> Campaign:
    context = {SIZE_LIMIT: SizeLimit(path, limit), READ_TEXT: read_text}
    campaign = _validated(file, owner, context)
    _check_search_fits(campaign, file)
    _check_drawn(campaign, file)
    readers = {"targets": Target.parse, "constraints": parse_constraint}
    lines = {
        str(reader(written)): file.line_of((key, *at))
        for key, reader in readers.items()
        for at, written in _items(file.data.get(key, []))
    }
    return campaign.read_from(Origin(path, lines))


def from_document(document: Mapping[str, Any]) -> Campaign:
    """The campaign of a stored document. Raises `CampaignFileError` where this version cannot read it."""
    file = Located(dict(document), {}, FileProblems(f"campaign {document.get('name', 'without a name')}"))
    return _validated(file, None, {})


def _validated(file: Located, owner: str | None, context: dict[str, Any]) -> Campaign:
    """The campaign of a file. Raises `CampaignFileError` with everything that is wrong with it, and `CampaignTooLarge`."""
    data = {**({} if owner is None else {"owner": owner}), **file.data}
    _check_sample_limits(file)
    if "configurations" in data:
        for key in PRODUCT_KEYS & data.keys():
            del data[key]
            file.add((key,), f"configurations are all that such a campaign measures; remove {key}, or configurations")
    else:
        for key in sorted({"problems", "kernels"} - data.keys(), reverse=True):
            file.add((), f"{key}: {missing_key(Campaign, key)}")
        _check_constraints_apply(file)
        _check_search(file)
    try:
        campaign = Campaign.model_validate(data, context=context)
    except ValidationError as error:
        add_findings(error, file)
        raise file.problems.as_error() from None
    except CampaignTooLarge:
        file.problems.raise_if_any()
        raise
    file.problems.raise_if_any()
    return campaign


def _check_constraints_apply(file: Located) -> None:
    """A constraint on a parameter that no kernel here has would never apply: a mistake.

    Looks at the data as written, so that this is reported together with what validation finds.
    """
    blocks = [block for _, block in _items(file.data.get("kernels"))]
    families = [str(block.get("family")) for block in blocks if isinstance(block, dict)]
    if len(families) < len(blocks) or not FAMILIES.keys() >= set(families):
        return  # a kernel is not even named right: what it has is not known
    for at, written in _items(file.data.get("constraints")):
        try:
            constraint = parse_constraint(written)
        except BadExpression:
            continue
        if any(constraint.applies_to(family) for family in families):
            continue
        names, kernels = ", ".join(sorted(constraint.parameters)), ", ".join(dict.fromkeys(families))
        which = "that" if len(constraint.parameters) == 1 else "all of them"
        file.add(
            ("constraints", *at),
            f"it names {names}, and no kernel of this campaign ({kernels}) has {which}; remove it, or add the kernels it is for",
        )


def _check_sample_limits(file: Located) -> None:
    measure = file.data.get("measure")
    timing = measure.get("timing") if isinstance(measure, dict) else None
    if not isinstance(timing, dict):
        return
    least = timing.get("min_samples", TimingRules().min_samples)
    most = timing.get("max_samples", TimingRules().max_samples)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        name = "min_samples" if "min_samples" in timing else "max_samples"
        file.add(
            ("measure", "timing", name),
            f"min_samples is {least} and max_samples {most}; the least cannot be more than the most",
        )


def _check_search(file: Located) -> None:
    """Looks at the data as written, as what a strategy does not read is wrong even where it is the default."""
    search = file.data.get("search")
    if "search" in file.data and search is None:
        file.add(("search",), "it has no value; write for example {strategy: halving}, or remove the field")
    strategy = search_model(search)
    if not isinstance(search, dict) or strategy is Search:
        return
    draws = any(isinstance(block, dict) and "domain" in block for _, block in _items(file.data.get("problems")))
    if draws and not strategy.draws_domains:
        drawing = " or ".join(sorted(name for name, other in STRATEGIES.items() if other.draws_domains))
        why = f"{search['strategy']} does not draw problems from a domain; use {drawing}, or list the problems"
        _refuse(file, [("strategy", why)])
        return
    _refuse(file, strategy.mistakes_written(search))


def _refuse(file: Located, mistakes: Iterable[tuple[str, str]]) -> None:
    """Adds what is wrong with fields of the search."""
    for name, why in mistakes:
        file.add(("search", name), why)


def _check_search_fits(campaign: Campaign, file: Located) -> None:
    if campaign.search is not None:
        kernels, draws = campaign.kernel_count, campaign.draws
        _refuse(file, campaign.search.mistakes_in(kernels=kernels, families=campaign.families, draws=draws))
    file.problems.raise_if_any()


def _check_drawn(campaign: Campaign, file: Located) -> None:
    """A domain is drawn from, and only a domain is."""
    drawn = campaign.search is not None and any(campaign.search.drawn_problems().values())
    example = "search: {strategy: random, problems: 500}"
    if campaign.draws and campaign.listed_blocks:
        file.add(
            ("problems",), "some blocks list their problems and some draw them from a domain; make them two campaigns"
        )
    elif campaign.draws and not drawn:
        where = ("search",) if "search" in file.data else ("problems",)
        file.add(where, f"the problems are drawn from a domain: say how many, as in {example}")
    elif not campaign.draws and drawn:
        why = "the problems of this campaign are listed, not drawn from a domain; remove it"
        file.add(("search", "problems"), why)
    file.problems.raise_if_any()

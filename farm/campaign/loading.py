"""From a campaign file or a stored document to a checked campaign in normal form."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from farm.campaign.axes import Axis, AxisPart
from farm.campaign.blocks import KernelBlock, ProblemBlock, ShapeList, ShapeProduct, largest_factors
from farm.campaign.campaign import Campaign, in_order
from farm.campaign.constraints import parse_constraint
from farm.campaign.domain import Domain, Source, Weighted
from farm.campaign.drawing import DrawnBlock, with_whole_weights
from farm.campaign.messages import add_findings, field_path
from farm.campaign.reading import FileProblems, Located, Location, parse, read
from farm.campaign.schema import (
    READ_TEXT,
    AxesFields,
    CampaignFields,
    DrawnFields,
    KernelFields,
    ListFields,
    ProblemFields,
    ShapesFields,
    campaign_model,
)
from farm.campaign.shape_files import ReadText, among, reading_in
from farm.campaign.strategies import STRATEGIES, Search, search_model
from farm.campaign.targets import Target
from farm.errors import CampaignFileError, CampaignTooLarge, TooManyCandidates
from farm.expressions.tree import BadExpression
from farm.kernels import FAMILIES
from farm.measurement import TimingRules
from farm.system_account import login_name


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
            file.problems.add(file.line_of(location), f"{field_path(location)}: {error}")
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
    fields = _checked(file, read_text)
    _refuse_too_large(fields, path, limit)
    campaign = _built(fields, file, path, owner)
    _check_search_fits(campaign, file)
    _check_drawn(campaign, file)
    return campaign


def from_document(document: Mapping[str, Any]) -> Campaign:
    """The campaign of a stored document. Raises `CampaignFileError` where this version cannot read it."""
    file = Located(dict(document), {}, FileProblems(f"campaign {document.get('name', 'without a name')}"))
    return _built(_checked(file, among({})), file, None)


def _checked(file: Located, read_text: ReadText) -> CampaignFields | ListFields:
    model = campaign_model(file.data)
    _check_sample_limits(file)
    if model is CampaignFields:
        _check_constraints_apply(file)
        _check_search(file)
    try:
        fields = model.model_validate(file.data, context={READ_TEXT: read_text})
    except ValidationError as error:
        add_findings(error, file)
        raise file.problems.as_error() from None
    file.problems.raise_if_any()
    return fields


def _check_constraints_apply(file: Located) -> None:
    """A constraint on a parameter that no kernel here has would never apply: a mistake.

    Looks at the data as written, so that this is reported together with what validation finds.
    """
    blocks, constraints = file.data.get("kernels"), file.data.get("constraints")
    blocks = blocks if isinstance(blocks, list) else [blocks]
    families = [str(block.get("family")) for block in blocks if isinstance(block, dict)]
    if len(families) < len(blocks) or not FAMILIES.keys() >= set(families):
        return  # a kernel is not even named right: what it has is not known
    for i, written in enumerate(constraints if isinstance(constraints, list) else [constraints]):
        try:
            constraint = parse_constraint(written)
        except BadExpression:
            continue
        if any(constraint.applies_to(family) for family in families):
            continue
        names, kernels = ", ".join(sorted(constraint.parameters)), ", ".join(dict.fromkeys(families))
        which = "that" if len(constraint.parameters) == 1 else "all of them"
        location = file.written(("constraints", i))
        file.problems.add(
            file.line_of(location),
            f"{field_path(location)}: it names {names}, and no kernel of this campaign ({kernels}) has {which}; "
            "remove it, or add the kernels it is for",
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
        file.problems.add(
            file.line_of(("measure", "timing", name)),
            f"measure.timing.{name}: min_samples is {least} and max_samples {most}; the least cannot be more than the most",
        )


def _check_search(file: Located) -> None:
    """Looks at the data as written, as what a strategy does not read is wrong even where it is the default."""
    search = file.data.get("search")
    if "search" in file.data and search is None:
        file.problems.add(
            file.line_of(("search",)),
            "search: it has no value; write for example {strategy: halving}, or remove the field",
        )
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
        file.problems.add(file.line_of(("search", name)), f"search.{name}: {why}")


def _check_search_fits(campaign: Campaign, file: Located) -> None:
    if campaign.search is not None:
        kernels, draws = campaign.kernel_count, bool(campaign.drawn)
        _refuse(file, campaign.search.mistakes_in(kernels=kernels, families=campaign.families, draws=draws))
    file.problems.raise_if_any()


def _check_drawn(campaign: Campaign, file: Located) -> None:
    """A domain is drawn from, and only a domain is."""
    drawn = campaign.search is not None and any(campaign.search.drawn_problems().values())
    example = "search: {strategy: random, problems: 500}"
    if campaign.drawn and campaign.problems:
        why = "some blocks list their problems and some draw them from a domain; make them two campaigns"
        file.problems.add(file.line_of(("problems",)), f"problems: {why}")
    elif campaign.drawn and not drawn:
        where = ("search",) if "search" in file.data else ("problems",)
        why = f"the problems are drawn from a domain: say how many, as in {example}"
        file.problems.add(file.line_of(where), f"{where[0]}: {why}")
    elif not campaign.drawn and drawn:
        _refuse(file, [("problems", "the problems of this campaign are listed, not drawn from a domain; remove it")])
    file.problems.raise_if_any()


def _refuse_too_large(fields: CampaignFields | ListFields, path: Path, limit: int) -> None:
    """Multiplies the lengths of the axes as written, without expanding one."""
    if isinstance(fields, ListFields):
        count = len(fields.configurations)
        if count > limit:
            raise CampaignTooLarge(path=path, count=count, limit=limit, factors=f"configurations {count:,}")
        return
    kernels = [(b.family, {name: sum(p.count for p in parts) for name, parts in _axes(b)}) for b in fields.kernels]
    kernel_count = sum(math.prod(b.values()) for _, b in kernels)
    if _drawn_fields(fields) and fields.search is not None:
        drawn = fields.search.drawn_problems()
        candidates = sum(drawn.values()) * kernel_count
        if candidates > limit:
            counts = [f"{name} {count:,}" for name, count in drawn.items()]
            factors = ", ".join([*counts, f"kernels {kernel_count:,} ({largest_factors([], kernels)})"])
            raise TooManyCandidates(path=path, count=candidates, limit=limit, factors=factors)
    problems = [_lengths(block) for block in fields.problems if not isinstance(block, DrawnFields)]
    count = sum(math.prod(b.values()) for b in problems) * kernel_count
    if count > limit:
        raise CampaignTooLarge(path=path, count=count, limit=limit, factors=largest_factors(problems, kernels))


def _lengths(block: ProblemFields) -> dict[str, int]:
    if isinstance(block, AxesFields):
        lengths = {name: sum(p.count for p in parts) for name, parts in zip("mnk", _extents(block), strict=True)}
    else:
        assert isinstance(block, ShapesFields)
        lengths = {"shapes": sum(map(len, block.shapes))}
    return lengths | {
        "types": len(set(block.types)),
        "layouts": len(set(block.layouts)),
        "alpha": len(set(block.alpha)),
        "beta": len(set(block.beta)),
    }


def _extents(block: AxesFields) -> tuple[list[AxisPart], list[AxisPart], list[AxisPart]]:
    return block.m, block.n, block.k


def _axes(block: KernelFields) -> list[tuple[str, list[AxisPart]]]:
    return [(name, getattr(block, name)) for name in sorted(type(block).model_fields) if name != "family"]


def _built(fields: CampaignFields | ListFields, file: Located, path: Path | None, owner: str | None = None) -> Campaign:
    """Brings every list into its normal order without repetitions, so that notation leaves no trace."""
    targets = {
        str(t): Target(t.kind, t.value, file.line_of(file.written(("targets", i))))
        for i, t in enumerate(fields.targets)
    }
    common: dict[str, Any] = {
        "name": fields.name,
        "description": fields.description,
        "owner": fields.owner or owner or login_name() or "unknown",
        "priority": fields.priority,
        "repeat": fields.repeat,
        "targets": tuple(target for _, target in sorted(targets.items())),
        "rules": fields.measure,
        "path": path,
    }
    if isinstance(fields, ListFields):
        return Campaign(**common, listed=in_order(fields.configurations))
    constraints = {
        c.text: replace(c, line=file.line_of(file.written(("constraints", i))))
        for i, c in enumerate(fields.constraints)
    }
    listed = [block for block in fields.problems if not isinstance(block, DrawnFields)]
    problems = {_sort_key(block): block for block in map(_problem_block, listed)}
    drawn = {_sort_key(block): block for block in map(_drawn_block, _drawn_fields(fields))}
    kernels = {_sort_key(block): block for block in map(_kernel_block, fields.kernels)}
    return Campaign(
        **common,
        problems=tuple(block for _, block in sorted(problems.items())),
        drawn=tuple(sorted(with_whole_weights(list(drawn.values())), key=_sort_key)),
        kernels=tuple(block for _, block in sorted(kernels.items())),
        constraints=tuple(constraint for _, constraint in sorted(constraints.items())),
        search=None if fields.search is None else fields.search.in_normal_form(),
    )


def _drawn_fields(fields: CampaignFields) -> list[DrawnFields]:
    return [block for block in fields.problems if isinstance(block, DrawnFields)]


def _sort_key(block: ProblemBlock | DrawnBlock | KernelBlock) -> str:
    return json.dumps(block.to_document(), sort_keys=True)


def _problem_block(block: ProblemFields) -> ProblemBlock:
    shapes: ShapeList | ShapeProduct
    if isinstance(block, AxesFields):
        shapes = ShapeProduct(*map(Axis.of, _extents(block)))
    else:
        assert isinstance(block, ShapesFields)
        shapes = ShapeList(tuple(sorted({shape for entry in block.shapes for shape in entry})))
    return ProblemBlock(shapes=shapes, **_variants(block))


def _drawn_block(block: DrawnFields) -> DrawnBlock:
    weights: Counter[Source] = Counter()
    for sources in block.domain:
        weights.update(sources)
    in_order = sorted(weights.items(), key=lambda item: json.dumps(item[0].to_document(), sort_keys=True))
    return DrawnBlock(Domain(Weighted(dict(in_order))), **_variants(block), weight=block.weight)


def _variants(block: ProblemFields) -> dict[str, Any]:
    return {
        "types": tuple(sorted(set(block.types), key=str)),
        "layouts": tuple(sorted(set(block.layouts))),
        "alpha": tuple(sorted(set(block.alpha))),
        "beta": tuple(sorted(set(block.beta))),
    }


def _kernel_block(block: KernelFields) -> KernelBlock:
    return KernelBlock(block.family, tuple((name, Axis.of(parts)) for name, parts in _axes(block)))

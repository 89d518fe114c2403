"""Checks of the keys of a campaign file: mistakes that show only in several keys together, or with a default."""

from __future__ import annotations

from typing import Any

from farm.campaign.constraints import parse_constraint
from farm.campaign.messages import PRODUCT_KEYS
from farm.campaign.reading import Located, entries_of
from farm.campaign.strategies import STRATEGIES, Search, search_model
from farm.expressions.tree import BadExpression
from farm.kernels import FAMILIES
from farm.measurement import TimingRules


def check_written(file: Located) -> dict[str, Any]:
    """Notes mistakes in the file's problems. Returns what is to be validated: all keys but those that are refused here."""
    _check_sample_limits(file)
    if "configurations" not in file.data:
        _check_constraints_apply(file)
        _check_search(file)
        return file.data
    for key in PRODUCT_KEYS & file.data.keys():
        file.add((key,), f"configurations are all that such a campaign measures; remove {key}, or configurations")
    return {key: written for key, written in file.data.items() if key not in PRODUCT_KEYS}


def _check_constraints_apply(file: Located) -> None:
    """A constraint on a parameter that no kernel of the campaign has would never apply.

    This is checked in the data as written, so that it is reported together with the errors of the validation.
    """
    blocks = [block for _, block in entries_of(file.data.get("kernels"))]
    families = [str(block.get("family")) for block in blocks if isinstance(block, dict)]
    if len(families) < len(blocks) or not FAMILIES.keys() >= set(families):
        return  # the parameters of an unknown family are not known
    for at, written in entries_of(file.data.get("constraints")):
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
    min_samples = timing.get("min_samples", TimingRules().min_samples)
    max_samples = timing.get("max_samples", TimingRules().max_samples)
    if isinstance(min_samples, int) and isinstance(max_samples, int) and min_samples > max_samples:
        name = "min_samples" if "min_samples" in timing else "max_samples"
        file.add(
            ("measure", "timing", name),
            f"min_samples is {min_samples} and max_samples {max_samples}; the minimum cannot exceed the maximum",
        )


def _check_search(file: Located) -> None:
    """Checks the data as written, because a key that a strategy does not read is wrong even with its default value."""
    search = file.data.get("search")
    if "search" in file.data and search is None:
        file.add(("search",), "it has no value; write for example {strategy: halving}, or remove the field")
    strategy = search_model(search)
    if not isinstance(search, dict) or strategy is Search:
        return
    draws = any(isinstance(block, dict) and "domain" in block for _, block in entries_of(file.data.get("problems")))
    if draws and not strategy.draws_domains:
        drawing = " or ".join(sorted(name for name, other in STRATEGIES.items() if other.draws_domains))
        why = f"{search['strategy']} does not draw problems from a domain; use {drawing}, or list the problems"
        file.add(("search", "strategy"), why)
        return
    for name, why in strategy.mistakes_written(search):
        file.add(("search", name), why)

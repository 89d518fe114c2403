"""The sections of a report, each made from the data of a campaign (pure), registered here in the order of the page."""

from __future__ import annotations

from collections.abc import Callable

from farm.report.document import Section
from farm.report.report_data import CampaignData
from farm.report.sections.both_times import both_times
from farm.report.sections.comparisons import accuracy, comparison
from farm.report.sections.learning import curve
from farm.report.sections.measured import best, parameters, pareto, roofline, size, tiles
from farm.report.sections.operands import operands
from farm.report.sections.origins import provenance
from farm.report.sections.overview import about, findings

SECTIONS: list[Callable[[CampaignData], Section | None]] = [
    findings,
    about,
    curve,
    roofline,
    size,
    both_times,
    operands,
    parameters,
    pareto,
    best,
    tiles,
    comparison,
    accuracy,
    provenance,
]
"""A section that does not apply to a campaign is None."""

"""A round of the strategy learn is over: how good a model is on the test set, and what to measure next, if anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from farm.campaign import Campaign, Destination, Plan, PlannedJob, plan
from farm.campaign.strategies import Learn
from farm.campaign.strategies.draws import FamilyDraw
from farm.db import campaigns, learning
from farm.db.farm_key import farm_key
from farm.db.trainings import TrainingAttempt
from farm.forest.columns import GROUPED
from farm.formatting import scalars_text
from farm.gemm import Problem
from farm.groups import Groups
from farm.kernels import Configuration, problem_columns
from farm.measurement import ALL_FAMILIES
from farm.tracing import ActiveSpan, ids_of_campaign, tracing
from farm.tracing.span import PREFIX
from trainer.acquire import Candidate, choose, expected_error, fast_model, measuring_cost, probes, with_probes
from trainer.reading import read_test_table, read_training_table
from trainer.table import PROBLEM, configurations, of_one_protocol, with_parameter_columns
from trainer.test_set import Score, score

OVERDRAW = 8
"""Problems that are drawn from the domain for each one that is chosen."""

GROWTH = 1.5
"""Times as many rows as before: errors fall with about the cube root of the rows, so by an eighth. The mean of a test set of a few
hundred rows moves by some percent from one round to the next."""

GAIN = 0.02
"""Share by which the mean error must fall while the rows grow by `GROWTH`, or a campaign ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of the learning curve, and what follows from it."""

    device_seconds: float
    # Configurations that the model learned from.
    rows: int
    # By kernel family, and `all`.
    test: dict[str, Score]
    # Why no further round is measured; None: there is one.
    stop: str | None
    # Problems of the next round, and how many of them were drawn at random.
    problems: int = 0
    random_problems: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def decide(engine: Engine, started: TrainingAttempt) -> str | None:
    """Decides on the round of a training, and writes down what was decided.

    Returns:
        What was decided, for the log; None if another trainer had decided.
    """
    with tracing().span("decide round") as span:
        return _decide(engine, started, span)


def _name_campaign(span: ActiveSpan | None, engine: Engine, campaign_id: int) -> None:
    """Adds the campaign and a link to its trace to the span of a round."""
    if span is not None and (farm := farm_key(engine)) is not None:
        span.attributes[f"{PREFIX}campaign.id"] = campaign_id
        span.links.append(ids_of_campaign(farm, campaign_id))


def _decide(engine: Engine, started: TrainingAttempt, span: ActiveSpan | None) -> str | None:
    assert started.lane_id is not None
    with engine.connect() as connection:
        round_ = learning.read_round(connection, started.lane_id)
        if round_ is None:
            return None
        _name_campaign(span, engine, round_.campaign_id)
        campaign = Campaign.from_document(round_.document)
        known = campaigns.known_devices(connection)
        curve = [each for each in learning.curve(connection, round_.campaign_id) if each["pool"] == round_.pool.name]
    protocol, of_campaign = str(campaign.measure.protocol), round_.campaign_id
    table, _ = of_one_protocol(read_training_table(engine, started.device_type, of_campaign=of_campaign), protocol)
    test, _ = of_one_protocol(read_test_table(engine, started.device_type, of_campaign=of_campaign), protocol)
    search = campaign.search
    assert isinstance(search, Learn)
    model = fast_model(started.device_type, table) if len(table) else None
    scores = {} if model is None or test.empty else score(model, configurations(test))
    rows = 0 if model is None else len(configurations(table))
    stop = why_stop(search, scores, round_.device_seconds, rows, curve)
    planned = plan(campaign, known, allow_missing=True)
    destination = planned.destinations.get(round_.pool.name)
    jobs: list[PlannedJob] = []
    at_random = 0
    if stop is None and isinstance(destination, Destination):
        jobs, at_random = next_round(planned, destination, table, model, round_.number + 1)
        if not jobs:
            stop = f"the domain has no further problem that can be measured{missed_target(search, scores)}"
    problems = len({job.configuration.problem for job in jobs})
    point = Point(
        device_seconds=round_.device_seconds,
        rows=rows,
        test=scores,
        stop=stop,
        problems=problems,
        random_problems=at_random,
    )
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
        later = expected_later(search, round_.device_seconds, measured=len(table) + len(test), coming=len(jobs))
        decided = learning.decide(connection, started, round_, jobs, outcome=point.to_json(), later=later)
    if decided is None:
        return None
    error = f", {scores[ALL_FAMILIES].mean_error_pct:.1f}% off on the test set" if scores else ""
    return f"round {round_.number}{error}: " + (f"it ends, as {stop}" if stop else f"{decided:,} jobs follow")


def why_stop(
    search: Learn, scores: Mapping[str, Score], device_seconds: float, rows: int, curve: list[dict[str, Any]]
) -> str | None:
    """Why a campaign ends here; None if it continues.

    Args:
        rows: configurations that the model of these scores learned from.
        curve: the earlier points, oldest first, as `Point.to_json` gives them.
    """
    if search.target and scores:
        missed = [
            name for name, pct in search.target.items() if name not in scores or scores[name].mean_error_pct > pct
        ]
        if not missed:
            return "the target is reached"
    if device_seconds >= search.budget_seconds:
        return f"the budget of {search.budget_seconds:g} device seconds is used{missed_target(search, scores)}"
    tested = [point for point in curve if point.get("test")]
    earlier = [point for point in tested if GROWTH * point["rows"] <= rows]
    if scores and earlier:
        then, *since = [point["test"][ALL_FAMILIES]["mean_error_pct"] for point in tested[len(earlier) - 1 :]]
        if min([*since, scores[ALL_FAMILIES].mean_error_pct]) > (1 - GAIN) * then:
            without_gain = f"the error fell by less than {GAIN:.0%} since {earlier[-1]['rows']:,} rows"
            return without_gain + missed_target(search, scores)
    return None


def missed_target(search: Learn, scores: Mapping[str, Score]) -> str:
    """What was reached of the target of a campaign that ends for another reason; empty where it has no target."""
    if not search.target:
        return ""
    reached = ", ".join(
        f"{name} {scores[name].mean_error_pct:.1f}% (target {pct:g}%)"
        if name in scores
        else f"{name} without a test row that the model knows"
        for name, pct in search.target.items()
    )
    return f" before the target was reached: {reached}"


def expected_later(search: Learn, device_seconds: float, *, measured: int, coming: int) -> int:
    """How many jobs may follow the next round, from what the budget leaves and what rows have cost."""
    if not coming or device_seconds <= 0:
        return 0
    left = max(0.0, search.budget_seconds - device_seconds) / device_seconds * measured
    return max(0, round(left) - coming)


def next_round(
    planned: Plan, destination: Destination, table: pd.DataFrame, model: Any, number: int
) -> tuple[list[PlannedJob], int]:
    """The jobs of round `number`, and how many of its problems were drawn at random."""
    search = planned.campaign.search
    assert isinstance(search, Learn)
    assert search.problems is not None
    assert search.kernels is not None
    measured = set(zip(*(table[name] for name in PROBLEM), strict=True))
    wanted, test = search.problems, {_without_sizes(problem) for problem in planned.test_set}
    options: dict[Problem, dict[Configuration, PlannedJob]] = {}
    for problem in islice(search.round_problems(planned.domain(), number), OVERDRAW * wanted):
        columns = problem_columns(problem)
        if _without_sizes(problem) in test or tuple(columns[name] for name in PROBLEM) in measured:
            continue
        jobs = (destination.job(configuration) for configuration in planned.campaign.kernels_for(problem))
        valid = {job.configuration: job for job in jobs if job is not None and job.invalid_reason is None}
        if valid:
            options[problem] = valid
    problems = list(options)
    at_random = len(problems) if model is None else round(search.random_share * wanted)
    found: list[PlannedJob] = []
    drawn = problems[: min(at_random, wanted)]
    for problem in drawn:
        draw = FamilyDraw(search.kernels, search.seed)
        for configuration in options[problem]:
            draw.add(configuration)
        found += [options[problem][configuration] for configuration in draw.drawn()]
    rest = problems[len(drawn) :]
    if model is not None and rest:
        every = [configuration for problem in rest for configuration in options[problem]]
        frame = _frame(every)
        # One column for each parameter of all rows would take more memory than the table itself.
        probed, tiled = with_parameter_columns(probes(table)), with_parameter_columns(table, ["tile"])
        chosen = choose(
            _candidates(rest, options),
            with_probes(expected_error(model, frame), probed, frame),
            measuring_cost(tiled, frame),
            problems=wanted - len(drawn),
            kernels=search.kernels,
            taken=_candidates(drawn, options),
            rng=np.random.default_rng([search.seed, number]),
        )
        found += [options[every[row].problem][every[row]] for row in chosen]
    return found, len(drawn)


def _without_sizes(problem: Problem) -> tuple[Problem, bool]:
    """The problem less its groups, and whether it has any: test sets are kept apart by these."""
    return replace(problem, groups=None), problem.groups is not None


def _candidates(
    problems: list[Problem], options: Mapping[Problem, Mapping[Configuration, PlannedJob]]
) -> list[Candidate]:
    found, start = [], 0
    for problem in problems:
        rows = range(start, start + len(options[problem]))
        named = {"scale": problem.scale, "fused": problem.fused, "sparsity": problem.sparsity}
        s, added = problem.shape, scalars_text(1, 0, **named)
        groups = problem.groups or Groups((s.m,))
        kind = f"{problem.types} {problem.layout}{added}{'' if problem.groups is None else f' {GROUPED}'}"
        found.append(Candidate(kind, (s.m, s.n, s.k, problem.batch, groups.active, groups.largest), rows))
        start = rows.stop
    return found


def _frame(every: list[Configuration]) -> pd.DataFrame:
    """Raw columns of configurations, with one column for each kernel parameter."""
    return with_parameter_columns(pd.DataFrame.from_records([one.columns() for one in every]))

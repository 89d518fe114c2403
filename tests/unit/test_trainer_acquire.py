"""Choosing what to measure next: what promises most per second, without near-duplicates, and the same for one seed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from support.training_tables import DEVICE_TYPE, tiled_table
from trainer.acquire import PROBES, Candidate, choose, expected_error, fast_model, measuring_cost, probes, with_probes
from trainer.table import with_parameter_columns


def candidates(count: int, kernels: int = 4) -> list[Candidate]:
    """Problems whose m doubles from one to the next, each with so many rows."""
    return [Candidate("f32 nn", (2**i, 64, 64), range(kernels * i, kernels * (i + 1))) for i in range(count)]


def picked(error: np.ndarray, cost: np.ndarray, *, problems: int = 5, kernels: int = 2, seed: int = 0) -> list[int]:
    every = candidates(len(error) // 4)
    rng = np.random.default_rng(seed)
    return choose(every, error, cost, problems=problems, kernels=kernels, taken=[], rng=rng)


def test_so_many_problems_and_kernels_are_chosen_and_the_same_for_the_same_seed() -> None:
    error, cost = np.ones(80), np.ones(80)
    found = picked(error, cost)
    assert len(found) == len(set(found)) == 10
    assert len({row // 4 for row in found}) == 5
    assert found == picked(error, cost)
    assert found != picked(error, cost, seed=1)


def test_what_a_model_is_unsure_of_and_what_costs_little_is_preferred() -> None:
    unsure, dear = np.ones(80), np.ones(80)
    unsure[:20] = 10.0
    dear[40:] = 100.0
    often = [{row // 4 for row in picked(unsure, np.ones(80), seed=seed)} for seed in range(20)]
    assert np.mean([len(each & set(range(5))) for each in often]) > 4
    cheap = [{row // 4 for row in picked(np.ones(80), dear, seed=seed)} for seed in range(20)]
    assert np.mean([len(each & set(range(10, 20))) for each in cheap]) < 0.5


def test_near_duplicates_of_chosen_and_of_taken_problems_are_left_out() -> None:
    near = [Candidate("f32 nn", (1000 + i, 64, 64), [i]) for i in range(10)]
    other_type = Candidate("f16 nn", (1000, 64, 64), [10])
    far = Candidate("f32 nn", (2000, 64, 64), [11])
    rng = np.random.default_rng(0)
    ones = np.ones(12)
    found = choose([*near, other_type, far], ones, ones, problems=12, kernels=1, taken=[], rng=rng)
    assert len(found) == 3
    assert {10, 11} < set(found)
    assert choose(near, ones, ones, problems=3, kernels=1, taken=near[:1], rng=rng) == []


def test_a_model_expects_most_error_where_nothing_was_measured() -> None:
    table = tiled_table()
    small = table[table["m"] <= table["m"].median()]
    frame = with_parameter_columns(table.assign(family="tiled"))
    error = expected_error(fast_model(DEVICE_TYPE, small), frame)
    assert (error > 0).all()
    unknown = expected_error(fast_model(DEVICE_TYPE, small), frame.assign(ab="f64", cd="f64", acc="f64"))
    assert (unknown >= error.max() * 0.99).all()


def test_kernels_with_few_rows_of_a_type_are_probed() -> None:
    wide = with_parameter_columns(tiled_table())
    error = np.linspace(0.1, 1.0, len(wide))
    kernel = wide["tile"] == wide["tile"].iloc[0]
    few = pd.concat([wide[~kernel], wide[kernel][: PROBES - 1]])
    assert (with_probes(error, few, wide)[kernel] == 1.0).all()
    assert (with_probes(error, few, wide)[~kernel] == error[~kernel]).all()
    enough = pd.concat([wide[~kernel], wide[kernel][:PROBES]])
    assert (with_probes(error, enough, wide) == error).all()
    assert (with_probes(error, wide, wide.assign(ab="f16")) == 1.0).all()


def test_a_few_rows_of_each_kernel_decide_about_probes_as_all_rows_do() -> None:
    draw, whole = np.random.default_rng(0), pd.concat([tiled_table()] * 3, ignore_index=True)
    names = {"scale": ["none", "tensor"], "groups": ["none", "16,48", "32,32"], "ab": ["f32", "f16", "bf16"]}
    kernels = [json.dumps(each) for each in whole["parameters"]]
    whole = whole.assign(parameters=kernels, **{of: draw.choice(values, len(whole)) for of, values in names.items()})
    candidates, error = with_parameter_columns(whole), np.linspace(0.1, 1.0, len(whole))
    for rows in (10, 40, 100, len(whole)):
        measured = whole.sample(rows, random_state=rows)
        few = probes(measured)
        assert len(few) <= PROBES * 3 * 2 * 3 * 2  # tiles, groups or none, types, scale factors
        found = with_probes(error, with_parameter_columns(few), candidates)
        assert (found == with_probes(error, with_parameter_columns(measured), candidates)).all()
    assert len(few) < len(whole)


def test_costs_follow_those_of_measured_rows() -> None:
    table = tiled_table()
    wide = with_parameter_columns(table)
    cost = pd.Series(np.where(wide["m"] > wide["m"].median(), 1.0, 0.1), wide.index)
    found = measuring_cost(wide.assign(cost_s=cost), wide)
    assert np.corrcoef(np.log(found), np.log(cost))[0, 1] > 0.9

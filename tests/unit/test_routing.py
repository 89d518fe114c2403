"""How tokens choose experts: the rows of each expert by rule and seed, and routings that were recorded."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.groups import Groups
from farm.routing import Routing, parse_routings

RULES = ["balanced", "uniform", "zipf 0.3", "zipf 1.2", "zipf 10"]


def rows(rule: str, *, experts: int = 128, top_k: int = 8, tokens: int = 512, seed: int = 0) -> tuple[int, ...]:
    return Routing.parse(rule).groups(experts=experts, top_k=top_k, tokens=tokens, seed=seed).sizes


@given(st.sampled_from(RULES), st.integers(1, 64), st.data(), st.integers(1, 40), st.integers(0, 9))
def test_each_token_chooses_different_experts(
    rule: str, experts: int, data: st.DataObject, tokens: int, seed: int
) -> None:
    top_k = data.draw(st.integers(1, experts))
    found = rows(rule, experts=experts, top_k=top_k, tokens=tokens, seed=seed)
    assert len(found) == experts
    assert sum(found) == tokens * top_k
    assert max(found) <= tokens


def test_a_balanced_routing_is_as_even_as_possible() -> None:
    assert rows("balanced", experts=8, top_k=3, tokens=5) == (2,) * 7 + (1,)
    assert rows("balanced", experts=8, top_k=1, tokens=3) == (1, 1, 1, 0, 0, 0, 0, 0)


def test_uniform_tokens_choose_each_expert_about_as_often() -> None:
    found = rows("uniform", tokens=4096)
    assert 180 < min(found) < 256 < max(found) < 340


def test_tokens_choose_experts_by_their_probability() -> None:
    first = rows("zipf 2", experts=4, top_k=1, tokens=20_000)
    total = sum(Fraction(1, rank**2) for rank in range(1, 5))
    assert [count / 20_000 for count in first] == pytest.approx([1 / (r**2 * total) for r in range(1, 5)], abs=0.01)
    # The second expert of a token is drawn from those that it has not.
    both = rows("zipf 2", experts=2, top_k=2, tokens=100)
    assert both == (100, 100)
    three = rows("zipf 1", experts=3, top_k=2, tokens=20_000)
    p = [Fraction(6, 11), Fraction(3, 11), Fraction(2, 11)]
    expected = [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(3) if j != i) for i in range(3)]
    assert [count / 20_000 for count in three] == pytest.approx(list(map(float, expected)), abs=0.01)


def test_the_rows_are_the_same_on_every_machine_and_others_with_another_seed() -> None:
    lines = "\n".join(str(Groups.of(rows(rule, seed=seed))) for rule in RULES for seed in (0, 1, 2**32 - 1))
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == "dbd56b141e061332"
    assert len({rows(rule, seed=seed) for rule in ("uniform", "zipf 1.2") for seed in range(5)}) == 10


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("even", "'even' is no routing; write balanced, uniform, or zipf with its exponent as in zipf 1.2"),
        ("zipf", "'zipf' is no routing"),
        ("zipf -1", "'zipf -1' is no routing"),
        ("zipf 0", "the exponent 0 is not above 0 and up to 10; uniform is without one"),
        ("zipf 10.5", "the exponent 10.5 is not above 0"),
    ],
)
def test_a_rule_that_cannot_be_is_named(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing.parse(written)


def test_spellings_of_an_exponent_are_one_routing() -> None:
    assert {str(Routing.parse(text)) for text in ("zipf 1.20", "zipf  1.2", " zipf 1.2 ")} == {"zipf 1.2"}


def test_a_file_has_a_routing_in_each_line() -> None:
    assert parse_routings("3,0, 5\n\n1,1,1*1\n", "r.csv") == (Groups((3, 0, 5)), Groups((1, 1, 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.csv has no routings"),
        ("1,2\n\n1,x\n", r"r\.csv:3: The groups 1,x do not work: 'x' is not a number of rows"),
        ("1,2\n1,2,3\n", r"r\.csv:2: it has 3 experts, and the first line has 2"),
        ("1,2\n0,0\n", r"r\.csv:2: no expert has rows"),
        ("none\n", r"r\.csv:1: no expert has rows"),
    ],
)
def test_a_line_that_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_routings(text, "r.csv")

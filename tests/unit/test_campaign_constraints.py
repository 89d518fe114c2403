"""Constraints are expressions and nothing more: they cannot run code, and they cannot hang."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.campaign import Campaign
from farm.campaign.constraints import PROBLEM_NAMES, parse_constraint
from farm.errors import CampaignFileError
from farm.expressions.python import compile_all
from farm.expressions.tree import BadExpression

NAMES = (*PROBLEM_NAMES, "family", "tile")
VALUES = (
    512,
    1024,
    2048,
    1.0,
    0.0,
    8,
    2**31,
    2**24,
    128.0,
    8,
    7,
    "nn",
    "f16",
    "f16",
    "f32",
    "row",
    "bias+gelu",
    "2:4",
    "tiled",
    16,
)


def holds(text: str) -> bool:
    return compile_all([parse_constraint(text)], NAMES)(*VALUES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m * n * k <= 2**33", True),
        ("m > n or k > n", True),
        ("not (m > n or k > n)", False),
        ("512 <= m < 1024", True),
        ("m % 128 == 0 and n // 3 == 341", True),
        ("-m + 512 == 0", True),
        ("m / 2 ** 8 == 2", True),
        ("m in (128, 256)", False),
        ("layout in ('nn', 'tn') and ab != cd", False),
        ("acc == 'f32'", True),
        ("family == 'blas'", False),
        ("max(m, n, k) / min(m, n, k) <= 4", True),
        ("abs(m - n) == 512", True),
        ("intensity >= 100 and flops > bytes", True),
        ("(m > 5) == (n > 5)", True),
        ("tile <= m", True),
        ("batch > 1 and m * n * batch == 2**22", True),
        ("scale == 'none' or fused in ('bias', 'bias+gelu')", True),
        ("scale != 'row'", False),
        ("sparsity == '2:4'", True),
        ("groups == 8 and active_groups < groups", True),
        ("m < 99999999999999999999999", True),
        ("'lau' not in family and 'til' in family", True),
        ("m > 5\nand n > 5", True),
        ("(m > 5  # large enough\n and n > 5)", True),
    ],
)
def test_an_expression_means_what_it_says(text, expected):
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("__import__('os').system('true')", "not allowed here"),
        ("m.__class__ == m", "at character 1, m.__class__ is not allowed here"),
        ("(lambda: 1)() == 1", "the functions are min, max and abs"),
        ("[x for x in (1, 2)] == m", "is not allowed here"),
        ("m[0] == 1", "is not allowed here"),
        ("f'{m}' == 'x'", "is not allowed here"),
        ("(m := 3) == 3", "is not allowed here"),
        ("m if n else k", "is not allowed here"),
        ("m << 40 > 1", "the operators are + - * / // % **"),
        ("m & n == 1", "the operators are + - * / // % **"),
        ("m is n", "write =="),
        ("m == True", "True is not allowed here"),
        ("m == 1j", "1j is not allowed here"),
        ("m in (1, 'a')", "they never compare"),
        ("layout == 3", "they never compare"),
        ("layout < 'nt'", "orders words"),
        ("layout == 'nx'", "layout is never 'nx'; it is one of nn, nt, tn, tt"),
        ("family == 'cublas'", "family is never 'cublas'"),
        ("layout == nn", "nn stands without quotes; write 'nn'"),
        ("tiel > 3", "there is no name tiel; did you mean tile?"),
        ("types == 'f32'", "the types of A and B are ab"),
        ("m", "m is a number where a comparison is needed; compare it, as in m % 128 == 0"),
        ("m > 1 and n", "at character 11, n is a number where a comparison is needed"),
        ("'a' * 9 == 'b'", "is a word where a number is needed"),
        ("m = 512", "write == to compare"),
        ("m > 5 && n > 5", "write and, or, not"),
        ("m >", "is not an expression"),
        ("", "is not an expression"),
        ("m in n", "write in (128, 256)"),
        ("max(m) > 1", "max takes two numbers or more"),
        ("max(m, *(1, 2)) > 1", "not allowed here"),
        ("9**9**9 > m", "9**387420489 is too large"),
        ("(" * 150 + "m" + ")" * 150 + " > 1" + " " * 1000, "longer than 1000 characters"),
        ("(" * 300 + "m" + ")" * 300 + " > 1", "m"),
        ("(n == 1) == (" * 30 + "m == 1" + ") == (k == 1)" * 30, "nested too deeply"),
        ("m > 1e400", "inf is not allowed here"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_a_reason(text, problem):
    with pytest.raises(BadExpression) as raised:
        parse_constraint(text)
    assert problem in str(raised.value)


def test_what_is_not_text_is_no_expression():
    for written in (3, None, ["m > 1"], {"m": 1}):
        with pytest.raises(BadExpression, match="a constraint is an expression"):
            parse_constraint(written)


@pytest.mark.parametrize("text", ["m ** m ** m > 1", "((m ** 60) ** 60) ** 60 > 1", "2 ** flops > 1"])
def test_a_power_that_would_never_end_stops_at_once(text):
    with pytest.raises(ArithmeticError):
        holds(text)


@given(st.text(alphabet="mnk tile()[]{}<>=!+-*/%&|~^.,:'\"\\0123456789andornotif_lambda\n", max_size=60))
@example("'\\d' == layout")
@example("1if m else 2")
@example("m\x00 > 1")
def test_no_text_makes_the_checker_itself_fail(text):
    try:
        constraint = parse_constraint(text)
    except BadExpression:
        return
    others = sorted(constraint.parameters - {"tile"})
    with contextlib.suppress(ArithmeticError):
        assert compile_all([constraint], (*NAMES, *others))(*VALUES, *[1] * len(others)) in (True, False)


def test_a_constraint_that_cannot_be_computed_names_its_line_and_the_values(tmp_path):
    campaign = Campaign.from_document(
        {
            "name": "x",
            "owner": "anna",
            "problems": {"m": [512], "n": [256, 512], "k": 1, "types": "f32"},
            "kernels": {"family": "tiled"},
            "constraints": ["m > 1", "m / (n - 512) < 3"],
        }
    )
    configurations = campaign.expand()
    next(configurations)
    with pytest.raises(
        CampaignFileError, match=r"'m / \(n - 512\) < 3' cannot be computed with m=512, n=512: division"
    ):
        next(configurations)


def test_a_condition_before_it_guards_a_division():
    campaign = Campaign.from_document(
        {
            "name": "x",
            "owner": "anna",
            "problems": {"m": [512], "n": [256, 512], "k": 1, "types": "f32"},
            "kernels": {"family": "tiled"},
            "constraints": ["n != 512 and m / (n - 512) < 3"],
        }
    )
    assert [c.problem.shape.n for c in campaign.expand()] == [256]

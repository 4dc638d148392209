import math

import pytest
from hypothesis import given, strategies as st

from advisor.model.formula import parse_formula


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("effective_learning_rate * (1 - momentum)", {"effective_learning_rate": 1.0, "momentum": 0.9}, 0.1),
        ("-a + 2 ** b / 4", {"a": 1, "b": 3}, 1.0),
        ("optimizer.lr / (1 - {optimizer/beta-1})", {"optimizer.lr": 0.5, "optimizer/beta-1": 0.5}, 1.0),
        ("1e-3", {}, 1e-3),
        ("batch * flag", {"batch": 8, "flag": True}, 8),
        ("a * 2", {"a": "0.5"}, 1.0),
        # the micro sign, which Python would replace by the Greek letter
        ("\u00b5 * a.\u00b5", {"\u00b5": 2, "a.\u00b5": 0.5}, 1.0),
    ],
)
def test_formulas_are_arithmetic(text, values, expected):
    assert parse_formula(text).names == set(values)
    assert parse_formula(text).value(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 / a", {"a": 0}),
        ("a ** 0.5", {"a": -1}),
        ("a ** 99999", {"a": 10.0}),
        ("a", {}),
        ("a", {"a": "word"}),
        ("a", {"a": math.nan}),
        ("a * 1e308", {"a": 1e308}),
    ],
)
def test_without_a_finite_number_there_is_no_value(text, values):
    assert parse_formula(text).value(values) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "lr *", "lr; rm", "__import__('os')", "lr.__class__()", "[1]", "lr if a else b", "'word'", "True", "lr // 2"),
        *("lr % 2", "a < b", "lambda: 1", "a := 1", "f'{a}'", "1j", "(" * 250, "a" * 301, "{}", "{a", "\x00"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"arithmetic|numbers, names|at most 300"):
        parse_formula(text)


def test_a_name_that_python_keeps_for_itself_goes_into_braces():
    with pytest.raises(ValueError, match=r"if lambda is a hyperparameter, write \{lambda\}$"):
        parse_formula("lambda * 2")
    assert parse_formula("{lambda} * 2").value({"lambda": 1.5}) == 3


def test_a_formula_is_parsed_once_however_many_trials_it_is_computed_for():
    assert parse_formula("lr * (1 - momentum)") is parse_formula("lr * (1 - momentum)")


@given(st.text(max_size=60))
def test_no_text_does_anything_but_compute_or_be_refused(text):
    try:
        formula = parse_formula(text)
    except ValueError:
        return
    value = formula.value(dict.fromkeys(formula.names, 2.0))
    assert value is None or math.isfinite(value)

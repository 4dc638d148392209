"""Words and numbers, Markdown and terminal: names from a store stay names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings, strategies as st

from advisor.model.words import (
    align_columns,
    clean,
    confidence,
    count,
    first_few,
    listed,
    lower_first_letter,
    number,
    sentence,
    setting,
    share,
    shorten,
    spelled,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.19194, "0.1919"),
        (12800, "12,800"),
        (3.1623e-4, "3.16e-4"),
        (0, "0"),
        (1.5e9, "1.5e9"),
        (-0.5, "-0.5000"),
        (None, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_numbers_that_are_not_finite() -> None:
    assert [number(float(v)) for v in ("nan", "inf", "-inf")] == ["–", "∞", "-∞"]


@settings(deadline=None)
@given(st.floats(-1e300, 1e300))
def test_a_number_reads_back_to_three_digits(value: float) -> None:
    back = float(number(value).replace(",", ""))
    assert back == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (0.1, "0.1"), (512, "512"), ("adamw", "adamw"), ("", "“”"), (None, "–"), (1e-8, "1e-8")]
)
def test_settings(value: object, text: str) -> None:
    assert setting(value) == text  # type: ignore[arg-type]


def test_shares_are_never_rounded_to_none_or_all() -> None:
    assert [share(v) for v in (0, 0.001, 0.5, 0.999, 1)] == ["0 %", "under 1 %", "50 %", "over 99 %", "100 %"]


@pytest.mark.parametrize(
    "name", ["lr=1e-05", "lr:1e-05,wd:1e-04", "run 1e-05/seed-1", "1e-05_a", "-1e-05-b", "“1e-05”", "1e-05,adam", "a|-0%"]
)
def test_numbers_that_are_part_of_a_name_stay_as_they_are(name: str) -> None:
    said = f"Trial {name} diverged, as did {name}; see {name}."
    assert sentence(said) == said


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert align_columns([("run", "age"), ("a longer name", "3 s"), ("b", "")]) == [
        "run            age",
        "a longer name  3 s",
        "b",
    ]


def test_small_words() -> None:
    assert count(1, "trial") == "1 trial"
    assert count(1200, "trial") == "1,200 trials"
    assert spelled(3, "problem") == "three problems"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d"]) == "a, b and 2 more"
    assert (first_few(["a", "b"], 2), first_few(["a", "b", "c"], 2)) == ("a, b", "a, b and 1 more")
    assert [confidence(v)[0] for v in (0.95, 0.8, 0.2)] == ["high", "medium", "low"]


@settings(deadline=None)
@given(st.text(st.characters()))
def test_clean_text_is_one_line_without_controls(text: str) -> None:
    cleaned = clean(text)
    assert not [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned


@settings(deadline=None)
@given(st.text(max_size=100), st.integers(5, 40))
def test_a_short_form_keeps_both_ends(text: str, length: int) -> None:
    short = shorten(text, length)
    assert len(short) <= length
    text = clean(text)
    assert short == text or (text.startswith(short.split("…")[0]) and "…" in short)


@pytest.mark.parametrize(
    ("text", "lower"), [("No trial", "no trial"), ("A trial", "a trial"), ("DPO trains", "DPO trains"), ("", "")]
)
def test_a_word_in_capitals_keeps_them(text: str, lower: str) -> None:
    assert lower_first_letter(text) == lower

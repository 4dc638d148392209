"""Words and numbers, Markdown and terminal: names from a store stay names."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from advisor.model.spec_yaml import share
from advisor.model.words import (
    clean,
    confidence,
    count,
    listed,
    number,
    sentence,
    setting,
    shorten,
    spelled,
)
from advisor.report import Report
from advisor.report.formats import markdown
from advisor.report.formats.markdown import md
from advisor.report.formats.terminal import print_report
from tests.templates.hostile import CORPUS, hostile_report


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
    ("value", "text"),
    [(True, "true"), (0.1, "0.1"), (512, "512"), ("adamw", "adamw"), ("", "“”"), (None, "–"), (1e-8, "1e-8")],
)
def test_settings(value: object, text: str) -> None:
    assert setting(value) == text  # type: ignore[arg-type]


def test_shares_are_never_rounded_to_none_or_all() -> None:
    assert [share(v) for v in (0, 0.001, 0.5, 0.999, 1)] == ["0%", "under 1%", "50%", "over 99%", "100%"]


@pytest.mark.parametrize(
    "name",
    ["lr=1e-05", "lr:1e-05,wd:1e-04", "run 1e-05/seed-1", "1e-05_a", "-1e-05-b", "“1e-05”", "1e-05,adam", "a|-0%"],
)
def test_numbers_that_are_part_of_a_name_stay_as_they_are(name: str) -> None:
    said = f"Trial {name} diverged, as did {name}; see {name}."
    assert sentence(said) == said


def test_small_words() -> None:
    assert count(1, "trial") == "1 trial"
    assert count(1200, "trial") == "1,200 trials"
    assert spelled(3, "problem") == "three problems"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d"]) == "a, b and 2 more"
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
    assert short == text or (text.startswith(short.split("…")[0]) and "…" in short)


# --- Markdown -------------------------------------------------------------------------------------------------------------------


def test_markdown_says_what_the_page_says(report: Report) -> None:
    text = report.to_markdown()
    assert text.startswith("## Fix two problems before running more trials")
    for finding in report.findings:
        assert md(finding.message) in text
        assert md(finding.action) in text
    assert "- weight_decay: 1e-6 … 0.1, log\n+ weight_decay: 1e-8 … 0.01, log" in text
    assert "- `input-bound`: no trial logged how long it waits for data." in text


def test_a_comment_shows_a_screen_and_folds_the_rest_away(report: Report) -> None:
    shown, _, folded = report.to_markdown().partition("<details>")
    assert len(shown.splitlines()) < 40
    for head in report.heads:
        assert f"{md(sentence(head.message))} → {md(sentence(head.action))}" in shown
    assert "2 checks passed, 1 could not run, 1 broke" in shown
    assert folded.count("</details>") == 1
    assert folded.rstrip().endswith("</details>")


def test_a_comment_is_never_too_long_for_a_code_host(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report.to_markdown()
    room = len(whole) * 2 // 3
    monkeypatch.setattr(markdown, "MOST_CHARACTERS", room)
    text = report.to_markdown()
    assert room / 3 < len(text) < room + 200
    assert "The rest is in `report.html`." in text
    assert text.partition("<details>")[0] == whole.partition("<details>")[0]
    assert text.rstrip().endswith("</details>")


@pytest.mark.parametrize("name", CORPUS)
def test_no_name_is_markup_in_markdown(name: str) -> None:
    text = md(name)
    assert "\n" not in text
    # Every character that could start markup stands behind a backslash.
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>`*_\[\]|#]", text)
    assert not re.search(r"https?://|@\w", text)


def test_a_hostile_study_has_no_tag_in_its_markdown() -> None:
    text = hostile_report().to_markdown()
    outside = re.sub(r"^(`{3,})diff\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"`[^`\n]*`", "", outside.replace("\\`", ""))
    own = ("<details>", "<summary>", "</summary>", "</details>")
    assert sorted(re.findall(r"(?<!\\)<[^>]*>?", outside)) == sorted(own)


@pytest.mark.parametrize(("text", "safe"), [("- x", "\\- x"), ("1. x", "1\\. x"), ("0.5 x", "0.5 x"), ("a_b", "a\\_b")])
def test_lists_are_not_begun_by_accident(text: str, safe: str) -> None:
    assert md(text) == safe


# --- terminal -------------------------------------------------------------------------------------------------------------------


def printed(report: Report, *, terminal: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_report(report, Console(file=file, force_terminal=terminal, width=80))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_terminal_says_the_main_points(report: Report) -> None:
    text = printed(report)
    assert text.startswith("Fix two problems before running more trials")
    for finding in report.findings:
        assert finding.message in text
        assert finding.action in text
    assert "2 checks passed, 1 could not run, 1 broke (my-own-rule)." in text
    assert "next/1-make-training-stable.yaml" in text


def test_a_pipe_gets_plain_text(report: Report) -> None:
    assert "\x1b" not in printed(report)
    assert "\x1b[" in printed(report, terminal=True)


def test_a_terminal_without_unicode_gets_ascii(report: Report) -> None:
    assert "[!!] Fix first" in printed(report, encoding="ascii")


@pytest.mark.parametrize("terminal", [False, True])
def test_no_name_controls_the_terminal(terminal: bool) -> None:
    text = printed(hostile_report(), terminal=terminal)
    own = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not [c for c in own if unicodedata.category(c) == "Cc" and c != "\n"]
    if not terminal:
        assert "\x1b" not in text
        assert "[bold red]markup[/bold red]" in text
        assert ":smile:" in text

"""The output of `advisor history`."""

from __future__ import annotations

from advisor.report.formats.history import render_markdown_history, render_plain_history
from tests.templates.test_rounds import EVIL, hostile_history


def test_a_terminal_gets_a_table_and_the_predictions() -> None:
    history = hostile_history()
    lines = list(render_plain_history([history], history.hit_rates, 1))
    assert lines[1].split() == ["round", "study", "trials", "best", "best", "so", "far"]
    assert any(line.startswith("    came true: the best ") for line in lines)
    assert lines[-1] == "  curve-saturated: 1 of 2 came true (50 %, predicted 90 %); 1 undecided"
    assert "\u202e" not in "".join(lines)


def test_no_name_is_markup_in_markdown() -> None:
    history = hostile_history()
    text = "\n".join(render_markdown_history([history], history.hit_rates, 1))
    assert "| round | study | trials | best | best so far |" in text
    assert EVIL not in text
    assert "<img" not in text.replace("\\<img", "")


def test_an_empty_store_says_how_to_start() -> None:
    assert list(render_plain_history([], [], 0)) == [
        "No study of this store continues another study. Run a study from next/ with `advisor run`, then analyze it."
    ]

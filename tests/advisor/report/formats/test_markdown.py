"""The report as Markdown."""

from __future__ import annotations

import re

import pytest

from advisor.model.words import sentence
from advisor.report import Report
from advisor.report.formats import markdown
from advisor.report.formats.markdown import escape_markdown
from tests.templates.hostile import CORPUS, hostile_report


def test_markdown_has_the_contents_of_the_page(report: Report) -> None:
    text = report.to_markdown()
    assert text.startswith(f"## {escape_markdown(report.next[0].goal)}.\n\n{escape_markdown(report.findings[0].message)}.\n")
    assert f"`advisor run advisor-report/next/{report.next_studies[0].file} -- python train.py --" in text
    for finding in report.findings:
        assert escape_markdown(finding.message) in text
        assert escape_markdown(finding.action) in text
    assert "- weight_decay: 1e-6 … 0.1, log\n+ weight_decay: 1e-8 … 0.01, log" in text
    assert "- `input-bound`: no trial logged how long it waits for data." in text
    assert text.count("Log the duration of each step and the time it waits for data: then 1 check can run.") == 2
    assert "```python\nfrom advisor_pytorch import TuningLogger\n" in text


def test_a_comment_shows_one_screen_and_folds_the_rest(report: Report) -> None:
    shown, _, folded = report.to_markdown().partition("<details>")
    assert len(shown.splitlines()) < 40
    for head in report.heads:
        assert f"{escape_markdown(sentence(str(head.message)))} → {escape_markdown(sentence(str(head.action)))}" in shown
    assert "2 checks passed, 1 could not run, 1 broke" in shown
    assert folded.count("</details>") == 1
    assert folded.rstrip().endswith("</details>")


def test_a_comment_is_never_too_long_for_a_code_host(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report.to_markdown()
    room = len(whole) * 2 // 3
    monkeypatch.setattr(markdown, "MAX_CHARACTERS", room)
    text = report.to_markdown()
    assert room / 3 < len(text) < room + 200
    assert "The full report is in `report.html`." in text
    assert text.partition("<details>")[0] == whole.partition("<details>")[0]
    assert text.rstrip().endswith("</details>")


@pytest.mark.parametrize("name", CORPUS)
def test_no_name_is_markup_in_markdown(name: str) -> None:
    text = escape_markdown(name)
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
def test_text_never_starts_a_list(text: str, safe: str) -> None:
    assert escape_markdown(text) == safe

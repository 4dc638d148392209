"""The page's section on the rounds, with hostile names, as text and in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.history.model import History, Outcome, Round, hit_rates
from advisor.model.prediction import BestReaches, Prediction
from advisor.model.spec import Objective
from advisor.report import Report

pytestmark = pytest.mark.xdist_group("pages")  # they share reports and the browser
EVIL = "</script><img src=x onerror=hacked=1>\u202e"


def outcome(judged: str) -> Outcome:
    made = Prediction(rule="curve-saturated", expects=BestReaches(value=0.3, expected=0.25, than=0.35), probability=0.9)
    return Outcome(prediction=made, judged=judged, predicted=f"the best {EVIL} is 0.3", observed=f"{EVIL} is 0.28")


def hostile_history() -> History:
    rounds = tuple(
        Round(
            study=f"{EVIL}-{i}",
            number=i,
            goal=EVIL,
            trials=12,
            feasible=11,
            best=0.5 / i,
            incumbent=0.5 / i,
            changed=(f"{EVIL}: 1 to 2",) if i > 1 else (),
            why=(EVIL,),
            outcomes=tuple(outcome(j) for j in ("kept", "not kept", "cannot tell")) if i > 1 else (),
            counted=3 * (i == 1),
        )
        for i in (1, 2)
    )
    return History(
        objective=Objective(metric="val/loss", direction="minimize"),
        rounds=rounds,
        said=(f"3 trials of {EVIL} count.",),
        hit_rates=hit_rates(o for r in rounds for o in r.outcomes),
        stop="Stop.",
    )


@pytest.fixture(scope="module")
def with_rounds(report: Report) -> Report:
    return report.model_copy(update={"history": hostile_history()})


def test_the_page_judges_each_prediction(with_rounds: Report) -> None:
    page = with_rounds.to_html()
    for text in ("undecided", "did not", "curve-saturated: 1 of 2 came true (50 %, predicted 90 %); 1 undecided"):
        assert text in page
    assert page == with_rounds.to_html()
    assert "onerror=hacked" not in page.replace("&lt;img src=x onerror=hacked", "")


def test_a_study_without_earlier_rounds_has_no_such_section(report: Report) -> None:
    assert 'id="rounds"' not in report.to_html()


def test_markdown_has_two_lines_on_the_rounds(with_rounds: Report) -> None:
    text = with_rounds.to_markdown()
    assert "Round 2: 12 trials, and 3 from earlier rounds in this search space" in text
    assert "1 of 2 came true" in text
    assert "<img" not in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [602, 1200])
def test_the_section_fits_the_page_and_runs_nothing(
    open_page: Callable[..., tuple[Any, list[str]]], tmp_path: Path, with_rounds: Report, width: int
) -> None:
    (tmp_path / "page.html").write_text(with_rounds.to_html(), encoding="utf-8")
    page, trouble = open_page(tmp_path / "page.html", viewport={"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    assert page.locator("#rounds svg[role=img]").count() == 1
    assert trouble == []

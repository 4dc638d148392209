"""The verdict's sentence is true of every study."""

from __future__ import annotations

import pytest

from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Objective, StudySpec
from advisor.model.study import Status
from advisor.report.text.headline import best_sentence, certainty, headline, key_figures
from tests.advisor.report.studies import make_report, make_study


def finding(severity: str, goal: str, subject: str | None = None) -> Verdict:
    made = Finding.model_validate(
        {
            "rule": f"r-{severity}-{goal}-{subject}",
            "goal": goal,
            "severity": severity,
            "confidence": 0.8,
            "subject": subject,
            "message": "m",
            "action": "a",
            "playbook": "p",
        }
    )
    return Verdict(rule=made.rule, status="fired", findings=(made,))


QUIET = Verdict(rule="q", status="quiet")
UNKNOWN = Verdict(rule="u", status="not-assessed", reason="no data")


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([], "This study has no trials yet."),
        (["running"], "No trial has ended yet, so there is nothing to judge."),
        (["no_data"], "The one trial has not logged a value of the objective."),
        (["no_data"] * 3, "None of the 3 trials logged a value of the objective."),
        (["infeasible"] * 3, "No trial gave a result to judge."),
        (["complete"], "One trial has a result: too few to judge a search by."),
    ],
)
def test_without_findings_by_what_the_trials_gave(statuses: list[Status], said: str) -> None:
    study = make_study(len(statuses), statuses=dict(enumerate(statuses)), dense=False)
    assert headline(make_report(study, ())) == said


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], "Nothing was checked."),
        ([UNKNOWN], "Nothing could be checked with what this study logged."),
        ([QUIET], "No problem was found by the one check that could run."),
        ([QUIET, QUIET, UNKNOWN], "No problem was found by the two checks that could run; 1 could not."),
        (
            [finding("note", "steps")],
            "No problem was found by the one check that could run, and one remark is worth a look: the length of training.",
        ),
        (
            [finding("warning", "steps")],
            "Nothing has to be fixed first, and one finding is worth acting on: the length of training.",
        ),
        ([finding("critical", "boundary", "lr")], "Fix one problem before running more trials: the range of lr."),
        (
            [
                finding("critical", "boundary", "lr"),
                finding("critical", "boundary", "wd"),
                finding("critical", "stability"),
            ],
            "Fix three problems before running more trials: unstable training and the ranges of lr and wd.",
        ),
    ],
)
def test_with_results_by_what_was_found(verdicts: list[Verdict], said: str) -> None:
    assert headline(make_report(make_study(12, dense=False), verdicts)) == said


def test_failures_are_counted() -> None:
    study = make_study(4, dense=False, statuses={0: "infeasible", 1: "complete", 2: "complete", 3: "running"})
    assert best_sentence(make_report(study, ())).endswith(
        "1 of 4 trials ended without a usable result, one trial is still running."
    )
    every = make_study(4, dense=False, statuses=dict.fromkeys(range(4), "diverged"))
    assert "All 4 trials failed." in best_sentence(make_report(every, ()))


def test_how_sure_it_is_says_where_luck_is_unknown() -> None:
    assert "how much of that is luck is not known" in certainty(make_report(make_study(9, dense=False), ()))
    repeated = make_study(9, dense=False, repeats=3, statuses={0: "complete"})
    report = make_report(repeated, ())
    assert "4 trials in 1 setting" in certainty(report)
    close = report.model_copy(update={"spread": report.spread.model_copy(update={"deviation": 1e6})})
    assert "may be luck" in certainty(close)
    assert "may be luck" not in certainty(
        report.model_copy(update={"spread": report.spread.model_copy(update={"deviation": 1e-12})})
    )


def test_nothing_varied_and_nothing_known_still_gives_five_figures() -> None:
    spec = StudySpec(study="s", objective=Objective(metric="loss", direction="minimize"))
    for trials in (0, 1, 3):
        assert len(key_figures(make_report(make_study(trials, spec=spec, dense=False), ()))) == 5

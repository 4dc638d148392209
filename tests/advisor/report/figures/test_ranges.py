"""The ranges of the next study as bars."""

from __future__ import annotations

import pytest
from planning_studies import found

from advisor.model.change import SetRange
from advisor.report import Report
from advisor.report.figures.ranges import range_comparison
from tests.advisor.report.studies import make_report, of_one_optimizer


@pytest.fixture(scope="module")
def report() -> Report:
    cut = SetRange(parameter="weight_decay", low=1e-6, high=1e-3, scale="log", why="w")
    return make_report(of_one_optimizer(12, dense=False), [found("r", "sampling", cut, subject="weight_decay")])


def test_the_hyperparameter_of_the_goal_comes_first_and_unchanged_ones_last(report: Report) -> None:
    drawn = range_comparison(report)
    assert drawn is not None
    assert drawn.rows[0].name == "weight_decay"
    same = ["unchanged" in row.change_text for row in drawn.rows]
    assert same == sorted(same)
    assert ("unchanged" in [key.label for key in drawn.legend]) == any(same)


def test_the_best_trial_has_a_mark_of_its_own_and_the_legend_counts_the_others(report: Report) -> None:
    drawn = range_comparison(report)
    assert drawn is not None
    assert [key.label for key in drawn.legend][-2:] == ["best trial", "four next best trials"]
    assert all(row.svg.count('class="tick best"') == 1 for row in drawn.rows)
    one = report.model_copy(update={"figures": report.figures.model_copy(update={"trials": (report.ranked[0][1],)})})
    vars(one).pop("ranked", None)
    few = range_comparison(one)
    assert few is not None
    assert few.legend[-1].label == "best trial"

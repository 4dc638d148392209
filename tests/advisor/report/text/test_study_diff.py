"""Differences between two studies, line by line."""

import pytest

from advisor.model.change import Forbid
from advisor.model.spec import Bounds, Objective, Parameter, Region, StudySpec
from advisor.report.text.study_diff import are_parameters_alike, diff_of_changes, diff_studies

SPEC = StudySpec(
    study="s",
    objective=Objective(metric="loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.01, high=1, scale="log"), "width": Parameter(low=16, high=512)},
)
CORNER = Region(where={"lr": Bounds(low=0.1), "width": Bounds(low=200)}, why="8 of 9 failed there")


def test_a_forbidden_corner_is_a_line():
    (row,) = diff_of_changes(SPEC, [Forbid(region=CORNER)])
    assert (row.name, row.before, row.after, row.why) == ("forbidden", None, "lr ≥ 0.1 and width ≥ 200", "8 of 9 failed there")


def test_a_corner_that_is_allowed_again_is_a_line():
    (row,) = diff_studies(Forbid(region=CORNER).apply(SPEC), SPEC)
    assert (row.before, row.after) == ("lr ≥ 0.1 and width ≥ 200", None)


@pytest.mark.parametrize(("low", "same"), [(1.01e-4, True), (1.5e-4, False)])
def test_the_rounding_of_the_end_of_a_range_is_no_change(low: float, same: bool) -> None:
    old, new = (Parameter(low=end, high=0.1, scale="log") for end in (1e-4, low))
    assert are_parameters_alike(old, new) is same

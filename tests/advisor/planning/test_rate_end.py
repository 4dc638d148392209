"""A learning rate whose best trials lie at an end of its range is searched beyond it, before regularisers are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planning_studies import found
from studies import make_study

from advisor.model.change import AddParameter, SetRange
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan, rate_end

LR = Parameter(low=1e-4, high=1e-1, scale="log")
DECAY = Parameter(low=1e-6, high=1e-2, scale="log")
DROPOUT = AddParameter(name="dropout", parameter=Parameter(role="scientific", choices=(0.0, 0.1, 0.3), why="Trials overfit"))


def study(best: list[float], others: list[float], **more: Any) -> Study:
    """Trials at these positions of the learning rate's range, the best ones first; equal positions are one setting."""
    rng = np.random.default_rng(0)
    places = [*best, *others]
    decays = {u: DECAY.value_at_position(float(rng.random())) for u in dict.fromkeys(places)}
    params = [{"lr": LR.value_at_position(u), "weight_decay": decays[u]} for u in places]
    costs = [[2.0, 1.0 + 0.01 * i] for i in range(len(places))]
    return make_study(params, {"val/loss": costs}, space={"lr": LR, "weight_decay": DECAY}, **more)


LOW, HIGH = [0.2, 0.1, 0.05, 0.9, 0.3], [0.8, 0.9, 0.95, 0.1, 0.7]
REST = [0.5, 0.4, 0.6, 0.45, 0.55, 0.35, 0.65]


@pytest.mark.parametrize(("best", "expected"), [(LOW, (3.3e-5, 0.1)), (HIGH, (1e-4, 0.3))])
def test_it_comes_before_a_comparison_of_regularisers(best: list[float], expected: Any) -> None:
    first, second = plan(study(best, REST), [found("overfit", "regularisation", DROPOUT)]).specs
    assert first.goal.startswith("Widen lr: ")
    assert (first.parameters["lr"].low, first.parameters["lr"].high) == pytest.approx(expected)
    assert "dropout" not in first.parameters
    assert "dropout" in second.searched
    assert second.parameters["lr"].domain == first.parameters["lr"].domain


def test_a_note_on_regularisation_leads_to_no_study() -> None:
    made = plan(study(LOW, REST), [found("overfit", "regularisation", DROPOUT, severity="note")])
    assert all("dropout" not in spec.parameters for spec in made.specs)
    assert [(d.rule, d.reason) for d in made.deferred] == [("overfit", "the problem does not make the best results worse")]


def test_a_range_that_is_cut_at_one_end_is_moved_at_the_other() -> None:
    cut = SetRange(parameter="lr", low=1e-3, high=0.1, scale="log", why="the good trials lie there")
    (spec,) = plan(study(HIGH, REST), [found("wide", "sampling", cut, subject="lr")]).specs
    assert spec.goal == "Search higher lr: 0.001 to 0.3"


@pytest.mark.parametrize(
    "made",
    [
        study([0.5, 0.1, 0.05, 0.2, 0.3], REST),  # the best trial lies inside
        study([0.2, 0.1, 0.8, 0.9, 0.3], REST),  # too few of the best lie at one end
        study(LOW, REST[:4]),  # too few trials
        study(HIGH, [*REST, 0.99], status=["complete"] * 12 + ["diverged"]),  # rates beyond the best one fail
        study(LOW, [*REST, 0.15, 0.12, 0.02, 0.01]),  # results get worse towards the end
        study([0.2] * 5, [*REST, 0.42, 0.58]),  # repeats of one setting
        study(HIGH, [*REST, 1.2]),  # a trial lies beyond the range already
        study([0.2, 0.19, 0.18, 0.05, 0.08], REST),  # the outermost of the best are the worst of them
    ],
)
def test_the_range_stays_if_nothing_or_too_little_speaks_for_its_end(made: Study) -> None:
    assert rate_end.wider_rate_range(made, made.spec) is None


def test_an_end_that_a_finding_set_stays() -> None:
    made = study(LOW, REST)
    assert rate_end.wider_rate_range(made, made.spec) is not None
    set_by_finding = made.spec.with_parameter("lr", LR.model_copy(update={"low": 2e-4}))
    assert rate_end.wider_rate_range(made, set_by_finding) is None


@pytest.mark.parametrize(("outermost", "moved"), [(0.95, False), (0.8, True)])
def test_without_other_hyperparameters_one_worse_setting_further_out_shows_the_optimum(outermost: float, moved: bool) -> None:
    places = [0.9, 0.85, 0.75, 0.7, 0.2, outermost, *REST[:5]]
    costs = [[2.0, 1.0 + 0.01 * i] for i in range(len(places))]
    made = make_study([{"lr": LR.value_at_position(u)} for u in places], {"val/loss": costs}, space={"lr": LR})
    assert (rate_end.wider_rate_range(made, made.spec) is not None) == moved

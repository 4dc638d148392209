"""The state of a question: fine, wrong, or impossible to tell."""

from __future__ import annotations

import numpy as np
import pytest
from planning_studies import QUIET, RULES, bowl, found
from studies import make_study

from advisor.model.finding import Verdict
from advisor.planning.states import assess_evidence, question_state, trials_needed


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (QUIET[0], "fine"),
        (Verdict(rule="r", status="not-assessed"), "cannot be told"),
        (Verdict(rule="r", status="broken"), "cannot be told"),
        (found("r", "boundary", confidence=0.9), "wrong"),
        (found("r", "boundary", confidence=0.4), "cannot be told"),
    ],
)
def test_a_check_that_could_not_run_is_not_satisfied(verdict: Verdict, state: str) -> None:
    assert question_state(verdict) == state


def test_a_clear_effect_in_a_settled_space_with_known_noise_is_fine() -> None:
    assert assess_evidence(bowl(), QUIET, RULES).state == "fine"
    assert assess_evidence(bowl(8), QUIET, RULES).variation == "cannot be told"
    assert assess_evidence(bowl(centre=1.0), QUIET, RULES).space == "cannot be told"
    assert assess_evidence(bowl(), QUIET[:1], RULES).space == "cannot be told"
    assert assess_evidence(bowl(), [*QUIET, found("stability-mid", "stability")], RULES).state == "wrong"


def test_noise_shows_no_effect() -> None:
    rng = np.random.default_rng(0)
    params = [{"lr": 10.0 ** rng.uniform(-4, -1)} for _ in range(30)]
    noise = make_study(params, {"val/loss": [[1.0, 0.4 + 0.01 * rng.normal()] for _ in params]})
    assert assess_evidence(noise, QUIET, RULES).effect == "cannot be told"


def test_more_hyperparameters_and_no_known_effect_need_more_trials() -> None:
    assert [trials_needed("fine", searched) for searched in (2, 6)] == [12, 56]
    assert trials_needed("cannot be told", 2) == 27

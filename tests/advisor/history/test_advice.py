"""What following the advice of each rule has gained so far."""

import pytest
from history_studies import round_of

from advisor.history.advice import gains_by_rule, summarise_gains
from advisor.model.prediction import Prediction, Settled

FOLLOWED = (Prediction(rule="space-boundary", subject="learning_rate", expects=Settled(was="x")),)


def test_records_count_advice_that_was_followed_often_enough() -> None:
    found = summarise_gains([("a", 0.02), ("a", -0.1), ("a", 0.04), ("b", 0.5), ("c", 0.0), ("c", -1.0), ("c", -1.0)])
    assert [(r.rule, r.followed, r.gained) for r in found] == [("a", 3, 2), ("c", 3, 0)]
    assert found[0].median_gain == pytest.approx(0.03)
    assert found[1].median_gain is None


def test_a_gain_is_relative_to_the_best_of_all_earlier_rounds() -> None:
    rounds = [
        round_of([1e-3, 2e-3], [0.5, 0.4]),
        round_of([1e-3, 2e-3], [0.6, 0.45], predictions=FOLLOWED),
        round_of([1e-3, 2e-3], [0.3, 0.5], predictions=FOLLOWED),
    ]
    assert gains_by_rule(rounds) == [("space-boundary", pytest.approx(-0.125)), ("space-boundary", pytest.approx(0.25))]

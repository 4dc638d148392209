from __future__ import annotations

import numpy as np
import pytest
from history_studies import round_of

from advisor.engine.registry import load_rules
from advisor.history.model import Outcome, hit_rates
from advisor.history.pool import add_earlier_trials
from advisor.history.rounds import build_history
from advisor.model.prediction import BestReaches, Prediction

RATES = (1e-3, 3e-3, 5e-3, 9e-3)
PREDICTED = (Prediction(rule="curve-saturated", expects=BestReaches(value=0.25, than=0.3), probability=0.9),)


def lineage(*bests, **last):
    """A round for each best cost, the first setting of each repeated with a second seed that differs by 0.01."""
    made = []
    for i, best in enumerate(bests):
        costs = [best + 0.3, best + 0.2, best, best + 0.01]
        rates = [*RATES[:2], RATES[2], RATES[2]]
        fields = {"study": f"s{i + 1}", "round": i + 1, "parent": f"s{i}" if i else None}
        made.append(round_of(rates, costs, seeds=[0, 1, 2, 3], **fields, **(last if i == len(bests) - 1 else {})))
    return made


def test_rounds_have_their_best_and_the_best_so_far():
    found = build_history(lineage(0.3, 0.2, 0.25, predictions=PREDICTED), load_rules())
    assert [r.number for r in found.rounds] == [1, 2, 3]
    assert [r.best for r in found.rounds] == pytest.approx([0.3, 0.2, 0.25])
    assert [r.incumbent for r in found.rounds] == pytest.approx([0.3, 0.2, 0.2])
    assert [o.judged for o in found.outcomes] == ["kept"]
    assert found.hit_rates[0].rate == 1.0


def test_what_changed_and_why():
    first = round_of(RATES, (0.5, 0.4, 0.3, 0.2), study="a")
    wider = round_of(RATES, (0.5, 0.4, 0.3, 0.2), study="b", parent="a", round=2, high=0.1, max_train_steps=2000)
    (_, second) = build_history([first, wider], []).rounds
    assert second.changed == (
        "learning_rate: searched 0.0001 to 0.1 (log), was searched 0.0001 to 0.01 (log)",
        "max_train_steps: 2,000, was 1,000",
    )


def test_counted_trials_are_listed_by_round():
    first, second = lineage(0.3, 0.2)
    found = build_history([first, second], [], pooled=add_earlier_trials(second, [first]))
    assert [r.counted for r in found.rounds] == [4, 0]
    assert found.counted == 4


def test_tuning_stops_after_rounds_without_a_gain_beyond_seeds():
    assert build_history(lineage(0.3, 0.2, 0.199, 0.198), []).stop is not None
    assert "Stop tuning" in build_history(lineage(0.3, 0.2, 0.21, 0.2), []).stop
    assert build_history(lineage(0.3, 0.2, 0.15, 0.1), []).stop is None
    assert build_history(lineage(0.3, 0.3), []).stop is None


def test_tuning_goes_on_with_open_findings_or_unknown_variance():
    rounds = lineage(0.3, 0.2, 0.199, 0.198)
    assert build_history(rounds, [], open_findings=True).stop is None
    unknown = [round_of(RATES, np.array((0.5, 0.4, 0.3, b)), study=f"s{b}", round=i) for i, b in enumerate((0.2, 0.2, 0.2), 1)]
    assert build_history(unknown, []).stop is None


def test_hit_rates_count_only_what_could_be_judged():
    def outcome(rule, judged, p=None):
        made = Prediction(rule=rule, expects=BestReaches(value=0.1, than=0.2), probability=p)
        return Outcome(prediction=made, judged=judged, predicted="", observed="")

    found = hit_rates(
        [
            outcome("b", "kept", 0.9),
            outcome("b", "not kept", 0.8),
            outcome("b", "cannot tell", 0.1),
            outcome("a", "cannot tell"),
        ]
    )
    assert [(r.rule, r.kept, r.not_kept, r.cannot_tell, r.rate, r.stated) for r in found] == [
        ("a", 0, 0, 1, None, None),
        ("b", 1, 1, 1, 0.5, 0.85),
    ]

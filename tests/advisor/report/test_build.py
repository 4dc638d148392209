"""What a report contains of a study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.model.study import CurveBlock, Study, Trial
from tests.advisor.report.studies import default_spec, make_report, make_study


def test_a_lone_surrogate_in_a_name_is_replaced() -> None:
    spec = default_spec()
    trial = Trial(0, "id\ud800", "name\udfff", "complete", {"learning_rate": 0.1, "optimizer": "sg\ud812d"})
    block = CurveBlock(np.array([1, 2]), np.array([0.5, 0.4]), np.full(2, np.nan), np.array([0, 2]))
    made = make_report(Study(spec, (trial,), {"validation/error": block}), ())
    for text in (made.to_json(), made.to_html(), made.to_markdown()):
        text.encode("utf-8")
    assert made.best is not None
    assert made.best.name == "name\ufffd"


def test_other_data_have_another_hash() -> None:
    one, same, other = (make_report(make_study(4, seed=seed), ()).provenance.data for seed in (0, 0, 1))
    assert one == same != other


def test_the_objective_keeps_its_direction() -> None:
    made = make_report(make_study(30, maximize=True), ())
    best = max(t.best for t in made.figures.trials if t.feasible and t.best is not None)
    assert made.best is not None
    assert made.best.value == best > 0.7


def test_repeats_give_the_spread() -> None:
    assert make_report(make_study(8, dense=False), ()).spread is None
    repeated = make_study(30, repeats=6, statuses={0: "complete"}, dense=False)
    values = [repeated.costs[i] for i in (0, *range(24, 30))]
    spread = make_report(repeated, ()).spread
    assert spread is not None
    assert spread.trials == 7
    assert spread.deviation == pytest.approx(np.std(values, ddof=1))
    same_run = replace(repeated, trials=tuple(replace(t, seed=1) for t in repeated.trials))
    assert make_report(same_run, ()).spread is None  # a run with the same seed is no repeat

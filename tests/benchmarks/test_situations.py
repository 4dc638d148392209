"""The situations in reduced form: the advisor reads every simulated study, and no rule breaks on it.

`make test` takes every ninth situation, `make test-slow` all.
"""

from __future__ import annotations

import numpy as np
import pytest
from situations import SITUATIONS
from worlds.world import Outcome, analyze


@pytest.mark.parametrize(
    "situation",
    [pytest.param(s, marks=[pytest.mark.slow] * (i % 9 > 0), id=s.row.split()[0]) for i, s in enumerate(SITUATIONS)],
)
def test_the_advisor_reads_every_situation(situation):
    outcome = analyze(situation.make(np.random.default_rng(7)))
    assert isinstance(situation.faulty(outcome), bool | np.bool_)
    assert isinstance(outcome, Outcome)
    if outcome.report is not None:
        broken = [(v.rule, v.reason) for v in outcome.report.verdicts if v.status == "broken"]
        assert not broken


def test_rows_have_names_of_their_own():
    names = [(s.row, s.fault) for s in SITUATIONS]
    assert len(set(names)) == len(names)

"""Changes of several findings to one range."""

from __future__ import annotations

import pytest

from advisor.model.change import SetRange
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.planning.draft import ChangeConflictError, StudyDraft

LR = Parameter(type="float", low=1e-5, high=100.0, scale="log", role="nuisance")
SPEC = StudySpec(study="s", objective=Objective(metric="loss", direction="minimize"), parameters={"lr": LR})


def lr_after(*ranges: tuple[float, float]) -> tuple[float | None, float | None]:
    draft = StudyDraft(SPEC, SPEC)
    for i, (low, high) in enumerate(ranges):
        draft.apply(f"rule-{i}", SetRange(parameter="lr", low=low, high=high, scale="log", why=f"reason {i}"))
    return draft.current_spec.parameters["lr"].low, draft.current_spec.parameters["lr"].high


def test_the_tighter_of_two_cuts_wins_on_each_side() -> None:
    assert lr_after((1e-5, 0.2), (1e-5, 1e-4)) == (1e-5, 1e-4)
    assert lr_after((1e-4, 0.2), (1e-3, 1.0)) == (1e-3, 0.2)


def test_a_cut_and_an_extension_of_the_same_end_keep_the_first() -> None:
    assert lr_after((1e-5, 0.2), (1e-7, 100.0), (1e-5, 1e-4)) == (1e-7, 1e-4)
    with pytest.raises(ChangeConflictError, match="rule-0 already set lr"):
        lr_after((1e-5, 0.2), (1e-5, 1000.0))

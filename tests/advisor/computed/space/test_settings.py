"""The settings that a study tried."""

from __future__ import annotations

from studies import make_study

from advisor.computed.space import settings


def test_repeats_of_one_setting_are_one_setting() -> None:
    params = [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]
    tried = settings.read(make_study(params, {"val/loss": [[3.0], [1.0], [2.0], [4.0]]}))
    assert len(tried) == 2
    assert tried.costs.tolist() == [2, 4]

"""Importance and interactions."""

from __future__ import annotations

from advisor.report.figures.importance import importance_figures
from advisor.report.plot_data.model import ParameterImportance, StudyImportances


def test_variation_that_may_be_noise_is_called_noise() -> None:
    part = ParameterImportance(parameters=("lr",), share=0.9, low=0.5, high=1.0)
    pair = ParameterImportance(parameters=("lr", "wd"), share=0.2, low=0.1, high=0.3, p=0.01)
    noisy = importance_figures(StudyImportances(settings=12, p=0.4, each=(part,), pairs=(pair,)))
    assert "may be noise" in noisy[0].caption
    assert str(noisy[1].caption).startswith("No two hyperparameters")
    other = ParameterImportance(parameters=("wd",), share=0.1, low=0.0, high=0.2)
    sure = importance_figures(StudyImportances(settings=12, p=0.01, each=(part, other), pairs=(pair,)))
    assert str(sure[0].caption).startswith("lr with its interactions explains 90 %")
    alone = importance_figures(StudyImportances(settings=12, p=0.01, each=(part,), pairs=()))
    assert str(alone[0].caption).startswith("lr explains 90 %")
    assert str(sure[1].caption) == "The hyperparameters in these pairs may depend on each other: lr and wd."

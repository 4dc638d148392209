"""The data of isolation plots."""

from __future__ import annotations

import numpy as np
import pytest
from studies import make_study

from advisor.model.study import Study
from advisor.report.figures.isolation import _isolation_plot_caption
from advisor.report.plot_data import isolations


def test_slices_contain_every_trial_once_and_its_best(study: Study) -> None:
    found = {i.parameter: i for i in isolations.isolation_plots(study)}
    assert next(iter(found)) == "optimizer"  # scientific ones first
    assert set(found) == set(study.searched)
    by_id = {t.id: t for t in study.trials}
    for isolation in found.values():
        assert sum(s.trials for s in isolation.slices) == len(study.trials)
        for part in isolation.slices:
            if part.low is not None and part.best is not None and part.high is not None:
                assert part.low <= float(by_id[part.best].params[isolation.parameter]) <= part.high
    assert found["learning_rate"].p < 1e-3
    assert min(found[n].p for n in ("weight_decay", "dropout", "warmup_steps", "optimizer")) > 0.01
    assert [s.label for s in found["optimizer"].slices] == ["adamw", "nadam", "sgd"]


def test_repeats_of_a_setting_count_once() -> None:
    """Five seeds of each of two settings show one contrast between two hyperparameters, not five."""
    params = [{"lr": lr, "beta": beta} for lr, beta in ((0.1, 0.9), (0.01, 0.5)) for _ in range(5)]
    study = make_study(params, {"val/loss": [[2.0, 1.0 + 0.01 * i] for i in range(10)]})
    for isolation in isolations.isolation_plots(study):
        assert (isolation.draw_count, isolation.repeats) == (1, True)
        assert "only one setting" in _isolation_plot_caption(isolation, minimize=True)


def worse_with_tanh(**others: list[float]) -> Study:
    """Four settings with relu are all better than four settings with tanh."""
    params = [{"act": "relu" if i < 4 else "tanh", **{n: v[i] for n, v in others.items()}} for i in range(8)]
    return make_study(params, {"val/loss": [[2.0, 0.3 + 0.01 * i] for i in range(8)]})


def test_the_p_value_is_that_of_a_permutation_of_the_settings() -> None:
    """If chance orders them, all settings of one of two values of four come last with a probability of 2 in 70."""
    for isolation in isolations.isolation_plots(worse_with_tanh(width=[16, 32, 64, 128, 16, 32, 64, 128])):
        if isolation.parameter == "act":
            assert isolation.p == pytest.approx(2 * 2 / 70)
            assert "Chance alone can explain such a difference (p = 0.057)" in _isolation_plot_caption(isolation, minimize=True)


def test_what_else_differs_between_the_groups_is_named() -> None:
    study = worse_with_tanh(width=[1.0, 1.1, 1.2, 1.3, 2.0, 2.1, 2.2, 2.3])
    found = {i.parameter: i for i in isolations.isolation_plots(study)}
    assert (found["act"].confounders, found["width"].confounders) == (("width",), ("act",))
    rare = found["act"].model_copy(update={"p": 0.02})
    assert "rare by chance (p = 0.02), but the two groups also differ in width." in _isolation_plot_caption(rare, minimize=True)


def test_values_that_do_not_matter_are_rarely_called_rare() -> None:
    """The p-value is valid: at most 5 % of studies of unrelated results have one of 0.05 or less."""
    rng = np.random.default_rng(0)
    rare = 0
    for _ in range(200):
        params = [{"a": int(rng.integers(3)), "b": float(rng.random())} for _ in range(16)]
        found = isolations.isolation_plots(make_study(params, {"val/loss": [[2.0, float(c)] for c in rng.random(16)]}))
        rare += any(i.p <= 0.05 for i in found)
    assert rare <= 17  # the 97.5 % quantile of a binomial distribution

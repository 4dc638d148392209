"""The settings that a study tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from promise import studies
from studies import make_study, verdict

from advisor.computed.space import importance, settings
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.finding import MissingData
from advisor.model.study import Study


def test_repeats_of_one_setting_are_one_setting() -> None:
    params = [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.2}]
    tried = settings.read_settings(make_study(params, {"val/loss": [[3.0], [1.0], [2.0], [4.0]]}))
    assert len(tried) == 2
    assert tried.costs.tolist() == [2, 4]


def _pruned(count: int) -> Any:
    """Return 10 trials. The first `count` were pruned at a low cost."""
    params = [{"lr": 0.1 * (i + 1)} for i in range(10)]
    costs = [[0.0 if i < count else 1.0 + i] for i in range(10)]
    return make_study(params, {"val/loss": costs}, status=["pruned"] * count + ["complete"] * (10 - count))


def test_pruned_trials_are_no_settings_with_a_result() -> None:
    made = _pruned(3)
    assert settings.read_settings(made).costs.tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert [t.index for t in made.ranked()[:2]] == [3, 4]


def test_early_results_must_not_select_the_trials() -> None:
    settings.require_unpruned(_pruned(2))
    with pytest.raises(MissingData, match="3 of 10 trials were pruned"):
        settings.require_unpruned(_pruned(3))


def wide(seed: int, numbers: int, runs: int, effect: float) -> Study:
    """Return a study of many hyperparameters. Only `p7` has an effect on the cost, of size `effect`."""
    rng = np.random.default_rng(seed)
    values = rng.random((runs, numbers))
    costs = effect * values[:, 7] + rng.random(runs)
    params = [{f"p{i}": float(v) for i, v in enumerate(row)} for row in values]
    return make_study(params, {"val/loss": [[float(c)] for c in costs]})


def test_of_many_hyperparameters_those_that_matter_are_examined() -> None:
    study = wide(0, 200, 60, 5.0)
    tried = settings.read_settings(study)
    assert len(tried.numeric) == settings.MAX_AXES
    assert "p7" in tried.numeric
    assert tried.numeric.keys() | tried.unexamined_positions.keys() == set(study.searched)
    assert tried.corrected_level(0.05) == pytest.approx(0.05 * settings.MAX_AXES / 200)
    (decision,) = settings.search_space_decisions(study)
    assert decision.text.startswith(f"200 hyperparameters vary. The checks of the search space examine the {settings.MAX_AXES}")


def test_of_few_hyperparameters_all_are_examined() -> None:
    tried = settings.read_settings(study := wide(0, settings.MAX_AXES, 50, 1.0))
    assert not tried.unexamined_positions
    assert tried.corrected_level(0.05) == 0.05
    assert settings.search_space_decisions(study) == ()


def test_the_learning_rate_is_always_examined() -> None:
    rng = np.random.default_rng(1)
    params = [{f"p{i}": float(v) for i, v in enumerate(rng.random(99))} | {"lr": float(rng.random())} for _ in range(30)]
    assert "lr" in settings.read_settings(make_study(params, {"val/loss": [[float(rng.random())] for _ in params]})).numeric


def test_choices_with_many_levels_are_bounded() -> None:
    rng = np.random.default_rng(2)
    params = [{f"p{i}": f"option {v}" for i, v in enumerate(rng.integers(150, size=30))} for _ in range(300)]
    tried = settings.read_settings(make_study(params, {"val/loss": [[float(rng.random())] for _ in params]}))
    assert 1 <= len(tried.choices) <= settings.MAX_COORDINATES / 100


@pytest.mark.parametrize("effect", [0.0, 10.0])
def test_choosing_the_strongest_raises_no_false_alarms(effect: float) -> None:
    rules = [r for r in load_rules() if r.rule_id().startswith(("space-", "unfair"))]
    fired = []
    for seed in studies(10):
        verdicts = judge(wide(seed, 100, 40, effect), rules)
        fired.append({f.subject for v in verdicts for f in v.findings if f.confidence >= 0.9})
    if effect:
        assert sum("p7" in found for found in fired) >= 0.8 * len(fired)
    assert sum(bool(found - {"p7", None}) for found in fired) <= 0.2 * len(fired)


def test_settings_that_do_not_fit_in_memory_do_not_count_as_bad_results() -> None:
    rng = np.random.default_rng(0)
    params = [{"learning_rate": 10 ** rng.uniform(-4, -1), "width": int(64 * (i + 1))} for i in range(24)]
    fits = [p["width"] <= 1100 for p in params]
    study = make_study(
        params,
        {
            "val/loss": [
                [2.0, 1 + (np.log10(p["learning_rate"]) + 2) ** 2] if f else None for p, f in zip(params, fits, strict=True)
            ]
        },
        status=["complete" if f else "infeasible" for f in fits],
        tags=[{} if f else {"error": "out of memory"} for f in fits],
    )
    assert len(settings.settings_within_memory(study)) == sum(fits)
    assert importance.mean_importances(study)["learning_rate"] > 0.8 > 0.2 > importance.mean_importances(study)["width"]


# --- trials of different lengths ---


def study_of_lengths(blocks: Any, *, each: int = 14, seed: int = 0, **fixed: Any) -> Study:
    """Return trials in blocks of (steps, lowest rate, highest rate); results depend on the length alone."""
    rng = np.random.default_rng(seed)
    params, curves, steps = [], [], []
    for length, low, high in blocks:
        for i in range(each):
            params.append({"lr": float(np.exp(rng.uniform(np.log(low), np.log(high)))), "wd": float(rng.uniform(0, 1))})
            params[-1] |= {name: values(length, i) for name, values in fixed.items()}
            at = np.arange(1, 11) * length // 10
            steps.append(at)
            curves.append(np.exp(-at / 2000) + 0.005 * rng.normal(size=10))
    return make_study(params, {"val/loss": curves}, steps={"val/loss": steps})


APART = (1000, 1e-4, 1e-2), (5000, 1e-3, 1e-1)


def test_only_trials_of_one_length_are_judged_if_others_were_tuned_apart() -> None:
    apart = study_of_lengths(APART)
    found = settings.separately_tuned_lengths(apart)
    assert found is not None
    assert (found.steps_and_trials, found.judged_index) == (((1000, 14), (5000, 14)), 1)
    assert len(settings.read_settings(apart)) == 14
    assert len(settings.settings_of_all_lengths(apart)) == 28
    (decision,) = settings.search_space_decisions(apart)
    assert decision.text.endswith("The checks of the search space judge only the 14 trials of 5,000 steps.")
    assert verdict("space-shrink", apart).status != "fired"
    assert verdict("space-boundary", apart).status != "fired"


@pytest.mark.parametrize(
    ("blocks", "more"),
    [
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {}),
        (((1000, 1e-4, 1e-2), (1100, 1e-3, 1e-1)), {}),
        (((1000, 1e-4, 1e-2), (5000, 1e-3, 1e-1)), {"each": 4}),
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {"batch_size": lambda length, i: 320_000 // length}),
        (((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), {"rounds": lambda length, i: length // 500}),
    ],
    ids=["same rates", "same length", "few trials", "batch size", "another name of the length"],
)
def test_other_lengths_are_judged_together(blocks: Any, more: Any) -> None:
    assert settings.separately_tuned_lengths(study_of_lengths(blocks, **more)) is None


def test_it_seldom_separates_trials_that_were_drawn_alike() -> None:
    alike = [study_of_lengths(((1000, 1e-4, 1e-1), (5000, 1e-4, 1e-1)), seed=seed) for seed in range(100)]
    assert sum(settings.separately_tuned_lengths(s) is not None for s in alike) <= 0.08 * len(alike)

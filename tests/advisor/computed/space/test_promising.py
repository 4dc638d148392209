from __future__ import annotations

import math

import numpy as np
import pytest
from promise import kept, studies
from studies import make_study

from advisor.computed.space import promising
from advisor.model.spec import Bounds, Parameter, Region, StudySpec
from advisor.model.study import Study

UNIT = Parameter(low=0.0, high=1.0)


def study_of(positions: np.ndarray, costs: np.ndarray) -> Study:
    names = [f"h{j}" for j in range(positions.shape[1])]
    params = [dict(zip(names, map(float, u), strict=True)) for u in positions]
    curves = {"val/loss": [[5.0, float(c)] for c in costs]}
    return make_study(params, curves, space=dict.fromkeys(names, UNIT))


def narrowed(study: Study, spec: StudySpec | None = None, name: str = "h0") -> tuple[float, float]:
    """Return the narrower range of a hyperparameter, or the whole one."""
    return promising.narrower_ranges(study, spec or study.spec).get(name, (0.0, 1.0))


def test_a_hyperparameter_without_effect_keeps_its_range() -> None:
    """Without the test of its effect, the range of h1 was cut in 3 of these studies."""
    cut = 0
    for seed in range(7, 17):
        rng = np.random.default_rng(seed)
        u = rng.random((24, 2))
        study = study_of(u, 0.3 + (u[:, 0] - 0.6) ** 2 + 0.1 * rng.standard_normal(24))
        cut += "h1" in promising.narrower_ranges(study, study.spec)
    assert cut == 0


def test_the_best_setting_is_hardly_ever_left_out() -> None:
    """The best of the new ranges is as good as that of the old ones, up to the noise, in 98 % of studies."""
    rng, lost, narrower = np.random.default_rng(0), 0, 0
    for _ in studies(40):
        u, best, noise = rng.random((20, 2)), rng.uniform(0.1, 0.9, 2), 0.02
        study = study_of(u, 0.3 + ((u - best) ** 2).sum(1) + noise * rng.standard_normal(20))
        for name, (low, high) in promising.narrower_ranges(study, study.spec).items():
            nearest = min(max(best[int(name[1])], low), high)
            lost += (nearest - best[int(name[1])]) ** 2 > noise
            narrower += 1
    assert narrower > len(studies(40))
    assert kept(lost, len(studies(40)), 0.02)


def test_noise_narrows_nothing() -> None:
    rng, cut = np.random.default_rng(1), 0
    for _ in studies(60):
        study = study_of(rng.random((16, 2)), 0.3 + 0.05 * rng.standard_normal(16))
        cut += bool(promising.narrower_ranges(study, study.spec))
    assert kept(cut, len(studies(60)))


def test_an_interaction_is_judged_at_the_value_that_the_next_study_fixes() -> None:
    """The best rate depends on the batch size, which the next study fixes."""
    rng = np.random.default_rng(2)
    u = rng.random((40, 2))
    study = study_of(u, 0.3 + (u[:, 0] - 0.2 - 0.6 * u[:, 1]) ** 2)
    for value, best in ((0.0, 0.2), (1.0, 0.8)):
        fixed = study.spec.with_parameter("h1", Parameter(role="fixed", value=value))
        low, high = narrowed(study, fixed)
        assert low < best < high
        assert high - low < 0.6


def test_each_scientific_value_keeps_its_good_range() -> None:
    rng = np.random.default_rng(3)
    u = rng.random((40, 2))
    study = study_of(u, 0.3 + (u[:, 0] - 0.2 - 0.6 * (u[:, 1] > 0.5)) ** 2)
    asked = study.spec.with_parameter("h1", UNIT.model_copy(update={"role": "scientific"}))
    found = promising.narrower_ranges(study, asked)
    assert "h1" not in found
    low, high = found.get("h0", (0.0, 1.0))
    assert low < 0.2
    assert high > 0.8


def test_another_length_of_training_leaves_more_room() -> None:
    rng = np.random.default_rng(4)
    u = rng.random((40, 1))
    study = study_of(u, 0.3 + (u[:, 0] - 0.5) ** 2)
    low, high = promising.narrower_ranges(study, study.spec)["h0"]
    longer = promising.narrower_ranges(study, study.spec.model_copy(update={"max_train_steps": 1000}))
    assert longer["h0"] == pytest.approx((low - 0.15, high + 0.15), abs=0.02)


def test_ranges_stay_if_many_trials_were_pruned() -> None:
    """High values lead at step 100, where most trials end; at full length, 0.3 is best."""
    rates = np.linspace(0, 1, 20)
    full = range(0, 20, 5)
    curves = [[2.0 - r, 0.3 + (r - 0.3) ** 2] if i in full else [2.0 - r] for i, r in enumerate(rates)]
    status = ["complete" if i in full else "pruned" for i in range(20)]
    params = [{"h0": float(r)} for r in rates]
    study = make_study(params, {"val/loss": curves}, space={"h0": UNIT}, status=status)
    assert promising.narrower_ranges(study, study.spec) == {}


def test_pruned_trials_without_any_result_narrow_nothing() -> None:
    params = [{"h0": float(u)} for u in np.linspace(0, 1, 10)]
    status = ["pruned"] * 4 + ["diverged"] * 6
    study = make_study(params, {"val/loss": [[math.nan]] * 10}, space={"h0": UNIT}, status=status)
    assert promising.narrower_ranges(study, study.spec) == {}


def test_rounding_never_leaves_the_range() -> None:
    values = np.linspace(300.2, 300.8, 21)
    domain = Parameter(low=300.2, high=300.8, limits=(300.2, 300.8))
    curves = {"val/loss": [[5.0, 0.3 + float((x - 300.5) ** 2)] for x in values]}
    study = make_study([{"h0": float(x)} for x in values], curves, space={"h0": domain})
    low, high = promising.narrower_ranges(study, study.spec).get("h0", (300.2, 300.8))
    assert 300.2 <= low < 300.5 < high <= 300.8


def test_forbidden_settings_are_not_the_best() -> None:
    rng = np.random.default_rng(5)
    u = rng.random((60, 2))
    u = u[~((u[:, 0] > 0.6) & (u[:, 1] > 0.4))]
    study = study_of(u, 0.3 + ((u - 0.9) ** 2).sum(1))
    region = Region(where={"h0": Bounds(low=0.6), "h1": Bounds(low=0.4)})
    spec = study.spec.model_copy(update={"forbidden": (region,)})
    assert narrowed(study, spec, "h0")[0] < 0.6 or narrowed(study, spec, "h1")[0] < 0.4


def test_a_conditional_hyperparameter_counts_where_its_condition_is_met() -> None:
    """The best h0 depends on w, which exists with use = yes; the next study fixes use and searches w."""
    rng = np.random.default_rng(6)
    params: list[dict[str, object]] = []
    costs = []
    for i in range(60):
        h0, w = rng.random(2)
        params.append({"h0": float(h0), "use": "yes", "w": float(w)} if i % 2 else {"h0": float(h0), "use": "no"})
        costs.append([5.0, 0.3 + (h0 - 0.1 - 0.8 * w) ** 2 if i % 2 else 0.4 + (h0 - 0.2) ** 2])
    space = {
        "h0": UNIT,
        "use": Parameter(role="scientific", choices=("yes", "no")),
        "w": UNIT.model_copy(update={"when": {"use": "yes"}}),
    }
    study = make_study(params, {"val/loss": costs}, space=space)
    yes = study.spec.with_parameter("use", Parameter(role="fixed", value="yes"))
    low, high = narrowed(study, yes)
    assert low < 0.25
    assert high > 0.75


def test_a_best_value_without_a_place_on_the_scale_keeps_the_range() -> None:
    decays = [0.0, *np.geomspace(1e-5, 0.1, 20)]
    curves = {"val/loss": [[5.0, 0.3 + 3 * float(d)] for d in decays]}
    domain = Parameter(low=1e-5, high=0.1, scale="log")
    study = make_study([{"weight_decay": float(d)} for d in decays], curves, space={"weight_decay": domain})
    assert promising.narrower_ranges(study, study.spec) == {}


@pytest.mark.parametrize(("count", "slope"), [(4, 1.0), (12, 0.0)], ids=["few trials", "equal results"])
def test_few_trials_and_equal_results_narrow_nothing(count: int, slope: float) -> None:
    u = np.linspace(0, 1, count)[:, None]
    study = study_of(u, 0.3 + slope * u[:, 0] ** 2)
    assert promising.narrower_ranges(study, study.spec) == {}


@pytest.mark.parametrize(("result", "stays"), [(0.3005, True), (0.4, False)])
def test_the_second_best_trial_stays_in_the_range(result: float, *, stays: bool) -> None:
    """Trials lie around the optimum of a valley at 0.3; one that is far from it has this result."""
    u = np.append(np.linspace(0.02, 0.98, 25), 0.9)[:, None]
    high = narrowed(study_of(u, np.append(0.3 + (u[:-1, 0] - 0.3) ** 2, result)))[1]
    assert high >= 0.9 if stays else high < 0.8


def test_on_the_side_of_an_outermost_best_trial_the_range_goes_to_its_end() -> None:
    u = np.linspace(0.05, 0.75, 20)[:, None]
    study = study_of(u, 1.3 - u[:, 0])
    low, high = promising.narrower_ranges(study, study.spec)["h0"]
    assert low > 0.2
    assert high == 1.0


@pytest.mark.parametrize(("name", "stays"), [("dropout", True), ("gamma", False)])
def test_none_of_a_regulariser_stays_possible(name: str, *, stays: bool) -> None:
    u = np.linspace(0.0, 1.0, 30)
    costs = [[5.0, float(0.3 + (x - 0.8) ** 2)] for x in u]
    study = make_study([{name: float(x)} for x in u], {"val/loss": costs}, space={name: UNIT})
    assert (narrowed(study, name=name)[0] == 0.0) == stays

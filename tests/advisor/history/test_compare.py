"""Each source of variance can decide alone."""

import numpy as np
import pytest
from studies import make_study

from advisor.history.compare import ComparedTrials, Comparison, compare
from advisor.model.errors import AdvisorError


def study(values, *, metric="val/loss", direction="minimize", n_valid=None):
    """{learning rate: values of its seeds}."""
    params = [{"lr": lr} for lr, ys in values.items() for _ in ys]
    seeds = [seed for ys in values.values() for seed in range(len(ys))]
    tags = [{"n_valid": str(n_valid)}] * len(params) if n_valid else None
    curves = {metric: [float(y) for ys in values.values() for y in ys]}
    return make_study(params, curves, seeds=seeds, tags=tags, objective=metric, direction=direction)


def side(name, of, lr=None):
    return ComparedTrials(name, of, tuple(t for t in of.trials if lr is None or t.params["lr"] == lr))


def settings(values, **options):
    """Compare the first of two settings of one study with the second."""
    of = study(values, **{k: options.pop(k) for k in ("metric", "direction", "n_valid") if k in options})
    one, other = list(values)[:2]
    return compare(side("A", of, one), side("B", of, other), **options)


def test_a_real_gain_is_adopted():
    result = settings({0.1: [0.50, 0.51, 0.52, 0.50], 0.2: [0.60, 0.61, 0.59, 0.60]})
    assert (result.decision, result.more_seeds) == ("adopt", (0, 0))
    assert result.gain == pytest.approx(0.0925)
    low, high = result.interval
    assert 0 < low < result.gain < high
    assert result.study_variance is None
    assert result.data_variance.sd is None
    assert "n_valid" in result.data_variance.note or "validation examples" in result.data_variance.note


def test_a_gain_that_does_not_justify_the_complexity_is_not_adopted():
    values = {0.1: [0.50, 0.51, 0.52, 0.50], 0.2: [0.60, 0.61, 0.59, 0.60]}
    assert settings(values, complexity=0.05).decision == "adopt"
    result = settings(values, complexity=0.2)
    assert (result.decision, result.reason) == (
        "do not adopt",
        "The gain of 0.0925 is less than the 0.2 that the candidate's complexity requires.",
    )
    assert settings(values, complexity=0.09).decision != "adopt"


def test_a_worse_candidate_is_not_adopted():
    assert settings({0.1: [0.7, 0.71], 0.2: [0.60, 0.61]}).reason == "The candidate is not better on average."
    higher = settings({0.1: [0.7, 0.71, 0.705], 0.2: [0.60, 0.61, 0.605]}, metric="val/score", direction="maximize")
    assert higher.decision == "adopt"


def test_equal_settings_are_rarely_adopted_whichever_is_the_candidate():
    rng, adopted = np.random.default_rng(0), 0
    for _ in range(100):
        one, other = 1 + 0.03 * rng.standard_normal((2, 4))
        values = {0.1: one, 0.2: other} if one.mean() < other.mean() else {0.1: other, 0.2: one}
        adopted += settings(values).decision == "adopt"
    assert adopted <= 9  # of 100; at most 9 with 97 % probability where the rate is 5 %


def test_more_seeds_are_run_if_they_can_settle_it():
    values = {0.1: [0.49, 0.53, 0.51], 0.2: [0.53, 0.55, 0.52]}
    result = settings(values)
    assert result.decision == "run more seeds"
    assert result.more_seeds[0] == result.more_seeds[1] > 5
    assert settings(values, power=0.9, max_seeds=100).more_seeds > result.more_seeds
    fewer = settings({**values, 0.1: [0.49, 0.53, 0.51, 0.52, 0.51]}, max_seeds=100)
    assert fewer.more_seeds[1] == fewer.more_seeds[0] + 2


def test_no_seeds_are_run_beyond_the_maximum():
    result = settings({0.1: [0.50, 0.54, 0.51], 0.2: [0.53, 0.55, 0.52]}, max_seeds=4)
    assert result.decision == "do not adopt"
    assert "4 seeds each would not show such a small gain" in result.reason


def test_unknown_trial_variance_asks_for_repeats():
    result = settings({0.1: [0.5], 0.2: [0.6]})
    assert (result.decision, result.more_seeds, result.interval) == ("run more seeds", (4, 4), None)
    assert result.trial_variance.sd is None


def test_repeats_of_other_settings_replace_missing_ones():
    result = settings({0.1: [0.5], 0.2: [0.6], 0.3: [0.7, 0.701, 0.702, 0.699]})
    assert result.decision == "adopt"
    assert "all repeated settings" in result.trial_variance.note


def test_a_small_validation_set_decides_alone():
    values = {0.1: [0.95, 0.95, 0.95, 0.94], 0.2: [0.92, 0.92, 0.92, 0.93]}
    options = {"metric": "val/accuracy", "direction": "maximize"}
    result = settings(values, n_valid=100, **options)
    assert result.decision == "do not adopt"
    assert "More validation examples can decide" in result.reason
    assert result.data_variance.sd > 0.01
    assert settings(values, n_valid=50_000, **options).decision == "adopt"


def test_a_lead_that_depends_on_the_tried_settings_is_not_adopted():
    rng = np.random.default_rng(0)
    one, other, better = (rng.normal(mean, 0.1, 20) for mean in (1.0, 1.0, 0.3))
    a, b, c = (study({0.001 * (i + 1): [v] * 1 for i, v in enumerate(costs)}) for costs in (one, np.append(other, 2), better))
    lucky = sorted([(a, "a"), (b, "b")], key=lambda s: np.nanmin(s[0].costs))
    result = compare(side("A", lucky[0][0]), side("B", lucky[1][0]))
    assert result.decision == "do not adopt"
    assert "which settings were tried" in result.reason
    result = compare(side("A", c), side("B", a))
    assert result.decision == "run more seeds"  # the searches differ; what a seed changes is not known
    assert result.study_variance.sure > 0.99
    assert result.candidate.settings == 20


def test_the_repeated_setting_stands_for_its_study():
    of = study({0.1: [0.50], 0.2: [0.52, 0.53, 0.52, 0.525], 0.3: [0.6]})
    other = study({0.1: [0.9, 0.91, 0.905], 0.2: [0.95]})
    result = compare(side("A", of), side("B", other))
    assert result.candidate.runs == 4
    assert result.candidate.value == pytest.approx(0.52375)


def test_the_result_survives_json():
    result = settings({0.1: [0.5, 0.51], 0.2: [0.6, 0.61]})
    assert Comparison.model_validate_json(result.model_dump_json()) == result


def test_sides_that_cannot_be_compared_are_refused():
    of = study({0.1: [0.5, 0.51], 0.2: [0.6, 0.61]})
    with pytest.raises(AdvisorError, match="in common"):
        compare(side("A", of, 0.1), side("B", of, 0.1))
    accuracy = study({0.1: [0.5, 0.51]}, metric="val/acc", direction="maximize")
    with pytest.raises(AdvisorError, match="pass --objective"):
        compare(side("A", of, 0.1), side("B", accuracy))
    with pytest.raises(AdvisorError, match="ended with a result"):
        compare(ComparedTrials("A", of, ()), side("B", of, 0.1))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_a_candidate_without_a_gain_is_rarely_adopted(seeds):
    rng = np.random.default_rng(seeds)
    adopted = [
        settings({0.1: rng.normal(1, 0.1, seeds).tolist(), 0.2: rng.normal(1, 0.1, seeds).tolist()}).decision == "adopt"
        for _ in range(100)
    ]
    assert sum(adopted) <= 10  # 5 % of 100, and two standard deviations


def test_a_candidate_below_the_required_gain_is_rarely_adopted():
    rng = np.random.default_rng(0)
    adopted = [
        settings({0.1: rng.normal(1, 0.1, 5).tolist(), 0.2: rng.normal(1.2, 0.1, 5).tolist()}, complexity=0.2).decision
        == "adopt"
        for _ in range(100)
    ]
    assert sum(adopted) <= 10

"""The comparison on studies that are built for it: each source of variance decides alone."""

import numpy as np
import pytest
from studies import make_study

from advisor.history.compare import Comparison, Side, compare
from advisor.model.errors import AdvisorError


def study(values, *, metric="val/loss", direction="minimize", n_valid=None):
    """{learning rate: values of its seeds}."""
    params = [{"lr": lr} for lr, ys in values.items() for _ in ys]
    seeds = [seed for ys in values.values() for seed in range(len(ys))]
    tags = [{"n_valid": str(n_valid)}] * len(params) if n_valid else None
    curves = {metric: [float(y) for ys in values.values() for y in ys]}
    return make_study(params, curves, seeds=seeds, tags=tags, objective=metric, direction=direction)


def side(name, of, lr=None):
    return Side(name, of, tuple(t for t in of.trials if lr is None or t.params["lr"] == lr))


def settings(values, **options):
    """Compare the first of two settings of one study with the second."""
    of = study(values, **{k: options.pop(k) for k in ("metric", "direction", "n_valid") if k in options})
    one, other = list(values)[:2]
    return compare(side("A", of, one), side("B", of, other), **options)


def test_a_real_gain_is_adopted():
    said = settings({0.1: [0.50, 0.51, 0.52, 0.50], 0.2: [0.60, 0.61, 0.59, 0.60]})
    assert (said.decision, said.more_seeds) == ("adopt", (0, 0))
    assert said.gain == pytest.approx(0.0925)
    low, high = said.interval
    assert 0 < low < said.gain < high
    assert said.study_variance is None
    assert said.data_variance.sd is None
    assert "n_valid" in said.data_variance.note or "validation examples" in said.data_variance.note


def test_a_gain_that_the_complexity_outweighs_is_not():
    values = {0.1: [0.50, 0.51, 0.52, 0.50], 0.2: [0.60, 0.61, 0.59, 0.60]}
    assert settings(values, complexity=0.05).decision == "adopt"
    said = settings(values, complexity=0.2)
    assert (said.decision, said.reason) == (
        "do not adopt",
        "The gain of 0.0925 is less than the 0.2 that its complexity requires.",
    )
    assert settings(values, complexity=0.09).decision != "adopt"


def test_a_worse_candidate_is_not_adopted():
    assert settings({0.1: [0.7, 0.71], 0.2: [0.60, 0.61]}).reason == "It is not better on average."
    higher = settings({0.1: [0.7, 0.71, 0.705], 0.2: [0.60, 0.61, 0.605]}, metric="val/score", direction="maximize")
    assert higher.decision == "adopt"


def test_more_seeds_where_they_can_settle_it():
    values = {0.1: [0.50, 0.54, 0.51], 0.2: [0.53, 0.55, 0.52]}
    said = settings(values)
    assert said.decision == "run more seeds"
    assert said.more_seeds[0] == said.more_seeds[1] > 5
    assert settings(values, power=0.9, most=100).more_seeds > said.more_seeds
    fewer = settings({**values, 0.1: [0.50, 0.54, 0.51, 0.52, 0.51]}, most=100)
    assert fewer.more_seeds[1] == fewer.more_seeds[0] + 2


def test_not_worth_more_seeds_than_the_decision_is():
    said = settings({0.1: [0.50, 0.54, 0.51], 0.2: [0.53, 0.55, 0.52]}, most=4)
    assert said.decision == "do not adopt"
    assert "4 seeds each would not show a gain" in said.reason


def test_unknown_trial_variance_asks_for_repeats():
    said = settings({0.1: [0.5], 0.2: [0.6]})
    assert (said.decision, said.more_seeds, said.interval) == ("run more seeds", (4, 4), None)
    assert said.trial_variance.sd is None


def test_repeats_of_other_settings_stand_in():
    said = settings({0.1: [0.5], 0.2: [0.6], 0.3: [0.7, 0.701, 0.702, 0.699]})
    assert said.decision == "adopt"
    assert "all repeated settings" in said.trial_variance.note


def test_a_small_validation_set_decides_alone():
    values = {0.1: [0.95, 0.95, 0.95, 0.94], 0.2: [0.92, 0.92, 0.92, 0.93]}
    options = {"metric": "val/accuracy", "direction": "maximize"}
    said = settings(values, n_valid=100, **options)
    assert said.decision == "do not adopt"
    assert "More validation examples can settle it" in said.reason
    assert said.data_variance.sd > 0.01
    assert settings(values, n_valid=50_000, **options).decision == "adopt"


def test_studies_are_held_against_which_settings_they_tried():
    rng = np.random.default_rng(0)
    one, other, better = (rng.normal(mean, 0.1, 20) for mean in (1.0, 1.0, 0.3))
    a, b, c = (
        study({0.001 * (i + 1): [v] * 1 for i, v in enumerate(costs)}) for costs in (one, np.append(other, 2), better)
    )
    lucky = sorted([(a, "a"), (b, "b")], key=lambda s: np.nanmin(s[0].costs))
    said = compare(side("A", lucky[0][0]), side("B", lucky[1][0]))
    assert said.decision == "do not adopt"
    assert "which settings were tried" in said.reason
    said = compare(side("A", c), side("B", a))
    assert said.decision == "run more seeds"  # the searches differ; what a seed changes is not known
    assert said.study_variance.sure > 0.99
    assert said.candidate.settings == 20


def test_the_repeated_setting_stands_for_its_study():
    of = study({0.1: [0.50], 0.2: [0.52, 0.53, 0.52, 0.525], 0.3: [0.6]})
    other = study({0.1: [0.9, 0.91, 0.905], 0.2: [0.95]})
    said = compare(side("A", of), side("B", other))
    assert said.candidate.runs == 4
    assert said.candidate.value == pytest.approx(0.52375)


def test_the_result_is_json_and_comes_back():
    said = settings({0.1: [0.5, 0.51], 0.2: [0.6, 0.61]})
    assert Comparison.model_validate_json(said.model_dump_json()) == said


def test_what_cannot_be_compared_says_so():
    of = study({0.1: [0.5, 0.51], 0.2: [0.6, 0.61]})
    with pytest.raises(AdvisorError, match="in common"):
        compare(side("A", of, 0.1), side("B", of, 0.1))
    accuracy = study({0.1: [0.5, 0.51]}, metric="val/acc", direction="maximize")
    with pytest.raises(AdvisorError, match="pass --objective"):
        compare(side("A", of, 0.1), side("B", accuracy))
    with pytest.raises(AdvisorError, match="ended with a result"):
        compare(Side("A", of, ()), side("B", of, 0.1))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_a_candidate_that_brings_nothing_is_seldom_adopted(seeds):
    rng = np.random.default_rng(seeds)
    adopted = [
        settings({0.1: rng.normal(1, 0.1, seeds).tolist(), 0.2: rng.normal(1, 0.1, seeds).tolist()}).decision == "adopt"
        for _ in range(100)
    ]
    assert sum(adopted) <= 10  # 5 % of 100, and two standard deviations


def test_a_candidate_that_does_not_bring_what_its_complexity_asks_for_is_seldom_adopted():
    rng = np.random.default_rng(0)
    adopted = [
        settings({0.1: rng.normal(1, 0.1, 5).tolist(), 0.2: rng.normal(1.2, 0.1, 5).tolist()}, complexity=0.2).decision
        == "adopt"
        for _ in range(100)
    ]
    assert sum(adopted) <= 10

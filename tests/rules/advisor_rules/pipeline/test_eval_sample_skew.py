"""eval-sample-skew: a sample of the validation set that disagrees with the whole set."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

RULE = "eval-sample-skew"


def study(sampled, whole, *, objective="val/error", direction="minimize", steps=None):
    """Trials whose evaluations are `sampled` on the sample and `whole` on the whole set: a list, or the last value alone."""
    params = [{"lr": 0.1 / (i + 1)} for i in range(len(sampled))]
    curves = {objective: sampled, f"{objective}.full": whole}
    return make_study(params, curves, objective=objective, direction=direction, steps=steps)


def measured(rng, true, *, blur, shift=0.0, anew=False, evaluations=4):
    """(on the sample, on the whole set) of trials whose errors fall to `true`; the sample is off by `blur` (standard deviation)."""
    course = np.asarray(true)[:, None] + np.linspace(0.3, 0, evaluations)
    once = blur * rng.standard_normal()
    each = blur * rng.standard_normal(course.shape if anew else (len(true), 1))
    return course + shift + (0.0 if anew else once) + (each if anew else 0.3 * each), course


def spread(rng, trials):
    return np.sort(0.1 + 0.2 * rng.random(trials))


def example():
    return study([[0.10], [0.20], [0.30], [0.40]], [[0.28], [0.20], [0.30], [0.40]])


def test_the_best_on_the_sample_is_not_the_best():
    (finding,) = verdict(RULE, example()).findings
    assert (finding.severity, finding.trials) == ("warning", ("run0", "run1"))
    assert "larger sample" in finding.changes[0].text


def test_a_sample_that_is_too_easy():
    rng = np.random.default_rng(0)
    (finding,) = verdict(RULE, study(*measured(rng, spread(rng, 8), blur=0.002, shift=-0.08))).findings
    assert finding.severity == "note"
    assert "better than on the whole set" in finding.message


def test_accuracies_are_better_when_higher():
    rng = np.random.default_rng(0)
    sampled, whole = measured(rng, spread(rng, 8), blur=0.002, shift=-0.08)
    shown = study(1 - sampled, 1 - whole, objective="val/accuracy", direction="maximize")
    assert "better than on the whole set" in verdict(RULE, shown).findings[0].message


def test_a_sample_that_agrees():
    rng = np.random.default_rng(1)
    assert verdict(RULE, study(*measured(rng, spread(rng, 8), blur=0.005))).status == "quiet"


def test_the_whole_set_once_at_the_end():
    rng = np.random.default_rng(2)
    for shift, said in ((0.0, "quiet"), (0.1, "fired")):
        sampled, whole = measured(rng, spread(rng, 6), blur=0.002, shift=shift)
        late = {"val/error": [[100, 200, 300, 400]] * 6, "val/error.full": [[410]] * 6}
        assert verdict(RULE, study(sampled, whole[:, -1:], steps=late)).status == said


def test_one_trial_tells_of_its_level_only():
    shown = study([[0.5, 0.31, 0.2, 0.11]], [[0.61, 0.4, 0.3, 0.2]])
    assert verdict(RULE, shown).status == "fired"
    assert verdict(RULE, study([[0.5, 0.3, 0.2, 0.11]], [[0.51, 0.29, 0.2, 0.11]])).status == "quiet"


@pytest.mark.parametrize(("sampled", "whole"), [([[0.3], [0.2]], [[0.3], [0.2]]), ([[0.3]] * 4, [None, None, None, [0.3]])])
def test_it_cannot_tell_from_few_pairs(sampled, whole):
    assert verdict(RULE, study(sampled, whole)).status == "not-assessed"


def test_it_cannot_tell_without_the_whole_set():
    said = verdict(RULE, make_study([{"lr": 0.1}], {"val/error": [[0.3, 0.2]]}, objective="val/error"))
    assert "val/error.full" in said.reason


@pytest.mark.parametrize("trials", [3, 12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("anew", [False, True], ids=["one sample", "drawn anew"])
def test_it_keeps_its_promise(trials, anew):
    rng = np.random.default_rng(trials)
    fired = {0.0: 0, 0.5: 0}
    for _ in studies(100):
        true = spread(rng, trials)
        gain = np.quantile(true, 0.75) - true[0]
        for shift in fired:
            pairs = measured(rng, true, blur=0.05 * gain, shift=shift * gain, anew=anew)
            fired[shift] += verdict(RULE, study(*pairs)).status == "fired"
    assert fired[0.0] <= scaled(1, of=100)
    assert fired[0.5] >= scaled(95, of=100)

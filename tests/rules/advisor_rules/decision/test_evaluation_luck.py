"""A best trial whose evaluations vary most."""

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.change import Advise, RepeatTrial
from advisor_rules.decision import _evaluation_luck


def study(noise, better=0.0, repeats=1):
    """Ten equal trials, the last one with this noise between evaluations; settings run with this number of seeds."""
    rng = np.random.default_rng(0)
    course = 1 + np.exp(-np.arange(40) / 8)
    curves = [course + 0.002 * rng.standard_normal(40) for _ in range(9)]
    curves.append(course - better + noise * rng.standard_normal(40))
    params = [{"lr": 0.1 * (i // repeats + 1)} for i in range(10)]
    return make_study(params, {"val/loss": curves}, seeds=[i % repeats for i in range(10)])


def test_a_lucky_winner_is_found_and_said():
    luck = _evaluation_luck.find_lucky_lead(study(0.05))
    assert luck is not None
    assert luck.best.name == "trial-9"
    assert 0.02 < luck.best_noise_sd < 0.1
    assert 0 < luck.observed_lead <= luck.expected_lead
    assert 0.5 <= luck.rival_as_good_probability < 1
    (finding,) = verdict("adopt", study(0.05)).findings
    assert (finding.subject, finding.severity) == ("evaluations", "note")


def test_a_lead_beyond_luck_and_equal_noise_are_no_luck():
    assert _evaluation_luck.find_lucky_lead(study(0.05, better=0.5)) is None
    assert _evaluation_luck.find_lucky_lead(study(0.002)) is None
    assert _evaluation_luck.find_lucky_lead(make_study([{"lr": 0.1}], {"val/loss": [[1.0]]})) is None


def test_a_lead_not_clearly_larger_than_luck_is_stated_beside_it():
    luck = _evaluation_luck.find_lucky_lead(study(0.05))
    beyond = luck.expected_lead - luck.observed_lead + 0.025
    found = _evaluation_luck.find_lucky_lead(study(0.05, better=beyond))
    assert found.observed_lead > found.expected_lead
    assert 0.05 < found.rival_as_good_probability < 0.5
    (finding,) = verdict("adopt", study(0.05, better=beyond)).findings
    assert "Part of its lead may be luck" in str(finding.message)


def test_the_lucky_trial_is_repeated():
    (finding,) = verdict("adopt", study(0.05)).findings
    advice, repeat = finding.changes
    assert isinstance(advice, Advise)
    assert isinstance(repeat, RepeatTrial)
    assert (repeat.seeds, repeat.parameters) == (5, {"lr": pytest.approx(1.0)})
    assert "Repeat trial-9 5 times" in finding.action
    assert finding.confidence >= 0.5


def test_if_repeats_are_known_only_they_decide():
    made = study(0.05, repeats=3)
    assert _evaluation_luck.find_lucky_lead(made) is not None
    findings = verdict("adopt", made).findings
    assert len(findings) <= 1
    assert all(f.subject != "evaluations" for f in findings)


def test_the_confidence_is_at_most_the_share_of_studies_in_which_the_other_trial_is_as_good():
    stated, right = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        levels, course = 0.03 * rng.standard_normal(6), np.exp(-np.arange(40) / 8)
        noise = np.where(np.arange(6) == rng.integers(6), 0.05, 0.005)
        curves = [level + course + sd * rng.standard_normal(40) for level, sd in zip(levels, noise, strict=True)]
        luck = _evaluation_luck.find_lucky_lead(make_study([{"lr": 0.1 * (i + 1)} for i in range(6)], {"val/loss": curves}))
        if luck is not None:
            stated.append(luck.rival_as_good_probability)
            right.append(levels[luck.rival.index] <= levels[luck.best.index])
    assert len(stated) >= 10
    assert np.mean(right) >= np.mean(stated)

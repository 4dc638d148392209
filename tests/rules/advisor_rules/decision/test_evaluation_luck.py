"""A best trial whose evaluations vary most."""

import numpy as np
from studies import make_study, verdict

from advisor_rules.decision import _evaluation_luck


def study(noise, better=0.0):
    """Ten equal trials, the last one with this noise between evaluations."""
    rng = np.random.default_rng(0)
    course = 1 + np.exp(-np.arange(40) / 8)
    curves = [course + 0.002 * rng.standard_normal(40) for _ in range(9)]
    curves.append(course - better + noise * rng.standard_normal(40))
    return make_study([{"lr": 0.1 * (i + 1)} for i in range(10)], {"val/loss": curves})


def test_a_lucky_winner_is_found_and_said():
    luck = _evaluation_luck.of_best(study(0.05), 0.05)
    assert luck is not None
    assert luck.best.name == "trial-9"
    assert 0.02 < luck.noise < 0.1
    assert luck.luck > 0.5 * luck.lead
    (finding,) = verdict("adopt", study(0.05)).findings
    assert (finding.subject, finding.severity) == ("evaluations", "note")


def test_a_lead_beyond_luck_and_equal_noise_are_no_luck():
    assert _evaluation_luck.of_best(study(0.05, better=0.5), 0.05) is None
    assert _evaluation_luck.of_best(study(0.002), 0.05) is None
    assert _evaluation_luck.of_best(make_study([{"lr": 0.1}], {"val/loss": [[1.0]]}), 0.05) is None

import engine

from advisor.engine.registry import load_rules
from advisor.model.finding import MissingData

OF_OTHER_STUDIES = set(
    "adam-epsilon attention-logits batch-changed chosen-unlikely completions-truncated curve-staircase entropy-collapse "
    "eval-sample-skew forgetting groups-without-advantage loss-scale non-finite-cause params-ignored policy-jumps "
    "preferences-unlearned rollout-mismatch schedule-ignored steps-to-fit warmup-shortest weight-decay-weak".split()
)
"""Rules that need a study of another kind."""


def findings(rule, study):
    try:
        return list(rule.check(study))
    except MissingData as missing:
        return str(missing)


def test_most_rules_judge_the_study_and_none_breaks():
    seconds, verdicts = engine.time_rules(engine.study(40, 60, None))
    assert set(seconds) == set(verdicts) == {r.rule_id() for r in load_rules()}
    assert not [s for s in verdicts.values() if s.startswith("broken")]
    missing = {rule for rule, s in verdicts.items() if s.startswith("not-assessed")}
    # The learning rate decays in this study, so the end of a curve does not show if another length is better.
    assert missing <= {*OF_OTHER_STUDIES, "curve-saturated", "curve-still-improving", "steps-compute-bound"}


def test_readings_that_rules_share_do_not_change_what_they_say():
    shared = engine.study(30, 60, None)
    for rule in load_rules():
        assert findings(rule, shared) == findings(rule, engine.study(30, 60, None)), rule.rule_id()

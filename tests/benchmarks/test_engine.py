import engine

from advisor.engine.registry import load_rules
from advisor.model.finding import MissingData


def findings(rule, study):
    try:
        return list(rule.check(study))
    except MissingData as missing:
        return str(missing)


def test_most_rules_judge_the_study_and_none_breaks():
    seconds, verdicts = engine.clock(engine.study(40, 60, None))
    assert set(seconds) == set(verdicts) == {r.rule_id() for r in load_rules()}
    assert not [s for s in verdicts.values() if s.startswith("broken")]
    assert (
        sum(s.startswith("not-assessed") for s in verdicts.values()) <= 8
    )  # three about the length, under a decaying rate


def test_readings_that_rules_share_do_not_change_what_they_say():
    shared = engine.study(30, 60, None)
    for rule in load_rules():
        assert findings(rule, shared) == findings(rule, engine.study(30, 60, None)), rule.rule_id()

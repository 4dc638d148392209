from __future__ import annotations

from typing import Any

import pytest

from advisor.engine.explain import check_relations, explain, find_causal_links, find_cause, find_first_cause
from advisor.engine.registry import load_rules
from advisor.engine.relation import Relation
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, Severity, Verdict


def found(rule: str, *trials: str, **fields: Any) -> Finding:
    return Finding.model_validate(
        {"goal": "steps", "severity": "warning", "confidence": 0.9, "message": "m", "action": "a", "playbook": "p"}
        | {"rule": rule, "trials": trials}
        | fields
    )


RULES = load_rules()


def after(*findings: Finding) -> dict[str, Finding]:
    """The findings by rule, explained."""
    verdicts = explain((Verdict(rule=f.rule, status="fired", findings=(f,)) for f in findings), RULES)
    return {f.rule: f for v in verdicts for f in v.findings}


def test_an_effect_may_declare_its_cause_itself() -> None:
    relation = Relation(rules=("a",), shares="study", because="It does.")
    body = {"id": "b", "explained_by": (relation,), "__annotations__": {}, "__module__": __name__}
    effect = type(Rule)("B", (Rule,), body)()
    cause = type(Rule)("A", (Rule,), {"id": "a", "__annotations__": {}, "__module__": __name__})()
    verdicts = [Verdict(rule=r, status="fired", findings=(found(r),)) for r in ("b", "a")]
    explained = explain(verdicts, [cause, effect])[0].findings[0].explained_by
    assert explained is not None
    assert (explained.rule, explained.because) == ("a", "It does.")


def test_everything_follows_from_trials_that_learned_nothing() -> None:
    broken = found("curve-worse-than-chance", "t1", severity="critical", subject="loss")
    explained = after(found("curve-overfitting", "t2"), found("space-boundary", subject="lr", side="low"), broken)
    for effect in ("curve-overfitting", "space-boundary"):
        assert explained[effect].explained_by is not None
        assert explained[effect].explained_by.rule == "curve-worse-than-chance"
        assert explained[effect].explained_by.waits
        assert find_cause(explained[effect], list(explained.values())) == broken
    assert explained["curve-worse-than-chance"].explained_by is None


def test_checks_that_a_critical_finding_blinds_have_not_passed() -> None:
    quiet = [Verdict(rule=r, status="quiet") for r in ("curve-overfitting", "seeds")]
    for severity, confidence, status in (
        ("critical", 0.9, "not-assessed"),
        ("warning", 0.9, "quiet"),
        ("critical", 0.3, "quiet"),
    ):
        cause = found("curve-worse-than-chance", "t1", severity=severity, confidence=confidence)
        verdicts = explain([*quiet, Verdict(rule=cause.rule, status="fired", findings=(cause,))], RULES)
        assert [v.status for v in verdicts] == [status, "quiet", "fired"]
        assert verdicts[0].reason is None or verdicts[0].reason.startswith("no trial learned anything")


def test_a_reason_keeps_the_capitals_of_its_first_word() -> None:
    relation = Relation(rules=("b",), shares="study", because="DPO learned nothing.", blinds=True)
    body = {"id": "a", "explains": (relation,), "__annotations__": {}, "__module__": __name__}
    cause = type(Rule)("A", (Rule,), body)()
    effect = type(Rule)("B", (Rule,), {"id": "b", "__annotations__": {}, "__module__": __name__})()
    critical = Verdict(rule="a", status="fired", findings=(found("a", severity="critical"),))
    verdicts = explain([Verdict(rule="b", status="quiet"), critical], [cause, effect])
    assert verdicts[0].reason == "DPO learned nothing"


def test_instability_explains_a_boundary_of_the_same_end_only() -> None:
    edge = found("stability-edge", "t1", severity="critical", subject="lr", side="high")
    here = found("space-boundary", subject="lr", side="high")
    assert after(edge, here)["space-boundary"].explained_by is not None
    for other in (here.model_copy(update={"side": "low"}), here.model_copy(update={"subject": "momentum"})):
        assert after(edge, other)["space-boundary"].explained_by is None


@pytest.mark.parametrize("rule", ["space-shrink", "scientific-effect"])
@pytest.mark.parametrize(
    ("severity", "subject", "waits"), [("warning", "lr", True), ("warning", "x", False), ("note", "lr", False)]
)
def test_other_hyperparameters_wait_for_the_end_of_a_range(rule: str, severity: Severity, subject: str, waits: bool) -> None:
    end = found("space-boundary", subject=subject, side="high", severity=severity)
    explained = after(end, found(rule, subject="x", severity="note"))[rule].explained_by
    assert (explained is not None and explained.waits) == waits


def test_lower_rates_come_before_tighter_clipping_at_high_ones() -> None:
    spikes = found("clip-insufficient", "t1")
    for side, cause in (("low", "space-boundary"), ("high", None)):
        explained = after(found("space-boundary", subject="lr", side=side), spikes)["clip-insufficient"].explained_by
        assert (explained.rule if explained else None) == cause


def test_half_of_the_trials_with_the_effect_must_show_the_cause() -> None:
    jump = found("stability-mid", "t1", "t2")
    assert after(jump, found("curve-overfitting", "t1", "t3"))["curve-overfitting"].explained_by is not None
    assert after(jump, found("curve-overfitting", "t1", "t3", "t4"))["curve-overfitting"].explained_by is None
    assert after(jump, found("curve-overfitting"))["curve-overfitting"].explained_by is None


def test_a_pair_shares_each_of_its_two_hyperparameters() -> None:
    both = found("space-interaction", subject="batch_size × lr")
    assert after(both, found("space-insensitive", subject="lr"))["space-insensitive"].explained_by is not None
    assert after(both, found("space-insensitive", subject="l"))["space-insensitive"].explained_by is None


def test_clipping_explains_only_what_is_about_a_learning_rate() -> None:
    clipped = found("clip-aggressive", "t1")
    assert after(clipped, found("space-insensitive", subject="learning_rate"))["space-insensitive"].explained_by
    assert after(clipped, found("space-insensitive", subject="dropout"))["space-insensitive"].explained_by is None


def test_rates_that_are_too_high_explain_a_training_loss_that_rises() -> None:
    rises = found("curve-train-loss-rises", "t1")
    low = found("space-boundary", subject="lr", side="low")
    assert after(low, rises)["curve-train-loss-rises"].explained_by is not None
    assert after(low.model_copy(update={"side": "high"}), rises)["curve-train-loss-rises"].explained_by is None


def test_failures_with_a_place_explain_instability_and_those_without_follow_from_it() -> None:
    unstable = found("stability-early", "t1", "t2")
    placed = found("space-infeasible", "t1", "t2", subject="lr", side="high")
    explained = after(unstable, placed)
    assert explained["stability-early"].explained_by is not None
    assert explained["space-infeasible"].explained_by is None
    explained = after(unstable, found("space-infeasible", "t1", "t2"))
    assert explained["stability-early"].explained_by is None
    assert explained["space-infeasible"].explained_by is not None


def test_too_high_rates_explain_instability_that_limits_nothing() -> None:
    unstable = found("stability-early", "t1")
    low = found("space-boundary", subject="lr", side="low")
    high = found("space-infeasible", "t7", subject="lr", side="high")
    for cause in (low, high):
        assert after(cause, unstable)["stability-early"].explained_by is not None
        grave = unstable.model_copy(update={"severity": "critical"})
        assert after(cause.model_copy(update={"severity": "critical"}), grave)["stability-early"].explained_by is None
    other = low.model_copy(update={"subject": "momentum"})
    assert after(other, unstable)["stability-early"].explained_by is None


def test_only_critical_instability_explains_that_nothing_was_learned() -> None:
    nothing = found("curve-worse-than-chance", "t1", subject="loss")
    assert after(found("stability-early", "t1"), nothing)["curve-worse-than-chance"].explained_by is None
    grave = found("stability-early", "t1", severity="critical")
    assert after(grave, nothing)["curve-worse-than-chance"].explained_by is not None


def test_instability_follows_if_stable_trials_learned_nothing_either() -> None:
    nothing = found("curve-worse-than-chance", "t1", subject="loss", severity="critical")
    for unstable in (found("stability-early", "t2", severity="critical"), found("stability-early", "t1")):
        explained = after(nothing, unstable)
        assert explained["stability-early"].explained_by is not None
        assert explained["curve-worse-than-chance"].explained_by is None


def test_one_common_trial_is_enough_for_details_of_an_instability() -> None:
    spikes = found("stability-spikes", "t1", "t2", "t3", subject="train/grad_norm")
    assert after(found("stability-mid", "t1"), spikes)["stability-spikes"].explained_by is not None
    assert after(found("stability-mid", "t4"), spikes)["stability-spikes"].explained_by is None


def test_critical_instability_does_not_follow_from_the_space() -> None:
    unstable = found("stability-early", "t1", severity="critical")
    placed = found("space-infeasible", "t1", severity="critical", subject="lr", side="high")
    assert after(unstable, placed)["stability-early"].explained_by is None


def test_a_note_or_a_doubtful_finding_explains_nothing_graver() -> None:
    effect = found("curve-step-variance", "t1")
    cause = found("stability-mid", "t1")
    assert after(cause, effect)["curve-step-variance"].explained_by is not None
    for poor in ({"severity": "note"}, {"confidence": 0.4}):
        assert after(cause.model_copy(update=poor), effect)["curve-step-variance"].explained_by is None


def test_a_cause_that_the_effect_waits_for_is_preferred_and_chains_end_at_their_head() -> None:
    edge = found("stability-edge", "t1", severity="critical", subject="lr", side="high")
    placed = found("space-infeasible", "t1", subject="lr", side="high")
    early, norms = found("stability-early", "t1"), found("residual-norm", "t1", subject="Model")
    explained = after(norms, early, placed, edge)
    assert explained["stability-early"].explained_by.rule == "space-infeasible"
    assert explained["residual-norm"].explained_by.rule == "stability-early"
    everything = list(explained.values())
    assert {find_first_cause(f, everything).rule for f in everything} == {"stability-edge"}


def test_findings_without_a_cause_stay_unchanged() -> None:
    alone = found("curve-overfitting", "t1")
    assert after(alone)["curve-overfitting"] == alone
    verdicts = (Verdict(rule="q", status="quiet"), Verdict(rule="u", status="not-assessed", reason="r"))
    assert explain(verdicts, RULES) == verdicts


def test_the_batch_size_is_chosen_by_time() -> None:
    fast, long = found("batch-throughput", subject="batch_size"), found("batch-steps", subject="batch_size")
    sooner = after(fast, long)
    assert sooner["batch-throughput"].explained_by is not None
    assert sooner["batch-steps"].explained_by is None
    price = after(fast, long.model_copy(update={"severity": "note"}))
    assert price["batch-steps"].explained_by is not None
    assert price["batch-throughput"].explained_by is None


def test_high_rates_do_not_explain_what_happens_at_low_ones() -> None:
    high = found("space-infeasible", "t7", subject="lr", side="high")
    assert after(high, found("stability-mid", "t1"))["stability-mid"].explained_by is not None
    assert after(high, found("stability-mid", "t1", side="low"))["stability-mid"].explained_by is None


# --- the causal graph ---


def rule(name: str, *effects: str, **fields: Any) -> Rule:
    """A rule that explains the findings of others."""
    relation = Relation(rules=effects, **({"shares": "study", "because": "It does."} | fields))
    body = {"id": name, "explains": (relation,) if effects else (), "__annotations__": {}, "__module__": __name__}
    return type(Rule)(name, (Rule,), body)()


def test_the_built_in_rules_name_rules_that_exist_and_nothing_explains_itself() -> None:
    check_relations(RULES)


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AdvisorError, match="'a' has a relation to 'space-bondary', which does not exist"):
        check_relations([rule("a", "space-bondary"), rule("space-boundary")])


def test_a_circle_is_refused() -> None:
    with pytest.raises(AdvisorError, match="explain each other in a circle"):
        check_relations([rule("a", "b"), rule("b", "c"), rule("c", "a")])
    with pytest.raises(AdvisorError, match="circle: a;"):
        check_relations([rule("a", "a")])


def test_two_directions_are_no_circle_if_places_differ() -> None:
    placed = rule("a", "b", cause_at="somewhere")
    check_relations([placed, rule("b", "a", effect_at="everywhere")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([placed, rule("b", "a")])


def test_two_directions_are_no_circle_if_severities_differ() -> None:
    check_relations([rule("a", "b", min_severity="critical"), rule("b", "a", max_severity="warning")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([rule("a", "b", min_severity="warning"), rule("b", "a", max_severity="warning")])


@pytest.mark.parametrize("link", find_causal_links(RULES), ids=lambda link: f"{link.cause}-{link.effect}")
def test_every_relation_says_why_in_a_sentence(link: Any) -> None:
    assert link.relation.because[0].isupper()
    assert link.relation.because.endswith(".")


def test_no_two_relations_say_the_same() -> None:
    conditions = [
        (k.cause, k.effect, k.relation.shares, k.relation.cause_at, k.relation.effect_at) for k in find_causal_links(RULES)
    ]
    severities = [(k.relation.min_severity, k.relation.max_severity) for k in find_causal_links(RULES)]
    every = list(zip(conditions, severities, strict=True))
    assert len(set(every)) == len(every)


def test_a_relation_to_rules_that_need_learning_reaches_those_only() -> None:
    cause, other, needing = rule("a"), rule("b"), rule("c")
    type(cause).explains = Relation(rules="needs_learning", shares="study", because="It does.")
    type(needing).needs_learning = True
    assert [(k.cause, k.effect) for k in find_causal_links([cause, other, needing])] == [("a", "c")]

"""Which finding explains which: the table holds together, and each of its kinds of link applies where it should and only there."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.engine.explain import cause_of, explain, first_cause
from advisor.engine.links import check_relations, find_links
from advisor.engine.registry import load_rules
from advisor.engine.relation import Relation
from advisor.engine.rule import Rule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, Verdict


def found(rule: str, *trials: str, **given: Any) -> Finding:
    return Finding.model_validate(
        {"goal": "steps", "severity": "warning", "confidence": 0.9, "message": "m", "action": "a", "playbook": "p"}
        | {"rule": rule, "trials": trials}
        | given
    )


RULES = load_rules()


def after(*findings: Finding) -> dict[str, Finding]:
    """The findings by rule, explained."""
    verdicts = explain((Verdict(rule=f.rule, status="fired", findings=(f,)) for f in findings), RULES)
    return {f.rule: f for v in verdicts for f in v.findings}


def rule(name: str, *effects: str, **given: Any) -> Rule:
    """A rule that explains the findings of others."""
    relation = Relation(rules=effects, **({"shares": "study", "because": "It does."} | given))
    body = {"id": name, "explains": (relation,) if effects else (), "__annotations__": {}, "__module__": __name__}
    return type(Rule)(name, (Rule,), body)()


# --- what rules declare ---------------------------------------------------------------------------------------------------------


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


def test_two_ways_between_two_rules_are_no_circle_where_a_place_tells_them_apart() -> None:
    placed = rule("a", "b", cause_at="somewhere")
    check_relations([placed, rule("b", "a", effect_at="everywhere")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([placed, rule("b", "a")])


def test_severities_tell_two_ways_apart_as_well() -> None:
    check_relations([rule("a", "b", min_severity="critical"), rule("b", "a", max_severity="warning")])
    with pytest.raises(AdvisorError, match="circle"):
        check_relations([rule("a", "b", min_severity="warning"), rule("b", "a", max_severity="warning")])


def test_an_effect_may_declare_its_cause_itself() -> None:
    relation = Relation(rules=("a",), shares="study", because="It does.")
    body = {"id": "b", "explained_by": (relation,), "__annotations__": {}, "__module__": __name__}
    effect = type(Rule)("B", (Rule,), body)()
    verdicts = [Verdict(rule=r, status="fired", findings=(found(r),)) for r in ("b", "a")]
    explained = explain(verdicts, [rule("a"), effect])[0].findings[0].explained_by
    assert explained is not None
    assert (explained.rule, explained.because) == ("a", "It does.")


@pytest.mark.parametrize("link", find_links(RULES), ids=lambda link: f"{link.cause}-{link.effect}")
def test_every_relation_says_why_in_a_sentence(link: Any) -> None:
    assert link.relation.because[0].isupper()
    assert link.relation.because.endswith(".")


def test_no_two_relations_say_the_same() -> None:
    conditions = [
        (k.cause, k.effect, k.relation.shares, k.relation.cause_at, k.relation.effect_at) for k in find_links(RULES)
    ]
    severities = [(k.relation.min_severity, k.relation.max_severity) for k in find_links(RULES)]
    every = list(zip(conditions, severities, strict=True))
    assert len(set(every)) == len(every)


# --- one cause, one headline ----------------------------------------------------------------------------------------------------


def test_where_nothing_was_learned_the_rest_follows() -> None:
    broken = found("curve-worse-than-chance", "t1", severity="critical", subject="loss")
    said = after(found("curve-overfitting", "t2"), found("space-boundary", subject="lr", side="low"), broken)
    for effect in ("curve-overfitting", "space-boundary"):
        assert said[effect].explained_by is not None
        assert said[effect].explained_by.rule == "curve-worse-than-chance"
        assert said[effect].explained_by.waits
        assert cause_of(said[effect], list(said.values())) == broken
    assert said["curve-worse-than-chance"].explained_by is None


def test_instability_explains_a_boundary_of_the_same_end_only() -> None:
    edge = found("stability-edge", "t1", severity="critical", subject="lr", side="high")
    here = found("space-boundary", subject="lr", side="high")
    assert after(edge, here)["space-boundary"].explained_by is not None
    for other in (here.model_copy(update={"side": "low"}), here.model_copy(update={"subject": "momentum"})):
        assert after(edge, other)["space-boundary"].explained_by is None


def test_trials_count_where_half_of_those_that_show_the_effect_show_the_cause() -> None:
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
    said = after(unstable, placed)
    assert said["stability-early"].explained_by is not None
    assert said["space-infeasible"].explained_by is None
    said = after(unstable, found("space-infeasible", "t1", "t2"))
    assert said["stability-early"].explained_by is None
    assert said["space-infeasible"].explained_by is not None


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


def test_only_grave_instability_explains_that_nothing_was_learned() -> None:
    nothing = found("curve-worse-than-chance", "t1", subject="loss")
    assert after(found("stability-early", "t1"), nothing)["curve-worse-than-chance"].explained_by is None
    grave = found("stability-early", "t1", severity="critical")
    assert after(grave, nothing)["curve-worse-than-chance"].explained_by is not None


def test_where_nothing_was_learned_by_stable_trials_either_instability_follows() -> None:
    nothing = found("curve-worse-than-chance", "t1", subject="loss", severity="critical")
    for unstable in (found("stability-early", "t2", severity="critical"), found("stability-early", "t1")):
        said = after(nothing, unstable)
        assert said["stability-early"].explained_by is not None
        assert said["curve-worse-than-chance"].explained_by is None


def test_one_trial_is_enough_for_what_says_more_about_an_instability() -> None:
    spikes = found("stability-spikes", "t1", "t2", "t3", subject="train/grad_norm")
    assert after(found("stability-mid", "t1"), spikes)["stability-spikes"].explained_by is not None
    assert after(found("stability-mid", "t4"), spikes)["stability-spikes"].explained_by is None


def test_instability_that_limits_is_not_a_matter_of_cutting_the_space() -> None:
    unstable = found("stability-early", "t1", severity="critical")
    placed = found("space-infeasible", "t1", severity="critical", subject="lr", side="high")
    assert after(unstable, placed)["stability-early"].explained_by is None


def test_nothing_grave_hides_below_something_lesser_or_doubtful() -> None:
    effect = found("curve-step-variance", "t1")
    cause = found("stability-mid", "t1")
    assert after(cause, effect)["curve-step-variance"].explained_by is not None
    for poor in ({"severity": "note"}, {"confidence": 0.4}):
        assert after(cause.model_copy(update=poor), effect)["curve-step-variance"].explained_by is None


def test_the_first_line_that_fits_counts_and_chains_end_at_their_head() -> None:
    edge = found("stability-edge", "t1", severity="critical", subject="lr", side="high")
    placed = found("space-infeasible", "t1", subject="lr", side="high")
    early, norms = found("stability-early", "t1"), found("residual-norm", "t1", subject="Model")
    said = after(norms, early, placed, edge)
    assert said["stability-early"].explained_by.rule == "stability-edge"
    assert said["residual-norm"].explained_by.rule == "stability-early"
    everything = list(said.values())
    assert {first_cause(f, everything).rule for f in everything} == {"stability-edge"}


def test_what_has_no_cause_among_the_findings_stands_by_itself() -> None:
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

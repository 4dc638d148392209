"""Findings that wait until what explains them is settled."""

from planning_studies import STEPS, few, found, wider
from studies import make_study

from advisor.model.change import AddParameter, Advise
from advisor.model.finding import Explanation
from advisor.model.spec import Parameter
from advisor.planning import plan


def explained(verdict, by, *, waits=True):
    """The verdict, its finding explained by that of another rule."""
    because = Explanation(rule=by, because="It does.", waits=waits)
    return verdict.model_copy(
        update={"findings": tuple(f.model_copy(update={"explained_by": because}) for f in verdict.findings)}
    )


ADVICE = Advise(text="Mend the loader.")


def test_an_effect_waits_until_its_cause_is_settled():
    broken = found("chance", "pipeline", ADVICE, severity="critical")
    edge = explained(found("edge", "boundary", wider()), "chance")
    made = plan(few(), [edge, broken])
    (spec,) = made.specs
    assert spec.goal.startswith("Search again once this is done: Do it")
    assert spec.parameters["lr"].high == 0.1
    assert [(d.rule, d.reason) for d in made.deferred] == [("edge", "the problem probably disappears after this: Do it")]


def test_a_broken_pipeline_that_holds_others_back_is_a_study_of_its_own():
    broken = found("chance", "pipeline", ADVICE)
    held = explained(found("edge", "boundary", wider()), "chance")
    assert plan(few(), [broken, held]).specs[0].goal.startswith("Search again once this is done: Do it")
    free = plan(few(), [broken, found("edge", "boundary", wider())]).specs[0]
    assert free.goal == "Widen lr: 1e-6 to 1"


def test_a_useful_change_does_not_wait():
    jump = found("jump", "stability", AddParameter(name="warmup_steps", parameter=Parameter(low=1, high=9)))
    clip = explained(found("spikes", "stability", wider(0.1, 0.3, "dropout")), "jump", waits=False)
    made = plan(few(), [jump, clip])
    assert made.specs[0].parameters["dropout"].high == 0.3
    assert not made.deferred


def test_nothing_waits_for_a_cause_that_asks_for_nothing_or_comes_later():
    edge = explained(found("edge", "boundary", wider()), "cause")
    for cause in (
        found("cause", "pipeline"),
        found("cause", "steps", STEPS),
        found("cause", "pipeline", ADVICE, confidence=0.3),
    ):
        first = plan(few(), [cause, edge]).specs[0]
        assert first.parameters["lr"].high == 1.0


def test_effects_of_a_waiting_finding_wait_too():
    broken = found("chance", "pipeline", ADVICE, severity="critical")
    edge = explained(found("edge", "boundary", wider()), "chance")
    flat = explained(found("flat", "sampling", wider(0.0, 0.9, "dropout")), "edge")
    made = plan(few(), [flat, edge, broken])
    assert made.specs[0].parameters["dropout"].high == 0.5
    assert [d.rule for d in made.deferred] == ["edge", "flat"]


def test_failures_that_instability_explains_do_not_put_the_space_first():
    params = [{"lr": 0.1, "depth": n} for n in (2, 4)]
    one = make_study(params, {"val/loss": [[1.0, 2.0]] * 2}, status=["diverged"] * 2)
    unstable = found("early", "stability", AddParameter(name="warmup_steps", parameter=Parameter(low=1, high=9)))
    failed = explained(found("failed", "infeasible", Advise(text="Look for a bug."), severity="critical"), "early")
    assert plan(one, [failed, unstable]).specs[0].goal.startswith("Add warmup_steps")

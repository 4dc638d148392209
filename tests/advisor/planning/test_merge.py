from dataclasses import replace

import numpy as np
import pytest
from planning_studies import STEPS, asks, bowl, few, found, wider
from studies import make_study

from advisor.model.change import AddParameter, Advise, DropValues, FixParameter, RepeatTrial, RunPlan, SetField, SetRange
from advisor.model.finding import Explanation
from advisor.model.spec import Parameter
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning import file_names, plan
from advisor.planning.base import initial_draft
from advisor.planning.designs import catalogue, per_optimizer
from advisor.planning.designs.reseed import REPEAT_GOAL


def test_each_goal_is_a_study_of_its_own_in_the_order_of_priority():
    made = plan(few(), [found("still", "steps", STEPS), found("edge", "boundary", wider())])
    first, second = made.specs
    assert first.goal == "Widen lr: 1e-6 to 1"
    assert (first.parameters["lr"].low, first.parameters["lr"].high) == (1e-6, 1.0)
    assert first.max_train_steps == 300
    assert second.max_train_steps == 900
    assert second.parameters["lr"].high == 1.0
    assert (first.round, first.parent, second.round, second.parent) == (2, "test", 3, first.study)
    assert [d.rule for d in made.deferred] == ["still"]
    assert file_names(made.specs) == ["1-widen-lr.yaml", "2-lengthen-training.yaml"]


def test_hyperparameters_of_little_effect_are_fixed_in_the_next_study_of_any_goal():
    fix = FixParameter(parameter="dropout", value=0.1, why="It hardly matters.", for_now=True)
    flat = found("flat", "sampling", fix, severity="note")
    made = plan(few(), [flat, found("still", "steps", STEPS)])
    (spec,) = made.specs
    assert spec.goal == "Lengthen training: 300 to 900 steps"
    assert (list(spec.searched), spec.max_train_steps) == (["lr"], 900)
    assert not made.deferred
    (alone,) = plan(few(), [flat]).specs
    assert alone.goal == "Fix dropout at 0.1"
    first, second = plan(few(), [found("edge", "pipeline", wider()), flat, found("still", "steps", STEPS)]).specs
    assert set(first.searched) == {"lr"}
    assert (list(second.searched), second.max_train_steps) == (["lr"], 900)


def test_values_that_lost_leave_the_comparison_at_once_with_what_depends_on_them():
    norms = ("batch", "group", "none")
    params = [{"norm": norms[i % 3], "lr": 10.0 ** -(i + 1), "groups": 4} for i in range(6)]
    space = {
        "norm": Parameter(role="scientific", choices=norms),
        "lr": Parameter(low=1e-6, high=0.1, scale="log"),
        "groups": Parameter(choices=(4, 8), when={"norm": "group"}),
    }
    made = make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(6)]}, space=space)
    drop = DropValues(parameter="norm", values=("group",), why="batch is better than group by 0.1")
    lost = found("lost", "sampling", drop, severity="note")
    (spec,) = plan(made, [lost, found("still", "steps", STEPS)]).specs
    assert spec.goal == "Lengthen training: 300 to 900 steps"
    assert (spec.parameters["norm"].choices, spec.parameters["norm"].role) == (("batch", "none"), "scientific")
    assert spec.parameters["norm"].why == "batch is better than group by 0.1"
    assert set(spec.searched) == {"norm", "lr"}
    (alone,) = plan(made, [lost]).specs
    assert alone.goal == "Compare norm: batch and none"
    one_left = drop.model_copy(update={"values": ("group", "none")})
    assert one_left.apply(made.spec) == made.spec


def test_findings_of_one_goal_are_folded_into_one_study():
    made = plan(few(), [found("edge", "boundary", wider()), found("bad", "infeasible", wider(0.01, 0.3, "dropout"))])
    (spec,) = made.specs
    assert spec.parameters["lr"].high == 1.0
    assert spec.parameters["dropout"].high == 0.3


def test_the_higher_priority_keeps_its_end_of_a_range():
    cut_top = found("bad", "infeasible", wider(low=1e-6, high=1e-3))
    expand = found("edge", "boundary", wider(low=1e-9, high=10.0))
    (spec,) = plan(few(), [expand, cut_top]).specs
    assert spec.parameters["lr"].high == 1e-3
    assert spec.parameters["lr"].low == 1e-9


def test_a_range_that_two_rules_made_has_both_reasons():
    cut_top = SetRange(parameter="lr", low=1e-6, high=1e-3, scale="log", why="it fails above.")
    lower = SetRange(parameter="lr", low=1e-9, high=10.0, scale="log", why="better ones lie below")
    (spec,) = plan(few(), [found("edge", "boundary", lower), found("bad", "infeasible", cut_top)]).specs
    assert spec.parameters["lr"].why == "it fails above. better ones lie below"


def test_no_change_goes_past_declared_limits_and_they_stay():
    narrow = Parameter(type="float", low=1e-4, high=1e-2, scale="log", limits=(None, 0.1))
    bounded = few().spec.with_parameter("lr", narrow)
    wide = wider(low=1e-6, high=1.0).apply(bounded)
    assert (wide.parameters["lr"].low, wide.parameters["lr"].high) == (1e-6, 0.1)
    fixed = FixParameter(parameter="lr", value=0.01, why="it matters little").apply(wide)
    assert wider(high=10.0).apply(fixed).parameters["lr"].high == 0.1
    beyond = FixParameter(parameter="lr", value=0.5, why="others do")
    within = make_study([{"lr": 10.0 ** -(i + 1)} for i in range(6)], {"val/loss": [[1.0]] * 6})
    limited = replace(within, spec=within.spec.with_parameter("lr", narrow))
    (deferred,) = plan(limited, [found("fixed", "infeasible", beyond)]).deferred
    assert deferred.reason == "its change of lr exceeds the declared limits"


def test_a_scale_that_was_set_stays_when_an_end_moves_later():
    scale = SetRange(parameter="lr", low=1e-6, high=0.1, scale="linear", why="regular on it")
    (spec,) = plan(few(), [found("scale", "boundary", scale), found("narrow", "sampling", wider(1e-6, 0.01))]).specs
    assert (spec.parameters["lr"].scale, spec.parameters["lr"].high) == ("linear", 0.01)


def test_a_contradiction_is_deferred_with_its_reason():
    fix = found("flat", "sampling", FixParameter(parameter="lr", value=0.1, why="flat"))
    made = plan(few(), [fix, found("edge", "boundary", wider(high=1.0))])
    assert made.specs[0].parameters["lr"].searched
    assert [(d.rule, d.reason) for d in made.deferred] == [("flat", "edge already set lr")]


def test_lower_learning_rates_come_before_the_instability_of_higher_ones():
    lower = found("edge", "boundary", wider(low=1e-9, high=0.1), subject="lr", side="low")
    clip = Parameter(role="nuisance", type="float", low=0.1, high=1.0, why="spikes")
    spikes = found("spikes", "stability", AddParameter(name="grad_clip_norm", parameter=clip))
    goals = [s.goal for s in plan(few(), [spikes, lower]).specs]
    assert [g.partition(":")[0] for g in goals] == ["Widen lr", "Search grad_clip_norm"]
    higher = found("edge", "boundary", wider(low=1e-9, high=0.1), subject="lr", side="high")
    goals = [s.goal for s in plan(few(), [spikes, higher]).specs]
    assert [g.partition(":")[0] for g in goals] == ["Search grad_clip_norm", "Widen lr"]


def test_a_manual_fix_comes_before_a_lesser_goal():
    advice = found("bug", "stability", Advise(text="Look for the bug."), severity="critical")
    first, second = plan(few(), [advice, found("still", "steps", STEPS)]).specs
    assert first.goal == "Search again once this is done: Do it"
    assert first.notes == ("Look for the bug.",)
    assert set(first.searched) == set(few().searched)
    assert second.max_train_steps == 900


@pytest.mark.parametrize(("trial", "first"), [(0, "Search grad_clip_norm"), (4, "Search lower lr")])
def test_instability_far_above_the_best_learning_rate_waits(trial, first):
    # The best trial, number 0, has the lowest learning rate, and each next one ten times as much.
    params = [{"lr": 10.0 ** (i - 5)} for i in range(6)]
    data = make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(6)]})
    clip = Parameter(role="nuisance", type="float", low=0.1, high=1.0, why="spikes")
    spikes = found("spikes", "stability", AddParameter(name="grad_clip_norm", parameter=clip), trials=(f"run{trial}",))
    made = plan(data, [spikes, found("bad", "infeasible", wider(high=1e-2))])
    assert made.specs[0].goal.startswith(first)


def test_two_rules_that_agree_are_no_contradiction():
    still = found("still", "steps", STEPS, confidence=0.95)
    longer = SetField(field="max_train_steps", value=700, why="late best steps")
    made = plan(few(), [found("position", "steps", longer), still])
    assert (made.specs[0].max_train_steps, made.deferred) == (900, ())
    clip = Parameter(role="nuisance", type="float", low=0.1, high=1.0, why="spikes")
    add = AddParameter(name="grad_clip_norm", parameter=clip)
    assert plan(few(), [found("mid", "stability", add), found("spikes", "stability", add)]).deferred == ()
    shorter = SetField(field="max_train_steps", value=100, why="flat")
    made = plan(few(), [found("flat", "steps", shorter), still])
    assert [d.rule for d in made.deferred] == ["flat"]


def test_longer_training_is_never_shorter_than_the_length_of_the_study():
    # The best trial trained for 300 steps, which the study keeps; the others planned 200.
    made = few()
    trials = tuple(t if t.index == 0 else replace(t, facts={"max_train_steps": "200"}) for t in made.trials)
    made = replace(made, trials=trials)
    fix = SetField(field="max_train_steps", value=300, why="the best trial's")
    supports = tuple(t.id for t in made.trials[:3])
    assert plan(made, [found("lengths", "sampling", fix, trials=supports)]).specs[0].max_train_steps == 300
    for proposed, expected in ((270, 410), (500, 500), (100, 100)):  # 270 steps are 1.35 times the usual 200
        length = SetField(field="max_train_steps", value=proposed, why="of the curves")
        changes = [found("lengths", "sampling", fix, trials=supports), found("ends", "steps", length, trials=supports)]
        (spec,) = plan(made, changes).specs
        assert spec.max_train_steps == expected


def test_an_unsure_finding_changes_nothing():
    made = plan(few(), [found("edge", "boundary", wider(), confidence=0.3)])
    assert made.specs[0].goal.startswith("Try ")
    assert "30 %" in made.deferred[0].reason


def test_advice_goes_with_the_study_that_is_run_first():
    advice = found("ckpt", "pipeline", Advise(text="Keep the 3 best checkpoints."))
    (spec,) = plan(few(), [advice, found("edge", "boundary", wider())]).specs
    assert spec.notes == ("Keep the 3 best checkpoints.",)


def test_with_nothing_to_change_the_best_trial_is_repeated():
    (spec,) = plan(bowl(), []).specs
    assert not spec.searched
    assert spec.seeds == 5


def test_a_study_without_feasible_trials_has_no_next_one():
    dead = make_study([{"lr": 0.1}], {"val/loss": [[float("nan")]]}, status=["infeasible"])
    assert plan(dead, []).specs == ()


def test_new_parameters_are_added_once():
    dropout = Parameter(role="nuisance", type="float", low=0.0, high=0.5, why="overfits")
    made = plan(few(), [found("over", "regularisation", AddParameter(name="label_smoothing", parameter=dropout))])
    assert made.specs[0].parameters["label_smoothing"].high == 0.5
    kept = plan(few(), [found("over", "regularisation", AddParameter(name="dropout", parameter=dropout))])
    assert kept.specs[0].goal.startswith("Try ")


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_follow_each_other(rounds):
    data = few()
    for number in range(1, rounds + 1):
        spec = plan(data, [found("edge", "boundary", wider(high=1.0 + number))]).specs[0]
        assert (spec.study, spec.round) == (f"test-round-{number + 1}", number + 1)
        assert parse_study_file(format_study_file(spec)) == spec
        data = type(data)(spec=spec, trials=data.trials, metrics=data.metrics)


def test_epochs_follow_the_number_of_steps():
    params = [{"lr": 10.0 ** -(i + 1), "num_epochs": 30, "warmup_steps": 10} for i in range(3)]
    data = make_study(params, {"val/loss": [[1.0, 0.5, 0.4]] * 3})
    (spec,) = plan(data, [found("still", "steps", STEPS)]).specs
    assert (spec.max_train_steps, spec.parameters["num_epochs"].value) == (900, 90)
    assert spec.parameters["warmup_steps"].value == 10


AGAIN = RepeatTrial(parameters={"lr": 0.1, "dropout": 0.0}, seeds=9, why="the lead is within the trial variance")


def test_a_trial_is_repeated_if_nothing_else_changes():
    (spec,) = plan(few(), [found("adopt", "exploitation", AGAIN)]).specs
    assert (spec.goal.partition(":")[0], spec.trials, spec.seeds) == (REPEAT_GOAL, 1, 9)
    assert {n: p.value for n, p in spec.parameters.items()} == {"lr": 0.1, "dropout": 0.0}
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_trial_is_not_repeated_before_there_are_trials_for_all_hyperparameters() -> None:
    names = ("lr", "momentum", "dropout", "weight_decay", "label_smoothing", "grad_clip")
    rng = np.random.default_rng(0)
    params = [{n: float(rng.uniform(0.1, 1)) for n in names} for _ in range(5)]
    few = make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(5)]})
    again = RepeatTrial(parameters=params[0], seeds=9, why="the lead is within the trial variance")
    made = plan(few, [found("adopt", "exploitation", again)])
    assert made.specs[0].goal.startswith("Search only lr: 5 trials cannot show")
    assert [(d.rule, d.reason) for d in made.deferred] == [
        ("adopt", "the next study may find a better setting, which should be repeated instead")
    ]


@pytest.mark.parametrize("goal", ["boundary", "exploitation"])
def test_a_trial_is_not_repeated_if_the_space_changes(goal):
    made = plan(few(), [found("adopt", "exploitation", AGAIN), found("edge", goal, wider())])
    (spec,) = made.specs
    assert spec.seeds is None
    assert spec.parameters["lr"].high == 1.0
    assert "adopt" in [d.rule for d in made.deferred]


def test_a_setting_that_was_repeated_is_not_repeated_again():
    params = [{"lr": 0.1}] * 5 + [{"lr": 0.2}] * 5
    repeated = make_study(params, {"val/loss": [0.1 * i for i in range(10)]}, seeds=list(range(10)))
    assert not any(s.goal.startswith(REPEAT_GOAL) for s in plan(repeated, []).specs)


def test_a_design_that_makes_an_invalid_study_is_deferred(monkeypatch):
    plain = few()
    broken = plain.spec.model_copy(update={"trials": 0})
    monkeypatch.setitem(catalogue.STUDY_DESIGNS, "warmup", lambda *_: broken)
    made = plan(plain, [found("shaky", "stability", RunPlan(plan="warmup", why="because"))])
    assert [d.rule for d in made.deferred] == ["shaky"]
    for spec in made.specs:
        assert parse_study_file(format_study_file(spec)) == spec


def test_savings_after_a_study_do_not_repeat_its_notes_in_the_next_one():
    fix = FixParameter(parameter="dropout", value=0.1, why="It hardly matters.", for_now=True)
    advice = Advise(text="Keep the 3 best checkpoints.")
    edge = found("edge", "boundary", wider(), advice)
    first, second = plan(few(), [edge, found("flat", "sampling", fix), found("still", "steps", STEPS)]).specs
    assert first.notes == ("Keep the 3 best checkpoints.",)
    assert second.notes == ("still improving",)  # the reason for its length
    assert list(first.searched) == list(second.searched) == ["lr"]


def test_savings_change_no_study_of_a_design(monkeypatch):
    def long_runs(_request, _study, base):
        return base.model_copy(update={"goal": "Lengthen training", "max_train_steps": 3000})

    monkeypatch.setitem(catalogue.STUDY_DESIGNS, "rounds", long_runs)
    fix = FixParameter(parameter="dropout", value=0.1, why="It hardly matters.", for_now=True)
    long = found("long", "pipeline", RunPlan(plan="rounds", why="because"))
    first, second = plan(few(), [long, found("flat", "sampling", fix), found("bug", "steps", STEPS)]).specs
    assert (first.max_train_steps, set(first.searched)) == (3000, {"lr", "dropout"})
    assert (second.max_train_steps, set(second.searched)) == (900, {"lr"})


def test_a_design_keeps_the_notes_on_fixed_hyperparameters_and_no_later_study_repeats_them():
    data = make_study(
        [{"lr": 10.0 ** -(i + 1), "batch_size": 32 * 2 ** (i % 3)} for i in range(6)],
        {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(6)]},
    )
    notes = initial_draft(data).notes
    divides = asks("per-optimizer", "pipeline")
    first, second = plan(data, [divides, found("still", "steps", STEPS)]).specs
    assert notes
    assert (first.goal, first.notes[: len(notes)]) == (per_optimizer.PER_OPTIMIZER_GOAL, notes)
    assert not set(notes) & set(second.notes)


def test_a_study_that_would_search_nothing_is_not_made():
    params = [{"num_steps": n} for n in (200, 200, 300, 300)]
    made = make_study(params, {"val/loss": [[1.0, 0.5 + 0.01 * i] for i in range(4)]})
    fix = FixParameter(parameter="num_steps", value=200, why="w")
    assert not any(spec.goal.startswith("Fix") for spec in plan(made, [found("length", "sampling", fix)]).specs)


def test_if_more_trials_gain_nothing_a_narrower_range_is_part_of_the_next_study():
    narrower = SetRange(parameter="lr", low=1e-5, high=0.01, scale="log", why="w")
    narrow = found("failed", "infeasible", narrower)
    last = found("enough", "exploitation", RunPlan(plan="exploit", why="w"), severity="note")
    longer = found("still", "steps", STEPS)
    (spec,) = plan(few(), [narrow, longer, last]).specs
    assert (spec.goal, spec.parameters["lr"].high) == ("Lengthen training: 300 to 900 steps", 0.01)
    assert plan(few(), [narrow, longer]).specs[0].goal.startswith("Narrow lr")


def test_the_hyperparameter_with_the_larger_effect_leads_the_goal():
    """Three quarters of the variation come from lr; the finding about it is less sure and follows from another one."""
    cut = SetRange(parameter="lr", low=1e-3, high=1e-2, scale="log", why="because")
    other = SetRange(parameter="weight_decay", low=1e-5, high=1e-3, scale="log", why="because")
    cause = found("cause", "infeasible", Advise(text="Draw fewer trials there."), subject="lr")
    follows = Explanation(rule="cause", subject="lr", because="It is the same range.", waits=False)
    wide = found("wide", "sampling", other, subject="weight_decay", confidence=0.95)
    narrow = found("narrow", "sampling", cut, subject="lr", confidence=0.8, explained_by=follows)
    made = plan(bowl(), [cause, wide, narrow])
    assert made.specs[0].goal.startswith("Narrow lr and weight_decay: ")


def explained(verdict, by, *, waits=True):
    """The verdict, its finding explained by that of another rule."""
    because = Explanation(rule=by, because="It does.", waits=waits)
    return verdict.model_copy(
        update={"findings": tuple(f.model_copy(update={"explained_by": because}) for f in verdict.findings)}
    )


MEND = Advise(text="Mend the loader.")


def test_an_effect_waits_until_its_cause_is_settled():
    broken = found("chance", "pipeline", MEND, severity="critical")
    edge = explained(found("edge", "boundary", wider()), "chance")
    made = plan(few(), [edge, broken])
    (spec,) = made.specs
    assert spec.goal.startswith("Search again once this is done: Do it")
    assert spec.parameters["lr"].high == 0.1
    assert [(d.rule, d.reason) for d in made.deferred] == [("edge", "the problem probably disappears after this: Do it")]


def test_a_broken_pipeline_that_holds_others_back_is_a_study_of_its_own():
    broken = found("chance", "pipeline", MEND)
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
    for cause in (found("cause", "pipeline"), found("cause", "steps", STEPS), found("cause", "pipeline", MEND, confidence=0.3)):
        first = plan(few(), [cause, edge]).specs[0]
        assert first.parameters["lr"].high == 1.0


def test_effects_of_a_waiting_finding_wait_too():
    broken = found("chance", "pipeline", MEND, severity="critical")
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

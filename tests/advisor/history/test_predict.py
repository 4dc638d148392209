from __future__ import annotations

import math

import numpy as np
import pytest
from history_studies import round_of
from planning_studies import AIM, RULES, found
from studies import make_study, verdict

from advisor.computed.curves import curve_tails
from advisor.engine.judge import judge
from advisor.history import predict
from advisor.history.judge import judge_predictions
from advisor.history.predict import MAX_STATED_PROBABILITY, add_predictions, is_change_made
from advisor.model.change import AddParameter, FixParameter, RunPlan, SetRange
from advisor.model.prediction import BestBeyond, BestReaches, Settled, ShareOfTrials
from advisor.model.spec import Parameter, StudySpec
from advisor.planning import plan
from advisor.planning.base import initial_draft
from advisor.planning.designs.reseed import repeat_best_trial

RATES = [float(r) for r in np.geomspace(1.1e-4, 9e-3, 12)]


def next_studies(study, *rules):
    verdicts = [verdict(rule, study) for rule in rules]
    return add_predictions(study, verdicts, plan(study, verdicts, RULES).specs, RULES)


def falling(rate: float, optimum: float = 0.05) -> float:
    return 0.2 + 0.05 * math.log10(rate / optimum) ** 2


def test_a_widened_range_predicts_where_the_best_will_lie():
    study = round_of(RATES, [falling(r) for r in RATES], study="s")
    first = next_studies(study, "space-boundary")[0]
    (made,) = first.predictions
    assert made.rule == "space-boundary"
    assert isinstance(made.expects, BestBeyond)
    assert (made.expects.parameter, made.expects.side, made.expects.end) == ("learning_rate", "high", 0.01)
    assert made.expects.than == pytest.approx(falling(RATES[-1]), rel=1e-5)
    assert 0.5 < made.probability <= MAX_STATED_PROBABILITY  # the trend is steep, and half of the next trials lie beyond


def test_nothing_is_better_than_a_perfect_score():
    results = [1 - max(0.0, falling(r) - falling(RATES[-1])) for r in RATES]
    study = round_of(RATES, results, study="s", direction="maximize")
    made = [p.expects for p in next_studies(study, "space-boundary")[0].predictions]
    assert [type(e) for e in made] == [BestBeyond]
    assert made[0].than is None


def test_many_bad_trials_do_not_hide_the_gain_that_the_good_ones_show():
    bad_rates, good_rates = np.geomspace(1e-5, 6e-4, 8), np.geomspace(1.2e-3, 8e-3, 5)
    rates = [float(r) for r in (*bad_rates, *good_rates)]
    noise = np.random.default_rng(0).normal(0, 0.002, len(rates))
    results = [0.05 + 0.85 / (1 + (r / 2e-3) ** 2) + e for r, e in zip(rates, noise, strict=True)]
    (made,) = next_studies(round_of(rates, results, study="s"), "space-boundary")[0].predictions
    assert isinstance(made.expects, BestBeyond)
    assert made.probability > 0.75


def test_a_forecast_requires_the_lead_that_the_judgement_requires():
    study = round_of(RATES, [falling(r) for r in RATES], study="s")
    spec = next_studies(study, "space-boundary")[0]
    expects = spec.predictions[0].expects
    chances = [predict._chance_of_best_beyond(study, spec, expects.model_copy(update={"noise": sd})) for sd in (0.0, 0.02, 1.0)]
    assert chances[0] > chances[1] > chances[2] == 0


@pytest.mark.parametrize(("top", "kinds"), [(0.8, [BestBeyond]), (0.98, [])])
def test_a_lead_that_no_result_can_reach_is_not_predicted(top, kinds):
    results = [top - falling(r) + falling(RATES[-1]) + noise for noise in (-0.01, 0.01) for r in RATES]
    study = round_of(RATES * 2, results, study="s", direction="maximize", seeds=[0] * 12 + [1] * 12)
    made = [p.expects for p in next_studies(study, "space-boundary")[0].predictions]
    assert [type(e) for e in made] == kinds


def test_true_and_false_predictions_are_judged():
    study = round_of(RATES, [falling(r) for r in RATES], study="s")
    first = next_studies(study, "space-boundary")[0]
    low, high = first.parameters["learning_rate"].low, first.parameters["learning_rate"].high
    wider = [float(r) for r in np.geomspace(low, high, 12)]
    for optimum, judged in ((0.05, "kept"), (0.003, "not kept")):
        later = round_of(wider, [falling(r, optimum) for r in wider], low=low, high=high, predictions=first.predictions)
        assert [o.judged for o in judge_predictions(later, lambda _: None)] == [judged]


def test_a_cut_range_predicts_fewer_failures():
    rates = [float(r) for r in np.geomspace(1e-4, 1e-2, 24)]
    study = round_of(rates, [math.nan if r > 3e-3 else 0.3 + abs(math.log10(r / 6e-4)) for r in rates])
    (made,) = [p for p in next_studies(study, "space-infeasible")[0].predictions if p.rule == "space-infeasible"]
    assert isinstance(made.expects, ShareOfTrials)
    assert made.expects.at_most < made.expects.was == pytest.approx(6 / 24, abs=0.1)
    assert made.probability >= 0.9


def test_repeats_predict_nothing():
    study = round_of(RATES, [falling(r) for r in RATES])
    again = repeat_best_trial(study, initial_draft(study))
    assert add_predictions(study, judge(study, RULES), [again], RULES)[0].predictions == ()


def test_without_a_change_there_is_no_prediction():
    study = round_of(RATES, [falling(r) for r in RATES])
    verdicts = [verdict("space-boundary", study)]
    assert add_predictions(study, verdicts, [study.spec])[0].predictions == ()


CLIP = RunPlan(plan="clip", numbers={"p90": 2.0, "median": 1.0, "norms": 500}, why="the loss jumps")
LONG_RUNS = RunPlan(plan="rounds", why="training is limited by compute")
DROPOUT = AddParameter(name="dropout", parameter=Parameter(type="float", low=0.0, high=0.5))


@pytest.mark.parametrize(
    ("asked", "final", "settled"),
    [
        # A design that only advises changes no study; the study of long runs settles the finding that requested it.
        ([("compute", "steps", LONG_RUNS), ("gap", "regularisation", DROPOUT)], None, [["gap"]]),
        ([("compute", "steps", LONG_RUNS), ("gap", "regularisation", DROPOUT)], 20_000, [["compute"], ["gap"]]),
        # Clipping belongs to the first study that clips.
        ([("jumps", "stability", CLIP), ("gap", "regularisation", DROPOUT)], None, [["jumps"], ["gap"]]),
    ],
)
def test_a_design_predicts_for_its_own_study_only(asked, final, settled):
    middle = float(np.median(RATES))  # at an end, the range of the rate would be moved before dropout is added
    study = round_of(RATES, [falling(r, middle) for r in RATES], max_train_steps=1000, final_train_steps=final)
    verdicts = [found(*a) for a in asked]
    specs = add_predictions(study, verdicts, plan(study, verdicts).specs)
    assert [[p.rule for p in spec.predictions] for spec in specs] == settled


def test_longer_training_predicts_a_value_that_the_curves_promise():
    steps = np.arange(1, 41)
    curves = [0.2 + 0.01 * i + 0.8 * np.exp(-steps / 25) + 0.001 * np.cos(9 * steps + i) for i in range(8)]
    study = make_study([{"learning_rate": r} for r in RATES[:8]], {"val/loss": curves}, tags=[{"max_train_steps": "4000"}] * 8)
    first = next_studies(study, "curve-still-improving")[0]
    (made,) = first.predictions
    assert isinstance(made.expects, BestReaches)
    best = float(curves[0].min())
    truth = 0.2 + 0.8 * math.exp(-first.max_train_steps / 100 / 25)
    assert truth - 0.03 < made.expects.expected < made.expects.value < best
    assert made.probability == 0.95


def test_longer_training_has_the_forecast_of_the_finding():
    steps = np.arange(1, 41)
    # The trials slow down at different rates, so that each has a forecast of its own.
    curves = [0.2 + 0.03 * i + 0.8 * np.exp(-steps / (25 - i)) + 0.001 * np.cos(9 * steps + i) for i in range(8)]
    params = [{"learning_rate": r} for r in RATES[:8]]
    study = make_study(params, {"val/loss": curves}, tags=[{"max_train_steps": "4000"}] * 8)
    finding = verdict("curve-still-improving", study).findings[0]
    ending = next(
        e
        for e in curve_tails.best_curve_endings(study, curve_tails.NUMBER_OF_BEST_TRIALS, curve_tails.MAX_DISTANCE_FROM_BEST)
        if e.trial.id == finding.trials[0]
    )
    first = next_studies(study, "curve-still-improving")[0]
    (made,) = first.predictions
    part = ending.end.share_of_forecast_gain(first.max_train_steps / 4000)
    assert isinstance(made.expects, BestReaches)
    assert made.expects.expected == pytest.approx(
        curve_tails.forecast_longer_training(study, ending, part).point_forecast, rel=0.01
    )
    few = first.model_copy(update={"trials": 1})  # one other draw may well be worse than the best trial
    (bound,) = add_predictions(study, [verdict("curve-still-improving", study)], [few], RULES)[0].predictions
    assert isinstance(bound.expects, BestReaches)
    assert (bound.expects.value, bound.probability) == (bound.expects.than, None)


def test_a_rule_without_a_prediction_of_its_own_expects_to_find_nothing_again():
    rates = [float(r) for r in np.geomspace(1e-4, 1e-2, 12)]
    study = round_of(rates, [falling(r, 1e-3) for r in rates])
    verdicts = judge(study, RULES)
    for spec in add_predictions(study, verdicts, plan(study, verdicts).specs):
        for made in spec.predictions:
            assert made.rule in {r.rule_id() for r in RULES}
            if isinstance(made.expects, Settled):
                assert any(str(f.message) == made.expects.was for v in verdicts for f in v.findings)


@pytest.mark.parametrize(
    ("low", "high", "made"),
    [(1e-5, 1e-2, True), (3e-5, 1e-2, True), (1e-4, 1e-2, False), (1e-3, 1e-2, False), (1e-4, 1.0, False)],
)
def test_a_range_is_widened_if_its_end_moves_the_same_way(low, high, made):
    before, after = (
        StudySpec(study="s", objective=AIM, parameters={"lr": Parameter(low=a, high=b, scale="log")})
        for a, b in ((1e-4, 1e-2), (low, high))
    )
    change = SetRange(parameter="lr", low=1e-5, high=1e-2, scale="log", why="because")
    assert is_change_made(change, before, after) is made


@pytest.mark.parametrize(("stated", "written"), [(0.0, 0.01), (0.4567, 0.457), (1.0, 0.99)])
def test_a_written_probability_is_never_0_or_1(stated, written):
    expects = BestBeyond(parameter="lr", side="high", end=0.1, noise=0.0)
    finding = found("space-boundary", "boundary").findings[0]
    assert predict._rounded_prediction(finding, expects, stated).probability == pytest.approx(written)


def test_a_prediction_is_no_surer_than_its_finding_and_an_end_that_stays_has_none():
    study = round_of(RATES, [falling(r) for r in RATES], study="s")
    said = verdict("space-boundary", study)
    (finding,) = said.findings
    doubted = said.model_copy(update={"findings": (finding.model_copy(update={"confidence": 0.55}),)})
    (spec,) = plan(study, [doubted], RULES).specs
    (made,) = add_predictions(study, [doubted], [spec], RULES)[0].predictions
    assert made.probability == 0.55
    rounded = SetRange(parameter="learning_rate", low=1e-4, high=0.010001, scale="log", why="w").apply(spec)
    assert add_predictions(study, [doubted], [rounded], RULES)[0].predictions == ()


def test_findings_of_one_rule_that_predict_the_same_are_counted_once():
    study = fixed_as_unimportant()
    verdicts = [
        found("space-insensitive", "sampling", FixParameter(parameter=n, value=0.1, why="w"), subject=n)
        for n in ("momentum", "dropout")
    ]
    spec = study.spec.model_copy(update={"trials": 24})
    for v in verdicts:
        spec = v.findings[0].changes[0].apply(spec)
    (made,) = add_predictions(study, verdicts, [spec], RULES)[0].predictions
    assert isinstance(made.expects, BestReaches)


def test_hyperparameters_that_are_fixed_hide_no_trial_from_a_forecast():
    study = fixed_as_unimportant()
    cut = SetRange(parameter="learning_rate", low=1e-4, high=1e-3, scale="log", why="w")
    verdicts = [
        found("space-infeasible", "infeasible", cut, subject="learning_rate", side="high"),
        found("space-insensitive", "sampling", FixParameter(parameter="dropout", value=0.1, why="w"), subject="dropout"),
    ]
    spec = study.spec
    for v in verdicts:
        spec = v.findings[0].changes[0].apply(spec)
    made = next(p for p in add_predictions(study, verdicts, [spec], RULES)[0].predictions if p.rule == "space-infeasible")
    assert made.probability >= 0.9
    assert made.expects.at_most <= 0.15


def fixed_as_unimportant():
    """A study of 24 trials that fail at high learning rates."""
    rng = np.random.default_rng(0)
    space = {
        "learning_rate": Parameter(low=1e-4, high=1e-2, scale="log"),
        "momentum": Parameter(low=0.0, high=0.9),
        "dropout": Parameter(low=0.0, high=0.5),
    }
    params = [{n: p.value_at_position(float(rng.random())) for n, p in space.items()} for _ in range(24)]
    fails = [p["learning_rate"] > 2e-3 for p in params]
    curves = [[1.0, math.nan if bad else 0.3 + 0.1 * p["learning_rate"]] for p, bad in zip(params, fails, strict=True)]
    return make_study(params, {"val/loss": curves}, space=space, status=["diverged" if f else "complete" for f in fails])

"""curve-best-is-regularised-by-accident: a low learning rate wins, where higher ones train better and overfit."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.engine.explain import find_cause
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.spec import Parameter
from advisor_rules.curves.curve_best_is_regularised_by_accident import rank_correlation_p

RULE = "curve-best-is-regularised-by-accident"
T = np.linspace(0, 1, 30)
RATES = 10.0 ** np.linspace(-5, -1, 10)
PLACE = np.linspace(0, 1, 10)
OVERFIT = 0.6 * np.maximum(PLACE - 0.15, 0)
"""How much each trial overfits, by the place of its learning rate."""


def study(overfit=OVERFIT, seed=0, rates=RATES, others=None, **kwargs):
    """Trials that train the faster, the higher their rate; `overfit`: how far validation rises again, and stays behind."""
    rng = np.random.default_rng(seed)
    valid, train = [], []
    for rate, rise in zip(rates, overfit, strict=True):
        speed = 1 + 3 * (np.log10(rate) + 5)
        knee = min(2.5 / speed, 0.9)
        fall = np.exp(-speed * T)
        rising = rise * np.maximum(T - knee, 0)
        valid.append(0.5 + 0.5 * fall + rising + 0.3 * rise + 0.005 * rng.standard_normal(len(T)))
        train.append(fall + 0.005 * rng.standard_normal(len(T)))
    params = [{"lr": float(r)} | (others[i] if others else {}) for i, r in enumerate(rates)]
    return make_study(params, {"val/loss": valid, "train/loss": train}, **kwargs)


def example():
    """Only the two lowest rates do not overfit, and one of them wins."""
    return study(np.where(PLACE < 0.15, 0.0, 0.4 + OVERFIT))


def test_a_low_rate_that_wins_because_the_others_overfit():
    shown = example()
    assert shown.ranked()[0].index < 3
    (finding,) = verdict(RULE, shown).findings
    assert (finding.severity, finding.subject, finding.side, finding.goal) == ("warning", "lr", "low", "boundary")
    assert finding.confidence > 0.95
    assert finding.trials[0] == shown.ranked()[0].id
    added = {c.name: c for c in finding.changes if c.kind == "add"}
    assert set(added) == {"dropout"}
    spec = added["dropout"].apply(shown.spec)
    assert spec.parameters["dropout"].options == (0.0, 0.1, 0.3)
    assert spec.parameters["lr"] == shown.spec.parameters["lr"]
    assert any("lr again" in c.text for c in finding.changes if c.kind == "advise")


def test_it_explains_the_boundary_and_the_overfitting():
    space = {"lr": Parameter(low=1e-5, high=0.1, scale="log")}
    shown = study(np.where(PLACE < 0.15, 0.0, 0.4 + OVERFIT), space=space)
    wanted = {RULE, "space-boundary", "curve-overfitting"}
    verdicts = {v.rule: v for v in judge(shown, [r for r in load_rules() if r.rule_id() in wanted])}
    findings = [f for v in verdicts.values() for f in v.findings]
    (accident,) = verdicts[RULE].findings
    for rule in ("curve-overfitting", "space-boundary"):
        for finding in verdicts[rule].findings:
            assert find_cause(finding, findings) == accident, rule
    assert verdicts["curve-overfitting"].findings


def test_quiet_where_the_best_trial_overfits_too():
    assert verdict(RULE, study(np.full(10, 0.4))).status == "quiet"


def test_quiet_where_no_trial_overfits():
    assert verdict(RULE, study(np.zeros(10))).status == "quiet"


def test_quiet_where_a_middle_rate_wins():
    assert verdict(RULE, study(np.where(PLACE < 0.6, 0.0, 0.5))).status == "quiet"


def test_quiet_where_the_training_of_higher_rates_is_no_better():
    shown = example()
    valid = [np.asarray(shown.metric(t, "val/loss").values) for t in shown.trials]
    alike = make_study([dict(t.params) for t in shown.trials], {"val/loss": valid, "train/loss": [list(2 - T)] * 10})
    assert verdict(RULE, alike).status == "quiet"


def test_quiet_where_a_searched_regulariser_decides():
    rng = np.random.default_rng(1)
    drops = rng.permutation(10) / 20
    others = [{"dropout": float(d)} for d in drops]
    order = np.argsort(np.argsort(-drops))
    rates = RATES[order]
    amount = np.where(drops > 0.35, 0.0, 0.4 + 0.8 * (0.5 - drops))
    assert verdict(RULE, study(amount, rates=rates, others=others)).status == "quiet"


def test_it_cannot_tell_without_rates_trials_or_training_curves():
    one_rate = make_study([{"momentum": 0.1 * i} for i in range(6)], {"val/loss": [2 - T] * 6, "train/loss": [2 - T] * 6})
    for shown in (one_rate, study(OVERFIT[:4], rates=RATES[:4]), study(np.zeros(6), rates=[0.01] * 6)):
        said = verdict(RULE, shown)
        assert said.status == "not-assessed"
        assert "5 trials" in said.reason
    bare = make_study([{"lr": 0.1 * i} for i in range(1, 7)], {"val/loss": [2 - T] * 6})
    assert "log the training loss" in verdict(RULE, bare).reason


def test_failed_trials_and_ties_change_nothing():
    rates = np.repeat(RATES[[0, 2, 4, 6, 8]], 2)
    shown = study(np.where(PLACE < 0.15, 0.0, 0.8 + OVERFIT), rates=rates, status=["complete"] * 9 + ["diverged"])
    assert verdict(RULE, shown).status == "fired"


@pytest.mark.parametrize("count", [5, 10])
def test_it_keeps_its_promise_where_overfitting_has_nothing_to_do_with_the_rate(count):
    fired = 0
    for seed in studies(150):
        rng = np.random.default_rng(seed)
        rates = 10.0 ** rng.uniform(-5, -1, count)
        fired += verdict(RULE, study(0.4 * rng.integers(0, 2, count), seed, rates)).status == "fired"
    assert fired <= scaled(0.05 * 150, of=150)


def test_the_correlation_is_exact_for_few_and_agrees_for_more():
    up = np.arange(5.0)
    assert rank_correlation_p(up, up, "greater") == pytest.approx(1 / 120)
    assert rank_correlation_p(up, up, "less") == 1.0
    assert rank_correlation_p(up, np.ones(5), "greater") == 1.0
    nine = np.array([1.0, 2, 3, 4, 5, 6, 7, 9, 8])
    assert rank_correlation_p(nine, np.arange(9.0), "greater") < 1e-4

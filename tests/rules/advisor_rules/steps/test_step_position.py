"""The rule `step-position`."""

import numpy as np
import pytest
from promise import kept, scaled, studies
from studies import lacking, make_study, verdict

N = 40
T = np.arange(1, N + 1) / N
RULE = "step-position"


def study(curves, **options):
    """Return a study at constant learning rates: only there does a straight fall say that more steps help."""
    lrs = [0.1 * (i + 1) for i in range(len(curves))]
    logged = {"val/loss": curves, "train/learning_rate": [np.full(len(c), lr) for c, lr in zip(curves, lrs, strict=True)]}
    return make_study([{"lr": lr} for lr in lrs], logged, **options)


def bowl(at, seed=0):
    """A curve whose best step is at the share `at` of training."""
    return np.abs(T - at) + 1 + np.random.default_rng(seed).normal(0, 0.002, N)


def falling(slope, seed=0):
    return 2 - slope * T + np.random.default_rng(seed).normal(0, 0.002, N)


def one_settled_of_five():
    """The best trial settles early, so only it ends near the best; the other good trials improve to their end."""
    settled = 1 + np.maximum(1 - T / 0.4, 0) + np.random.default_rng(9).normal(0, 0.01, N)
    return [settled, *(falling(0.7, i) for i in range(4))]


def example():
    return study(one_settled_of_five())


def test_late_best_steps_ask_for_longer_training_if_more_steps_help():
    shown = example()
    assert verdict("curve-still-improving", shown).status == "quiet"
    (finding,) = verdict(RULE, shown).findings
    assert finding.side == "high"
    assert finding.severity == "warning"
    assert len(finding.trials) >= 4
    assert finding.confidence > 0.75
    assert 6000 <= finding.changes[0].apply(shown.spec).max_train_steps <= 12000


def test_a_decayed_learning_rate_explains_late_best_steps():
    rates = [np.linspace(0.1, 0, N)] * 5
    bending = [1.3 + np.exp(-4 * T) + 1e-4 * bump for bump in np.random.default_rng(0).normal(0, 1, (4, N))]
    weak = [one_settled_of_five()[0], *bending]
    assert verdict(RULE, study(weak)).findings[0].severity == "warning"
    assert decayed(weak, rates).status == "quiet"
    assert decayed(one_settled_of_five(), rates).status == "quiet"


def decayed(curves, rates):
    return verdict(RULE, make_study([{"lr": 0.1}] * len(curves), {"val/loss": curves, "train/learning_rate": rates}))


def test_the_number_is_left_to_curve_still_improving():
    shown = study([falling(0.7, i) for i in range(5)])
    assert verdict("curve-still-improving", shown).status == "fired"
    (finding,) = verdict(RULE, shown).findings
    assert finding.severity == "note"
    assert finding.confidence == 0.95
    assert [c.kind for c in finding.changes] == ["advise"]


@pytest.mark.parametrize("logged", ["rate", "schedule", "nothing"])
def test_a_healthy_decay_to_zero_is_no_warning(logged):
    """Cosine schedules with an optimum inside the space: the best step is last by the schedule alone."""
    rng = np.random.default_rng(0)
    shape, decay = 0.75 * np.exp(-8 * T) + 0.125 * (1 + np.cos(np.pi * T)), (1 + np.cos(np.pi * T)) / 2
    findings = []
    for _ in studies(60):
        lr = 10 ** rng.uniform(-4, -1, 24)
        final = 0.12 + 0.06 * (np.log10(lr) + 2.5) ** 2 + rng.normal(0, 0.003, 24)
        noise = 0.004 * (1 - 0.7 * T) * rng.normal(0, 1, (24, N))
        metrics = {"val/loss": list(final[:, None] + (0.9 - final[:, None]) * shape + noise)}
        if logged == "rate":
            metrics["train/learning_rate"] = list(lr[:, None] * decay)
        tags = [{"schedule": '{"kind": "warmup+cosine"}'}] * 24 if logged == "schedule" else None
        findings += verdict(RULE, make_study([{"lr": float(x)} for x in lr], metrics, tags=tags)).findings
    if logged != "nothing":
        assert findings == []
        return
    assert len(findings) > scaled(50, of=60)
    assert {f.severity for f in findings} == {"note"}
    assert {c.kind for f in findings for c in f.changes} == {"advise"}


def test_few_evaluations_are_not_assessed():
    for count in (1, 2, 5):
        curves = [np.linspace(1, 0.5 + 0.01 * i, count) for i in range(12)]
        assert "evaluate more often" in lacking(RULE, study(curves))


def test_early_best_steps_ask_for_shorter_training():
    curves = [np.minimum(20 * (0.05 - T), 0) * -0.02 + np.where(T < 0.03, 1, 0) + 1 for _ in range(3)]
    (finding,) = verdict(RULE, study(curves)).findings
    assert finding.side == "low"
    spec = finding.changes[0].apply(study(curves).spec)
    assert 0.05 * 4000 < spec.max_train_steps <= 0.3 * 4000


def test_training_that_only_gets_worse_is_no_question_of_steps():
    (finding,) = verdict(RULE, study([1 + T, 1 + 2 * T, 1 + np.sqrt(T)])).findings
    assert finding.side == "low"
    assert "first evaluation" in finding.message
    assert all(c.kind == "advise" for c in finding.changes)


def test_a_constant_rate_should_decay_before_the_training_is_longer_unless_curves_end_flat():
    rates = [np.full(N, 0.1)] * 4
    noisy = [2 - 0.7 * T + np.random.default_rng(i).normal(0, 0.03, N) for i in range(4)]
    flat = [100 * np.exp(-T / 0.02) - 0.01 * T * (i + 1) for i in range(4)]
    (finding,) = decayed(flat, rates).findings
    assert "Do not train longer" in finding.action
    for finding in decayed(noisy, rates).findings:
        assert "too flat" not in finding.action


def test_late_without_gain_is_a_note():
    curves = [100 * np.exp(-T / 0.02) - 0.01 * T * (i + 1) for i in range(4)]
    (finding,) = verdict(RULE, study(curves)).findings
    assert finding.severity == "note"
    assert finding.changes[0].kind == "advise"


QUIET = {
    "in the middle": [bowl(0.6, i) for i in range(5)],
    "mixed": [bowl(at, i) for i, at in enumerate([0.2, 0.9, 0.5, 1.0, 0.4])],
    "two late ones": [bowl(1, 0), bowl(1, 1)],
    "late only in poor trials": [bowl(0.5, 0), bowl(0.5, 1)] + [1.95 - 0.1 * T] * 3,
    "one good trial peaks late": [bowl(at, i) for i, at in enumerate((0.3, 0.35, 0.25, 0.4, 0.7))],
    "flat ends": [
        1 + np.maximum(0.3 - T, 0) + np.random.default_rng(i).normal(0, 0.01, N) - 0.03 * (np.abs(T - 0.4) < 0.02)
        for i in range(5)
    ],
}


@pytest.mark.parametrize("curves", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(curves):
    assert verdict(RULE, study(curves)).status == "quiet"


def test_a_single_trial_shows_nothing():
    assert lacking(RULE, study([bowl(1)]))


def test_places_are_shares_of_the_planned_steps():
    tags = [{"max_train_steps": "16000"}] * 3
    at_start = study([bowl(0.3, i) for i in range(3)], tags=tags)
    assert verdict(RULE, at_start).findings[0].side == "low"


def test_trials_cut_short_soon_after_their_best_step_do_not_count():
    stopped = study([bowl(1, i) for i in range(4)], status=["stopped"] * 4)
    assert lacking(RULE, stopped)


def test_negation_order_and_unit_do_not_matter():
    curves = [bowl(a, i) for i, a in enumerate([1.0, 0.97, 0.9, 1.0, 0.95])]
    one = verdict(RULE, study(curves)).findings[0]
    assert one.model_dump() == verdict(RULE, study([-c for c in curves], direction="maximize")).findings[0].model_dump()
    assert str(one.message) == verdict(RULE, study([1e5 * c for c in curves[::-1]])).findings[0].message


@pytest.mark.parametrize("null", ["anywhere", "plateau"])
@pytest.mark.parametrize("trials", [3, 6])
def test_keeps_its_promise(null, trials):
    rng = np.random.default_rng(trials)
    fired = 0
    for k in studies(150):
        if null == "anywhere":
            curves = [bowl(at, 1000 * k + i) for i, at in enumerate(rng.uniform(0, 1, trials))]
        else:
            curves = list(np.exp(-T / 0.05) + rng.normal(0, 0.02, (trials, N)))
        fired += verdict(RULE, study(curves)).status == "fired"
    assert kept(fired, len(studies(150)))


def test_early_stopping_sets_the_best_step():
    stopped = study([bowl(1, i) for i in range(4)], status=["early_stopped"] * 2 + ["complete"] * 2)
    found = verdict(RULE, stopped)
    assert found.status == "not-assessed"
    assert found.reason.startswith("2 of 4 trials stopped early")


@pytest.mark.parametrize("action", ["at half the length", "Do not train longer"])
def test_an_unknown_learning_rate_asks_for_the_run_that_tells(action):
    flat = [100 * np.exp(-T / 0.02) - 0.01 * T * (i + 1) for i in range(4)]
    curves = flat if action.startswith("Do not") else [falling(0.7, i) for i in range(4)]
    (finding,) = verdict(RULE, make_study([{"lr": 0.1 * (i + 1)} for i in range(4)], {"val/loss": curves})).findings
    assert action in finding.action


def test_curves_that_get_worse_after_the_first_half_shorten_training_as_a_note():
    places = (0.3, 0.35, 0.25, 0.4, 0.35)
    shown = study([bowl(at, i) for i, at in enumerate(places)])
    (finding,) = verdict(RULE, shown).findings
    assert (finding.severity, finding.side) == ("note", "low")
    before, after = shown.spec.max_train_steps, finding.changes[0].apply(shown.spec).max_train_steps
    assert 1.4 * 0.4 * before <= after <= 0.75 * before


def test_the_last_part_is_named_by_the_steps_that_were_measured():
    """With an evaluation after each tenth, the last 25 % are measured from the evaluation at 70 %."""
    steps = np.arange(0, 101, 10)
    curves = [2 - 0.01 * i - steps / 100 for i in range(5)]
    params = [{"lr": 0.1 * (i + 1)} for i in range(5)]
    found = verdict(RULE, make_study(params, {"val/loss": curves}, steps={"val/loss": [steps] * 5})).findings[0]
    assert "The last 30 % of training brought 30.0 % of the total gain" in found.message

"""The rule `stability-mid`."""

import re

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.planning import plan

RNG = np.random.default_rng(5)
STEPS = np.arange(0, 20_000, 50)
N = len(STEPS)


def falling(noise=0.05):
    return 0.5 + 2 * np.exp(-STEPS / 4000) + noise * RNG.normal(size=N)


def jumping(height=1.5, lasting=20, noise=0.05):
    loss = falling(noise)
    loss[200 : 200 + lasting] += height
    return loss


def study_of(losses, lrs=None, norms=None, extra=None, **kwargs):
    lrs = lrs or [0.1 * 2**i for i in range(len(losses))]
    curves = {"val/loss": [[x[-1]] for x in losses], "train/loss": losses}
    steps = {"train/loss": [STEPS] * len(losses), "val/loss": [[int(STEPS[-1])]] * len(losses)}
    for name, values in {"train/grad_norm": norms, **(extra or {})}.items():
        if values is not None:
            curves[name], steps[name] = values, [STEPS] * len(losses)
    return make_study([{"lr": lr} for lr in lrs], curves, steps=steps, **kwargs)


def example():
    norms = np.exp(0.1 * RNG.normal(size=N))
    norms[200:203] = 30
    return study_of([jumping()], norms=[norms])


def test_fires_on_a_jump_and_asks_for_clipping_at_the_90th_percentile():
    study = example()
    result = verdict("stability-mid", study)
    (finding,) = result.findings
    assert "at step 10,0" in finding.message
    assert "train/grad_norm" in finding.evidence[0].metrics
    sweep, spec = plan(study, [result]).specs  # a single setting: first sweep the rate, then search the threshold
    assert "grad_clip_norm" not in sweep.parameters
    clip = spec.parameters["grad_clip_norm"]
    tenth = np.quantile(study.curve(study.trials[0], "grad_norm").values[41:], 0.9)
    assert clip.scale == "log"
    assert clip.low < tenth < clip.high
    assert np.sqrt(clip.low * clip.high) == pytest.approx(tenth, rel=0.02)


def test_the_peak_is_shown_beside_the_level():
    loss = jumping(lasting=40)
    loss[200] = 9.0
    (finding,) = verdict("stability-mid", study_of([loss])).findings
    assert "(peak 9)" in finding.message
    assert re.search(r"to about 2\.\d+ ", str(finding.message))


def test_without_gradient_norms_the_advice_is_to_log_them():
    (finding,) = verdict("stability-mid", study_of([jumping()])).findings
    (change,) = finding.changes
    assert change.kind == "advise"
    assert "train/grad_norm" in change.text


@pytest.mark.parametrize("lasting", [2, 40, N])
def test_short_and_lasting_jumps_are_found(lasting):
    assert verdict("stability-mid", study_of([jumping(lasting=lasting)])).status == "fired"


def test_a_late_divergence_counts():
    loss = falling()
    loss[300:] = np.nan
    study = make_study(
        [{"lr": 0.1}],
        {"val/loss": [[1.0, np.nan]], "train/loss": [loss]},
        steps={"train/loss": [STEPS], "val/loss": [[5000, 19_000]]},
    )
    (finding,) = verdict("stability-mid", study).findings
    assert "not finite from step 15,000 on" in finding.message
    assert finding.severity == "critical"


def test_an_early_divergence_does_not():
    loss = falling()
    loss[5:] = np.nan
    study = make_study(
        [{"lr": 0.1}], {"val/loss": [[np.nan]], "train/loss": [loss]}, steps={"train/loss": [STEPS], "val/loss": [[19_000]]}
    )
    assert verdict("stability-mid", study).status != "fired"


def overfitting():
    return falling() + np.clip(STEPS - 8000, 0, None) / 15_000


QUIET = {
    "one odd minibatch": jumping(lasting=1),
    "slow overfitting": overfitting(),
    "periodic noise": falling() + 0.3 * np.sin(STEPS / 300),
    "always heavy-tailed": 0.5 + 2 * np.exp(-STEPS / 4000) + 0.3 * RNG.standard_t(2, size=N),
    "never learns": 2.3 + 0.1 * RNG.normal(size=N),
    "a small jump": jumping(height=0.1, noise=0.005),
}


@pytest.mark.parametrize("loss", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(loss):
    assert verdict("stability-mid", study_of([loss])).status == "quiet"


def test_a_restart_of_the_learning_rate_is_no_jump():
    rate = 0.1 * np.tile(0.5 * (1 + np.cos(np.linspace(0, np.pi, N // 2))), 2)
    loss = jumping(lasting=60)
    assert verdict("stability-mid", study_of([loss], extra={"train/learning_rate": [rate]})).status == "quiet"
    assert verdict("stability-mid", study_of([loss], extra={"train/learning_rate": [0 * rate + 0.1]})).status == "fired"


def test_evaluations_are_used_if_the_training_loss_is_too_short():
    accuracy = np.concatenate([np.linspace(0.2, 0.8, 30), np.full(30, 0.1)]) + 0.003 * RNG.normal(size=60)
    for sign, direction in ((1, "maximize"), (-1, "minimize")):
        study = make_study([{"lr": 0.1}], {"m": [sign * accuracy]}, objective="m", direction=direction)
        (finding,) = verdict("stability-mid", study).findings
        assert "The objective of trial-0" in finding.message, direction


def test_too_few_points_are_not_assessed():
    study = make_study([{"lr": 0.1}], {"val/loss": [[3.0, 2.0, 1.0]]})
    result = verdict("stability-mid", study)
    assert result.status == "not-assessed"
    assert "20 losses" in result.reason


def test_trials_with_far_higher_rates_are_not_judged():
    assert verdict("stability-mid", study_of([falling(), jumping(lasting=N)], [0.1, 9.0])).status == "quiet"
    assert verdict("stability-mid", study_of([falling(), jumping(lasting=N)], [0.1, 0.3])).status == "fired"


@pytest.mark.parametrize("kind", ["normal", "heavy", "autocorrelated"])
def test_it_keeps_its_promise(kind):
    fired = 0
    for _ in studies(80):
        losses = []
        for _ in range(3):
            noise = RNG.standard_t(3, size=N) if kind == "heavy" else RNG.normal(size=N)
            if kind == "autocorrelated":
                noise = np.convolve(noise, 0.8 ** np.arange(20))[:N]
            losses.append(falling(0) + 0.1 * noise)
        fired += verdict("stability-mid", study_of(losses)).status == "fired"
    assert fired <= scaled(7, of=80)


def test_it_says_how_much_of_the_gain_is_undone():
    (higher,) = verdict("stability-mid", study_of([jumping(height=8)])).findings
    assert "undid more than all its improvement" in higher.message
    (lower,) = verdict("stability-mid", study_of([jumping(height=1)])).findings
    assert re.search(r"undid \d\d % of its improvement", str(lower.message))


def test_a_rise_far_smaller_than_the_gain_of_the_best_trial_is_no_instability():
    stuck = 3 + 1e-3 * jumping()
    assert verdict("stability-mid", study_of([stuck])).status == "fired"
    assert verdict("stability-mid", study_of([falling(), stuck])).status == "quiet"


def evaluated(validation, loss):
    """One trial with `loss` and evaluations every 1,000 steps."""
    at = STEPS[19::20]
    curves = {"val/loss": [validation(at) + 0.004 * RNG.normal(size=len(at))], "train/loss": [loss]}
    return make_study([{"lr": 0.1}], curves, steps={"train/loss": [STEPS], "val/loss": [at]})


@pytest.mark.parametrize("lasting", [80, N])
def test_a_loss_that_changes_its_meaning_is_no_instability(lasting):
    better = evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000), jumping(lasting=lasting))
    assert verdict("stability-mid", better).status == "quiet"
    worse = evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000) + 0.8 * (at > 10_000), jumping(lasting=lasting))
    assert verdict("stability-mid", worse).status == "fired"


def test_stages_of_a_curriculum_are_no_instability_but_a_jump_between_them_is():
    staged = falling() + 0.5 * (STEPS > 6000) + 0.5 * (STEPS > 11_000) + 0.5 * (STEPS > 16_000)
    assert verdict("stability-mid", evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000), staged)).status == "quiet"
    staged[260:300] += 0.4
    hurt = evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000) + 0.5 * (at > 13_000) * (at <= 15_000), staged)
    (finding,) = verdict("stability-mid", hurt).findings
    assert "at step 13,0" in finding.message


def test_a_jump_between_two_evaluations_is_instability():
    study = evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000), jumping(lasting=10))
    assert verdict("stability-mid", study).status == "fired"


def test_evaluations_too_noisy_to_show_it_excuse_nothing():
    noisy = evaluated(lambda at: 0.6 + 2 * np.exp(-at / 6000) + 0.5 * RNG.normal(size=len(at)), jumping(lasting=N))
    assert verdict("stability-mid", noisy).status == "fired"


@pytest.mark.parametrize(("count", "rate", "severity"), [(5, 0.05, "critical"), (12, 0.2, "warning"), (12, 0.05, "note")])
def test_one_of_many_that_is_none_of_the_best_is_a_warning_at_a_higher_rate_and_else_a_note(count, rate, severity):
    losses = [falling() for _ in range(count - 1)] + [jumping()]
    finals = [0.1 + 0.01 * i for i in range(count - 1)] + [1.0]
    study = make_study(
        [{"lr": 0.1}] * (count - 1) + [{"lr": rate}],
        {"val/loss": [[1.0, f] for f in finals], "train/loss": losses},
        steps={"train/loss": [STEPS] * count, "val/loss": [[5000, 19_000]] * count},
    )
    (finding,) = verdict("stability-mid", study).findings
    assert (finding.severity, finding.side) == (severity, "low" if rate < 0.1 else None)


@pytest.mark.parametrize(("places", "later"), [(1, 0), (3, 0), (1, 1)])
def test_an_evaluation_that_fails_beside_a_finite_training_loss_is_no_instability(places, later):
    losses = [falling() for _ in range(6)]
    evaluations = [loss[::40].copy() for loss in losses]
    evaluations[2][-places:] = np.nan
    at = STEPS[::40]
    steps = {"train/loss": [STEPS[: at[-1] // 50 + 1]] * 6, "val/loss": [at + later] * 6}
    curves = {"train/loss": [loss[: at[-1] // 50 + 1] for loss in losses], "val/loss": evaluations}
    study = make_study([{"lr": 0.1 * 2**i} for i in range(6)], curves, steps=steps)
    assert verdict("stability-mid", study).status == "quiet"


def test_a_loss_that_ends_with_its_evaluations_still_shows_a_divergence():
    losses = [falling() for _ in range(6)]
    losses[2][300:] = np.nan
    evaluations = [loss[::40].copy() for loss in losses]
    steps = {"train/loss": [STEPS] * 6, "val/loss": [STEPS[::40]] * 6}
    study = make_study([{"lr": 0.1 * 2**i} for i in range(6)], {"train/loss": losses, "val/loss": evaluations}, steps=steps)
    assert verdict("stability-mid", study).status == "fired"


@pytest.mark.parametrize("trials", [3, 4, 12])
def test_a_jump_that_all_trials_share_is_of_the_schedule_or_the_data(trials):
    assert verdict("stability-mid", study_of([jumping() for _ in range(trials)])).status == "quiet"


def test_jumps_at_steps_of_their_own_are_instability_beside_shared_ones():
    losses = [jumping() for _ in range(8)]
    losses[0][300:320] += 1.5
    (finding,) = verdict("stability-mid", study_of(losses)).findings
    assert finding.trials == ("run0",)
    assert re.search(r"at step 1[45],\d", str(finding.message))


def test_restarts_of_a_schedule_as_long_as_each_trial():
    curves, steps = [], []
    for n in (200, 300, 400, 250, 350, 280):
        t = np.linspace(0, 1, n)
        saw = sum(np.where(t >= b, np.exp(-12 * (t - b)), 0) for b in (0.25, 0.5, 0.75))
        curves.append(0.5 + 2 * np.exp(-6 * t) + saw + 0.03 * RNG.normal(size=n))
        steps.append(np.arange(n))
    ends = [[c[-1]] for c in curves]
    made = make_study(
        [{"lr": 0.1 / (i + 1)} for i in range(6)],
        {"val/loss": ends, "train/loss": curves},
        steps={"train/loss": steps, "val/loss": [[s[-1]] for s in steps]},
    )
    assert verdict("stability-mid", made).status == "quiet"


def test_a_collapse_is_found_in_spite_of_its_own_noise():
    value = 0.5 + 2 * np.exp(-np.arange(60) / 8) + 0.02 * RNG.normal(size=60)
    value[26:] = 2.4 * np.exp(0.3 * RNG.normal(size=34))
    made = make_study([{"lr": 0.1}], {"val/loss": [value]})
    (finding,) = verdict("stability-mid", made).findings
    assert finding.severity == "critical"


def clipping_at(threshold, middle=1.0):
    norms = middle * np.exp(0.1 * RNG.normal(size=N))
    curves = {"val/loss": [[0.5]], "train/loss": [jumping()], "train/grad_norm": [norms]}
    steps = {"train/loss": [STEPS], "val/loss": [[int(STEPS[-1])]], "train/grad_norm": [STEPS]}
    return make_study([{"lr": 0.1, "grad_clip": threshold}], curves, steps=steps)


def test_a_trial_that_clips_most_updates_is_not_asked_to_clip():
    (finding,) = verdict("stability-mid", clipping_at(0.5)).findings
    assert "more than 50 % of the updates are clipped already" in finding.action
    assert [c.kind for c in finding.changes] == ["advise"]


def test_a_trial_that_clips_too_high_is_asked_for_a_smaller_norm():
    (finding,) = verdict("stability-mid", clipping_at(20.0)).findings
    assert str(finding.action).startswith("Clip at a smaller norm.")


def test_a_collapse_in_finite_values_is_described_by_its_values():
    accuracy = np.concatenate([np.linspace(0.1, 0.9, 20), np.full(20, 0.1)])
    fine = np.linspace(0.1, 0.95, 40)
    study = make_study([{"lr": 0.1}, {"lr": 0.05}], {"val/acc": [accuracy, fine]}, objective="val/acc", direction="maximize")
    assert study.trials[0].status == "diverged"
    (finding,) = verdict("stability-mid", study).findings
    assert "went back from 0.9 at step 2,000 to 0.1 at its end, step 4,000" in finding.message
    assert "not finite" not in str(finding.evidence)


def test_a_diverged_trial_without_a_value_that_is_not_finite_says_so():
    study = study_of([falling(), falling()], status=["diverged", "complete"])
    (finding,) = verdict("stability-mid", study).findings
    assert "ends with the status diverged at step 19,950" in finding.message

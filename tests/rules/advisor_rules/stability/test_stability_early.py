"""The rule `stability-early`."""

import re

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan

RNG = np.random.default_rng(3)
STEPS = np.concatenate([np.arange(500), np.arange(500, 10_000, 20)])


def healthy(noise=0.05, steps=STEPS):
    return 2.3 * np.exp(-np.asarray(steps) / 2000) + 0.5 + noise * RNG.normal(size=len(steps))


def blown(height=4.0, steps=STEPS):
    """Rises early, recovers by step 900."""
    return healthy(steps=steps) + height * np.clip(np.asarray(steps) / 60, 0, 1) * np.exp(-np.asarray(steps) / 300)


def study_of(losses, lrs=None, *, steps=STEPS, status=None, objective=None, direction="minimize", **kwargs):
    lrs = lrs or [0.1 * 3**i for i in range(len(losses))]
    evaluated = objective or [
        np.nanmin(np.where(np.isfinite(x), x, np.nan)) if np.isfinite(x).any() else np.nan for x in losses
    ]
    return make_study(
        [{"lr": lr} for lr in lrs],
        {"val/loss": [[e] for e in evaluated], "train/loss": losses},
        steps={"train/loss": [steps[: len(x)] for x in losses], "val/loss": [[int(steps[len(x) - 1])] for x in losses]},
        status=status,
        direction=direction,
        **kwargs,
    )


def example():
    return study_of([healthy(), blown()], objective=[0.5, 0.9])


def test_fires_on_a_rise_that_recovers_and_asks_for_a_warmup():
    study = example()
    result = verdict("stability-early", study)
    assert result.status == "fired"
    (finding,) = result.findings
    assert finding.trials == ("run1",)
    assert finding.severity == "warning"
    assert finding.confidence > 0.95
    assert "(3 times" in finding.message
    (spec,) = plan(study, [result]).specs
    assert (spec.probe, spec.parameters["lr"].value) == ("warmup", pytest.approx(3.0))
    assert spec.parameters["warmup_steps"].choices == (10, 50, 200, 998)
    assert spec.baseline.parameters == plan(study, []).specs[0].parameters | {"lr": spec.baseline.parameters["lr"]}


def test_the_best_trial_itself_makes_it_critical():
    (finding,) = verdict("stability-early", study_of([blown(), healthy()], objective=[0.5, 0.9])).findings
    assert finding.severity == "critical"


def test_a_single_run_is_judged():
    assert verdict("stability-early", study_of([blown()])).status == "fired"
    assert verdict("stability-early", study_of([healthy()])).status == "quiet"


def test_not_a_number_early():
    loss = healthy()
    loss[40:] = np.nan
    study = study_of([healthy(), loss], objective=[0.5, float("nan")])
    (finding,) = verdict("stability-early", study).findings
    assert "not finite from step 40 on" in finding.message
    assert finding.trials == ("run1",)


def test_a_run_that_ended_with_its_divergence():
    loss = np.append(2.3 + 0.3 * np.arange(12.0), np.nan)
    study = study_of([loss], objective=[float("nan")])
    assert verdict("stability-early", study).status == "fired"


def test_a_tagged_divergence_without_a_non_finite_value():
    loss = healthy()[:60]
    tags = [{"max_train_steps": "10000"}]
    study = study_of([loss], status=["diverged"], objective=[2.0], tags=tags)
    assert verdict("stability-early", study).status == "fired"


def test_a_divergence_far_above_the_best_rate_proves_nothing():
    loss = healthy()
    loss[40:] = np.nan
    study = study_of([healthy(), loss], [0.1, 5.0], objective=[0.5, float("nan")])
    assert verdict("stability-early", study).status == "quiet"
    assert verdict("stability-early", study, reach=100.0).status == "fired"


def changed(at, values):
    loss = healthy()
    loss[at] = values
    return loss


QUIET = {
    "a first step that overshoots and is back": changed(slice(1, 4), [17, 6, 3.5]),
    "never learns": 2.3 + 0.05 * RNG.normal(size=len(STEPS)),
    "a late divergence": changed(slice(-100, None), np.nan),
}


@pytest.mark.parametrize("loss", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(loss):
    assert verdict("stability-early", study_of([loss], objective=[loss[-1]])).status == "quiet"


def test_a_blank_evaluation_is_no_divergence():
    study = make_study(
        [{"lr": 0.1}],
        {"val/loss": [[2.0, np.nan, np.nan]], "train/loss": [healthy()]},
        steps={"train/loss": [STEPS], "val/loss": [[100, 200, 300]]},
        status=["complete"],
    )
    assert verdict("stability-early", study).status == "quiet"


def test_sparse_logging_is_not_assessed_unless_it_shows_an_instability_all_the_same():
    sparse = np.arange(0, 100_000, 1000)
    fine = study_of([healthy(steps=sparse)], steps=sparse)
    result = verdict("stability-early", fine)
    assert result.status == "not-assessed"
    assert "every step of the first 500" in result.reason
    loss = healthy(steps=sparse)
    loss[1:] = np.nan
    assert verdict("stability-early", study_of([loss], steps=sparse, objective=[float("nan")])).status == "fired"


def test_without_a_loss_it_cannot_tell():
    study = make_study([{"lr": 0.1}], {"val/accuracy": [[0.5]]}, objective="val/accuracy", direction="maximize")
    assert verdict("stability-early", study).status == "not-assessed"


def test_an_objective_alone_is_judged_either_way_up():
    accuracy = np.concatenate([[0.5], np.full(8, 0.11) + 0.005 * RNG.normal(size=8), np.linspace(0.2, 0.8, 91)])
    for sign, direction in ((1, "maximize"), (-1, "minimize")):
        study = make_study([{"lr": 0.1}], {"m": [sign * accuracy]}, objective="m", direction=direction, every=10)
        assert verdict("stability-early", study).status == "fired", direction


def test_a_warmup_given_as_a_share_keeps_its_unit():
    space = {"lr": Parameter(low=0.01, high=1, scale="log"), "warmup_share": Parameter(role="fixed", value=0.02, type="float")}
    study = make_study(
        [{"lr": 0.1, "warmup_share": 0.02}],
        {"val/loss": [[1.0]], "train/loss": [blown()]},
        steps={"train/loss": [STEPS], "val/loss": [[10_000]]},
        space=space,
    )
    result = verdict("stability-early", study)
    (spec,) = plan(study, [result]).specs
    assert spec.parameters["warmup_share"].high == pytest.approx(0.1)
    assert "warmup_steps" not in spec.parameters


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_it_keeps_its_promise(noise):
    steps = np.arange(0, 4000, 20)
    draw = RNG.normal if noise == "normal" else lambda size: RNG.standard_t(3, size=size)
    fired = 0
    for i in studies(120):
        level = 2.3 if i % 2 else 2.3 - 1.5 * np.clip(steps / 4000 - 0.2, 0, 1)
        losses = [level + 0.1 * draw(size=len(steps)) for _ in range(3)]
        fired += verdict("stability-early", study_of(losses, steps=steps, objective=[1, 2, 3])).status == "fired"
    assert fired <= scaled(11, of=120)


def test_an_objective_that_is_maximised_falls_in_its_own_values():
    good, bad = (0.9 - 0.5 * np.exp(-np.arange(60) / 8) + 0.002 * RNG.normal(size=60) for _ in range(2))
    bad[1:5] = 0.1
    study = make_study([{"lr": 0.1}, {"lr": 0.3}], {"val_acc": [good, bad]}, objective="val_acc", direction="maximize", every=1)
    (finding,) = verdict("stability-early", study).findings
    assert "objective" in finding.message
    assert re.search(r"fell from 0\.\d+ at its start to .* at step 2", str(finding.message))


def test_a_warmup_is_not_counted_in_epochs():
    good, bad = (0.3 + 2 * np.exp(-np.arange(60) / 8) + 0.002 * RNG.normal(size=60) for _ in range(2))
    bad[1:5] = 9.0
    study = make_study([{"lr": 0.1}, {"lr": 0.3}], {"val/loss": [good, bad]}, every=1)
    result = verdict("stability-early", study)
    (spec,) = plan(study, [result]).specs
    assert "warmup_steps" not in spec.parameters
    assert any("Warm the learning rate up" in note for note in spec.notes)


def test_a_rise_far_smaller_than_the_gain_of_the_best_trial_is_no_instability():
    stuck = 3 + 1e-3 * blown()
    assert verdict("stability-early", study_of([stuck])).status == "fired"
    assert verdict("stability-early", study_of([healthy(), stuck])).status == "quiet"


def falling_rates(best: int):
    """Six rates. The upper three are unstable. The rate at index `best` has the best result, its neighbours the next best ones."""
    losses = [healthy(), healthy(), healthy(), blown(), blown(), blown()]
    return study_of(
        losses,
        [1.0, 1.5, 2.2, 3.3, 5.0, 7.5],
        objective=[0.5 + 0.1 * abs(i - best) for i in range(6)],
        space={"lr": Parameter(low=1.0, high=10.0, scale="log")},
    )


def test_if_results_improve_down_to_the_lowest_rates_these_are_searched_lower_first():
    study = falling_rates(best=0)
    (finding,) = verdict("stability-early", study).findings
    assert str(finding.message).startswith("Results improve down to 1, the lowest rate that was tried")
    (spec,) = plan(study, [verdict("stability-early", study)]).specs
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (pytest.approx(0.1), pytest.approx(1.8))
    assert "Search lower values of lr" in str(finding.action)


def test_a_best_rate_inside_the_range_is_one_to_warm_up_beyond():
    (finding,) = verdict("stability-early", falling_rates(best=2)).findings
    assert "Warm up" in str(finding.action)


@pytest.mark.parametrize(("lowest", "action"), [(0.0184, "Warm up"), (0.0170, "Search lower values of lr")])
def test_if_stable_rates_turn_before_the_lowest_one_none_below_it_is_searched(lowest, action):
    """Rates and results of a LoRA study; later trainings at 0.001 to 0.003 were worse than those at 0.0045 and 0.008."""
    rates = [0.0050, 0.0080, 0.0107, 0.0143, 0.0254, 0.0451, 0.0802]
    study = study_of(
        [healthy()] * 5 + [blown()] * 2,
        rates,
        objective=[lowest, 0.0174, 0.0232, 0.0388, 0.596, 0.732, 2.70],
        space={"lr": Parameter(low=0.003, high=0.3, scale="log")},
    )
    (finding,) = verdict("stability-early", study).findings
    assert action in str(finding.action)


@pytest.mark.parametrize(("behind", "severity"), [(0.01, "note"), (0.5, "warning")])
def test_an_instability_after_which_trials_end_as_well_as_the_best_is_a_note(behind, severity):
    repeats = [0.50, 0.52, 0.48, 0.51, 0.49]
    study = study_of([healthy() for _ in repeats] + [blown()], [0.1] * 5 + [0.3], objective=[*repeats, 0.5 + behind])
    (finding,) = verdict("stability-early", study).findings
    assert finding.severity == severity


def test_if_results_improve_up_to_the_highest_rate_the_start_is_a_note_and_needs_no_warmup():
    losses = [blown(), blown(), blown(), healthy(), healthy(), healthy()]
    rates = [1.0, 1.5, 2.2, 3.3, 5.0, 7.5]
    space = {"lr": Parameter(low=1.0, high=7.5, scale="log")}
    rising = study_of(losses, rates, objective=[1.0 - 0.1 * i for i in range(6)], space=space)
    (finding,) = verdict("stability-early", rising).findings
    assert (finding.severity, finding.changes) == ("note", ())
    assert "Search higher learning rates first" in str(finding.action)
    turning = study_of(losses, rates, objective=[0.9, 0.7, 0.5, 0.6, 0.8, 1.0], space=space)
    (finding,) = verdict("stability-early", turning).findings
    assert "Warm up" in str(finding.action)


def test_if_most_trials_are_unstable_and_the_lowest_rate_is_best_lower_rates_come_first():
    losses = [healthy(), blown(), blown(), blown()]
    high = study_of(losses, [0.5, 1.0, 2.0, 4.0], objective=[0.5, 0.9, 0.8, 0.9])
    (finding,) = verdict("stability-early", high).findings
    assert "Search lower values of lr" in str(finding.action)
    (spec, *_) = plan(high, [verdict("stability-early", high)]).specs
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (pytest.approx(0.05), pytest.approx(0.71))


def test_a_loss_of_the_first_steps_is_judged_although_another_one_was_evaluated_over_all():
    evaluated = np.arange(0, 90_000, 1000)
    curves = {
        "val/loss": [[1.0]],
        "train/loss": [1 + np.exp(-evaluated / 20_000)],
        "train_batch/loss": [3 - 0.01 * np.arange(100)],
    }
    steps = {"val/loss": [[89_000]], "train/loss": [evaluated], "train_batch/loss": [np.arange(100)]}
    assert verdict("stability-early", make_study([{"lr": 0.1}], curves, steps=steps)).status == "quiet"

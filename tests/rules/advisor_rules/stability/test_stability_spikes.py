"""The rule `stability-spikes`."""

import numpy as np
import pytest
from promise import scaled, studies
from studies import make_study, verdict

from advisor.model.spec import Parameter
from advisor.planning import plan

RNG = np.random.default_rng(9)
N = 500


def norms(spread=0.2, spikes=(), size=10.0):
    values = np.exp(spread * RNG.normal(size=N)) * np.linspace(3, 0.5, N)
    values[list(spikes)] *= size
    return values


def study_of(curves, lrs=None, name="train/grad_norm", **kwargs):
    lrs = lrs or [0.1 * 2**i for i in range(len(curves))]
    objective = [[1.0 + i] for i in range(len(curves))]
    kwargs.setdefault("steps", {name: [np.arange(len(c)) for c in curves], "val/loss": [[N]] * len(curves)})
    return make_study([{"lr": lr} for lr in lrs], {"val/loss": objective, name: curves}, **kwargs)


def example():
    return study_of([norms(spikes=[120, 300, 450])])


def test_fires_and_asks_for_clipping_around_the_90th_percentile():
    study = example()
    curve = study.curve(study.trials[0], "grad_norm").values
    result = verdict("stability-spikes", study)
    (finding,) = result.findings
    assert "3 of 450 logged points" in finding.message
    histogram = next(e for e in finding.evidence if e.kind == "histogram")
    tenth = np.quantile(curve[50:], 0.9)
    assert histogram.lines[0].value == pytest.approx(tenth, rel=0.02)
    assert sum(histogram.counts) == pytest.approx(450, abs=1)
    sweep, spec = plan(study, [result]).specs  # a single setting: first sweep the rate, then search the threshold
    assert "grad_clip_norm" not in sweep.parameters
    clip = spec.parameters["grad_clip_norm"]
    assert (clip.type, clip.scale, clip.role) == ("float", "log", "nuisance")
    assert clip.low < tenth < clip.high


def test_the_best_trial_gives_the_threshold_if_norms_depend_on_the_settings():
    study = study_of([norms(spikes=[120, 300]), 4 * norms(spikes=[120, 300, 450])])
    (finding,) = verdict("stability-spikes", study).findings
    assert len(finding.trials) == 2
    best = study.curve(study.ranked()[0], "grad_norm").values[50:]
    assert finding.changes[0].numbers["p90"] == pytest.approx(np.quantile(best, 0.9), rel=0.02)


def test_a_threshold_that_the_study_searches_gets_the_new_range():
    space = {"lr": Parameter(low=0.01, high=1, scale="log"), "clip": Parameter(low=50.0, high=100.0, type="float")}
    study = make_study(
        [{"lr": 0.1, "clip": 60.0}],
        {"val/loss": [[1.0]], "train/grad_norm": [norms(spikes=[120, 300])]},
        steps={"train/grad_norm": [np.arange(N)], "val/loss": [[N]]},
        space=space,
    )
    (spec,) = plan(study, [verdict("stability-spikes", study)]).specs
    assert spec.parameters["clip"].high < 50
    assert "grad_clip_norm" not in spec.parameters


def test_the_largest_norm_of_each_window_counts():
    mean, largest = norms(), norms(0.1)
    largest[[200, 400]] = 40
    steps = {k: [np.arange(N)] for k in ("train/grad_norm", "train/grad_norm.max")} | {"val/loss": [[N]]}
    curves = {"val/loss": [[1.0]], "train/grad_norm": [mean], "train/grad_norm.max": [largest]}
    assert verdict("stability-spikes", make_study([{"lr": 0.1}], curves, steps=steps)).status == "fired"
    del curves["train/grad_norm.max"], steps["train/grad_norm.max"]
    assert verdict("stability-spikes", make_study([{"lr": 0.1}], curves, steps=steps)).status == "quiet"


@pytest.mark.parametrize(("examples", "status"), [(1347, "quiet"), (1407, "fired")])
def test_the_small_last_batch_of_an_epoch_is_no_outlier(examples, status):
    """1,347 examples leave 3 for the last of 22 batches of 64."""
    facts = {"steps_per_epoch": "22", "batch_size": "64", "n_train": str(examples)}
    study = study_of([norms(spikes=range(21, N, 22), size=4)], tags=[facts])
    assert verdict("stability-spikes", study).status == status


QUIET = {
    "log-normal": norms(),
    "widely log-normal": norms(0.8),
    "a large start": norms(spikes=range(15), size=50),
    "a level that changes": np.concatenate([norms(0.1)[:250], 5 * norms(0.1)[250:]]),
    "mild": norms(0.05, spikes=[200, 300], size=2.0),
    "constant": np.ones(N),
    "zero": np.zeros(N) + 1e-300,
}


@pytest.mark.parametrize("curve", QUIET.values(), ids=QUIET.keys())
def test_stays_quiet(curve):
    assert verdict("stability-spikes", study_of([curve])).status == "quiet"


def test_without_norms_it_names_what_to_log():
    result = verdict("stability-spikes", make_study([{"lr": 0.1}], {"val/loss": [[1.0, 0.5]]}))
    assert result.status == "not-assessed"
    assert "train/grad_norm" in result.reason
    few = study_of([np.ones(5)], steps={"train/grad_norm": [[100, 200, 300, 400, 500]], "val/loss": [[N]]})
    assert "20 gradient norms" in verdict("stability-spikes", few).reason


def test_non_finite_and_vanishing_norms_are_left_out():
    curve = norms(spikes=[120, 300])
    curve[[60, 200]] = np.nan, np.inf
    curve[350] = 0
    (finding,) = verdict("stability-spikes", study_of([curve])).findings
    assert finding.trials == ("run0",)


def test_trials_with_far_higher_rates_are_not_judged():
    assert verdict("stability-spikes", study_of([norms(), norms(spikes=[99, 300])], [0.01, 1])).status == "quiet"


@pytest.mark.parametrize("kind", ["log-normal", "log-laplace", "gamma"])
def test_it_keeps_its_promise(kind):
    draw = {
        "log-normal": lambda: np.exp(0.4 * RNG.normal(size=300)),
        "log-laplace": lambda: np.exp(0.3 * RNG.laplace(size=300)),
        "gamma": lambda: RNG.gamma(2, size=300),
    }[kind]
    fired = sum(verdict("stability-spikes", study_of([draw() for _ in range(3)])).status == "fired" for _ in studies(100))
    assert fired <= scaled(8, of=100)


def test_norms_that_end_in_early_training_are_missing() -> None:
    start = norms(spikes=(40, 60, 80))[:100]
    study = make_study(
        [{"lr": 0.1}],
        {"val/loss": [np.linspace(2, 1, 21)], "train/grad_norm": [start]},
        steps={"val/loss": [np.arange(21) * 500], "train/grad_norm": [np.arange(100)]},
    )
    missing = verdict("stability-spikes", study)
    assert "only up to step 99 of 10,000" in missing.reason


def with_loss(jump):
    """A study whose first trial has three large norms; its loss falls, and stays higher after the first of them by `jump`."""
    falling = 0.2 + 2 * np.exp(-np.arange(N) / 100) + 0.01 * RNG.normal(size=N)
    falling[120:] += jump
    curves = {"val/loss": [[1.0]], "train/grad_norm": [norms(spikes=[120, 300, 450])], "train/loss": [falling]}
    steps = {"train/grad_norm": [np.arange(N)], "train/loss": [np.arange(N)], "val/loss": [[N]]}
    return make_study([{"lr": 0.1}], curves, steps=steps)


def test_outliers_that_harm_no_loss_are_no_reason_for_a_study_of_the_threshold():
    study = with_loss(0.0)
    (finding,) = verdict("stability-spikes", study).findings
    assert finding.severity == "note"
    assert [c.kind for c in finding.changes] == ["advise"]
    assert "90th percentile" in finding.action
    assert not any("grad_clip_norm" in s.parameters for s in plan(study, [verdict("stability-spikes", study)]).specs)


def test_outliers_with_a_jump_of_the_loss_are_worth_a_study_of_the_threshold():
    (finding,) = verdict("stability-spikes", with_loss(1.0)).findings
    assert finding.severity == "warning"
    assert [c.kind for c in finding.changes] == ["plan"]

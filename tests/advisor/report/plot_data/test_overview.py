"""The data of the figures about a whole study."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.model.evidence import CurveEvidence, Mark
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.report.plot_data import overview
from tests.advisor.report.studies import fired, make_report, make_study
from tests.studies import make_study as logged_study


def test_more_trials_have_a_better_best(study: Study) -> None:
    found = overview.best_of_n_trials(study)
    assert found is not None
    assert found.sizes == (1, 2, 4, 8, 16, 32, 64, 128, 200)
    medians = [row[2] for row in found.quantiles]
    assert medians == sorted(medians, reverse=True)
    assert found.quantiles[-1][0] == min(study.costs[study.feasible])


def test_repeats_are_no_further_trials() -> None:
    params = [{"lr": 0.1 * (i + 1)} for i in range(8) for _ in range(3)]
    found = overview.best_of_n_trials(
        logged_study(params, {"val/loss": [1.0 + 0.1 * (i // 3) + 0.01 * (i % 3) for i in range(24)]})
    )
    assert found is not None
    assert (found.sizes, found.unit) == ((1, 2, 4, 8), "setting")
    assert overview.best_of_n_trials(logged_study(params[:12], {"val/loss": [1.0] * 12})) is None


def test_importance_finds_what_matters_and_which_act_together() -> None:
    rng = np.random.default_rng(0)
    params = [{"lr": float(a), "wd": float(b), "idle": float(c)} for a, b, c in rng.random((48, 3))]
    cost = [(p["lr"] - p["wd"]) ** 2 + 0.002 * rng.normal() for p in params]
    space = {n: Parameter(type="float", low=0.0, high=1.0) for n in ("lr", "wd", "idle")}
    found = overview.parameter_importances(logged_study(params, {"val/loss": cost}, space=space))
    assert found is not None
    assert {s.parameters[0] for s in found.of_parameters[:2]} == {"lr", "wd"}
    assert set(found.of_pairs[0].parameters) == {"lr", "wd"}
    assert found.of_pairs[0].p is not None
    assert found.of_pairs[0].p < 0.05
    assert all(s.low <= s.share <= s.high for s in (*found.of_parameters, *found.of_pairs))


def test_a_close_up_has_every_point_around_the_spike(study: Study) -> None:
    trial = next(t for t in study.ranked() if len(study.metric(t, "train/grad_norm")))
    curve = study.metric(trial, "train/grad_norm")
    peak = int(np.argmax(curve.values))
    step = int(curve.steps[peak])
    evidence = CurveEvidence(
        metrics=("train/grad_norm",),
        caption="c",
        trials=(trial.id,),
        marks=(
            *(Mark(trial=trial.id, step=step, label="spike"),) * 2,
            Mark(trial=trial.id, step=int(curve.steps[peak - 1]), label="lower from here on", lasting=True),
        ),
    )
    (close,) = overview.curve_close_ups(study, [fired("critical", "stability", evidence=(evidence,))])
    assert close.values[close.steps.index(step)] == curve.values[peak]
    side = overview.CLOSE_UP_POINTS_PER_SIDE
    assert list(close.steps) == curve.steps[max(peak - side, 0) : peak + side + 1].tolist()


def test_throughput_needs_two_batch_sizes() -> None:
    sizes = [32, 32, 64, 64, 128, 128]
    params = [{"batch_size": s, "lr": 0.1 * s / 32 + 0.001 * i} for i, s in enumerate(sizes)]
    rng = np.random.default_rng(0)
    rate = [list(s * 30 * np.exp(rng.normal(0, 0.02, 60))) for s in sizes]
    curves = {"val/loss": [[1.0, 0.5, 0.2]] * 6, "train/examples_per_s": rate}
    study = logged_study(params, curves)
    shown = overview.throughput_by_batch_size(study)
    assert [s.batch_size for s in shown] == [32, 64, 128]
    for s in shown:
        assert s.low is not None
        assert s.high is not None
        assert s.low < s.examples_per_s < s.high
        assert s.examples_per_s == pytest.approx(s.batch_size * 30, rel=0.05)
    assert overview.throughput_by_batch_size(logged_study(params[:2], {k: v[:2] for k, v in curves.items()})) == ()


def test_trials_just_above_have_the_next_higher_rates(study: Study) -> None:
    above = overview.higher_rate_trials(study)
    assert above is not None
    best = study.ranked()[0]
    assert above.best == best.params["learning_rate"]
    logged = [t for t in study.trials if len(study.metric(t, "train/loss"))]
    rates = sorted(float(t.params["learning_rate"]) for t in logged if float(t.params["learning_rate"]) > above.best)
    assert list(above.rates) == rates[: len(above.rates)]


@pytest.mark.parametrize("trials", [0, 1, 3])
def test_tiny_studies_have_a_report(trials: int) -> None:
    made = make_report(make_study(trials), ())
    assert made.counts.total == trials
    assert made.to_html()
    assert made.to_markdown()
    assert str(made)


def test_a_failed_study_has_a_report() -> None:
    failed = make_report(make_study(12, statuses=dict.fromkeys(range(12), "diverged")), ())
    assert failed.figures.best_of_n is None
    assert "Hardly any trial has a result" in failed.to_html()

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient
from probing import Training, analyzed, runs_of

from advisor import analyze, contract
from advisor_pytorch import TuningLogger
from advisor_pytorch.probes import early_instability, learning_rate_range

EXPERIMENT = "early-instability probe"


def test_an_unstable_start_is_seen_and_no_trace_left(uri: str) -> None:
    undisturbed = Training()
    expected = undisturbed.goes_on()
    training = Training()
    found = early_instability(
        training.step,
        training.model,
        training.optimizer,
        evaluate=training.loss,
        learning_rate=0.02,
        steps=120,
        max_train_steps=5000,
        also=[training.scheduler],
        tracking_uri=uri,
    )
    assert training.goes_on() == expected
    assert [t.multiple for t in found.trials] == [0.5, 1.0, 2.0, 5.0, 10.0]
    assert found.trials[0].highest < found.trials[0].first
    assert found.trials[-1].diverged_at is not None or found.trials[-1].highest > found.trials[-1].first
    runs = runs_of(uri, EXPERIMENT)
    assert [float(r.data.params["learning_rate"]) for r in runs] == pytest.approx([0.01, 0.02, 0.04, 0.1, 0.2])
    assert {r.data.tags[contract.TAG_PROBE] for r in runs} == {"early-instability"}
    steps = [p.step for p in MlflowClient(uri).get_metric_history(runs[0].info.run_id, "probe/loss")]
    assert steps == list(range(121))  # before the first step, and after each
    first = {MlflowClient(uri).get_metric_history(r.info.run_id, "probe/loss")[0].value for r in runs}
    assert len(first) == 1
    assert first.pop() == pytest.approx(found.trials[0].first)
    report = analyzed(uri, EXPERIMENT)
    judged = {v.rule: v.status for v in report.verdicts if v.status != "not-assessed"}
    assert judged["stability-early"] == "fired"
    assert set(judged) <= {"stability-early", "stability-edge", "residual-norm"}
    (early,) = [f for f in report.findings if f.rule == "stability-early"]
    assert "at its start" in early.message or "not finite" in early.message
    assert report.next
    assert max(report.next[0].parameters["warmup_steps"].options) == 500  # a tenth of the training, not of the probe


def test_a_stable_start_raises_nothing(uri: str) -> None:
    training = Training()
    found = early_instability(
        training.step, training.model, training.optimizer, learning_rate=1e-3, multiples=(1, 2), steps=60, tracking_uri=uri
    )
    assert "At none of these learning rates" in str(found)
    report = analyzed(uri, EXPERIMENT)
    assert report.findings == ()
    steps = [p.step for p in MlflowClient(uri).get_metric_history(runs_of(uri, EXPERIMENT)[0].info.run_id, "probe/loss")]
    assert steps == list(range(1, 61))


def test_probes_beside_trials_are_no_trials(uri: str) -> None:
    training = Training()
    for rate in (0.01, 0.02):
        training.optimizer.param_groups[0]["lr"] = rate
        with TuningLogger(
            training.model,
            training.optimizer,
            params={"learning_rate": rate},
            objective="val/loss",
            experiment="both",
            tracking_uri=uri,
        ) as log:
            for _ in range(10):
                log.step(training.step())
                log.evaluate({"val/loss": training.loss()})
    learning_rate_range(
        training.step, training.model, training.optimizer, trials=3, steps=5, experiment="both", tracking_uri=uri
    )
    report = analyzed(uri, "both")
    assert report.counts.total == 2
    assert report.spec.objective.metric == "val/loss"
    assert any("3 runs are of probes" in w for w in report.warnings)
    alone = analyze("both", tracking_uri=uri, filter="tags.`advisor.probe` = 'learning-rate'")
    assert alone.counts.total == 3
    assert alone.spec.objective.metric == "probe/loss"

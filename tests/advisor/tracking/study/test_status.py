import json
import math
import time

import pytest
from small_experiments import curves, points, run, statuses, study_of

from advisor.tracking import read_study


def test_pruned_trials_did_not_crash():
    runs = [run(i, "FAILED", {"state": state}) for i, state in enumerate(("TrialState.PRUNED", "FAIL"))]
    assert statuses(study_of(runs, loss=curves([1, 1], lambda i, s: 1.0))) == ["pruned", "infeasible"]


@pytest.mark.parametrize(
    ("mlflow_status", "tag", "last", "status"),
    [
        ("FINISHED", None, 1.0, "complete"),
        ("FINISHED", None, math.nan, "diverged"),
        ("FINISHED", None, math.inf, "diverged"),
        ("FINISHED", None, 1e101, "diverged"),
        ("FINISHED", "stopped", 1.0, "stopped"),
        ("FAILED", None, 1.0, "infeasible"),
        ("KILLED", None, 1.0, "stopped"),
        ("RUNNING", None, 1.0, "running"),
        ("RUNNING", "running", 1.0, "running"),
        ("FAILED", "diverged", 1.0, "diverged"),
        ("FINISHED", "nonsense", 1.0, "complete"),
    ],
)
def test_how_a_trial_ended(mlflow_status, tag, last, status):
    tags = {"advisor.status": tag} if tag else {}
    now = time.time()  # a running trial that is silent for long counts as ended
    metric = points((0, 1, 1, now - 1), (0, 2, last, now), (1, 1, 1, now))
    assert statuses(study_of([run(0, mlflow_status, tags, lr=1), run(1, lr=2)], val__loss=metric))[0] == status


def test_a_broken_evaluation_is_no_divergence():
    """Trial 0 trained on, 1 did not, of 2 no loss was logged after its last evaluation, and 3 was never evaluated well."""
    evaluated = curves([3] * 4, lambda i, s: math.nan if s == 3 or i == 3 else 1.0)
    loss = curves([3, 3, 2, 3], lambda i, s: math.nan if (i, s) == (1, 3) else 1.0)
    study = study_of([run(i, lr=i + 1) for i in range(4)], val__loss=evaluated, train__loss=loss, objective="val/loss")
    assert statuses(study) == ["complete", "diverged", "diverged", "diverged"]
    assert study.feasible.tolist() == [True, False, False, False]


def _study(lengths, costs, ends=None, *, tags=None, **more):
    """Return the study of one run per length. costs: cost of a trial at a step; more: further metrics by run and step."""
    ends = ends or ["FINISHED"] * len(lengths)
    runs = [run(i, end, (tags or {}).get(i), lr=i + 1) for i, end in enumerate(ends)]
    metrics = {m: curves(lengths, f) for m, f in {"val__loss": costs, **more}.items()}
    return study_of(runs, **metrics, objective="val/loss")


def _falling(trial, step):
    return 1 / step + 0.1 * trial


SHORT_LAST = [20] * 6 + [5, 7, 9, 4]
FAILED_LAST = ["FINISHED"] * 6 + ["FAILED"] * 4


def test_trials_that_failed_behind_the_others_were_pruned():
    study = _study(SHORT_LAST, _falling, FAILED_LAST)
    assert statuses(study) == ["complete"] * 6 + ["pruned"] * 4
    assert study.trials[6].reason == "it ended at step 5 with a worse result than the trials that continued"
    assert study.comparable.tolist() == [True] * 6 + [False] * 4
    assert study.feasible.all()
    (decision,) = study.decisions
    assert decision.text == (
        "4 of 10 trials were pruned: they ended with worse results than the trials that continued, without an error. "
        "Their results are not compared with those of complete trials. Pruning can hide settings that start slowly."
    )
    assert study.spec.max_train_steps == 20


def test_trials_that_failed_ahead_of_the_others_crashed():
    study = _study([5, 7, 9, 4] + [20] * 6, _falling, ["FAILED"] * 4 + ["FINISHED"] * 6)
    assert statuses(study) == ["infeasible"] * 4 + ["complete"] * 6
    assert not study.decisions


def test_a_user_overrules_with_a_tag():
    study = _study(SHORT_LAST, _falling, FAILED_LAST, tags={6: {"advisor.status": "infeasible"}})
    assert statuses(study)[6:] == ["infeasible", "pruned", "pruned", "pruned"]


def test_errors_in_tags():
    tags = {
        0: {"error": "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"},
        1: {"exception": "KeyError: 'x'"},
        2: {"advisor.status": "infeasible", "advisor.error": "TrialPruned: Trial was pruned at epoch 3."},
    }
    study = _study([1, 1, 1, 1], _falling, ["FAILED"] * 3 + ["FINISHED"], tags=tags)
    assert statuses(study) == ["infeasible", "infeasible", "pruned", "complete"]
    assert study.trials[0].facts["error"].startswith("out of memory: RuntimeError")


def test_early_stopping_is_read_and_said():
    """Trial i is best at step 3 + i, and stops 4 evaluations later; the last two train to their end."""
    study = _study([7, 8, 9, 10, 20, 20], lambda i, s: abs(s - (3 + i if i < 4 else 19)) / 20 + 0.01 * i)
    assert statuses(study) == ["early_stopped"] * 4 + ["complete"] * 2
    assert study.trials[0].reason == "it ended 4 evaluations after its best val/loss"
    assert study.comparable.all()
    assert study.cut_short(study.trials[0])
    assert "early stopping is then unnecessary" in study.decisions[0].text
    assert study.spec.max_train_steps == 20


def test_failures_are_read_from_the_curves_alone():
    """Trial 0 learns; 1's training loss is NaN from step 8 on; 2 and 3 sit at chance; 4 skipped its last batch."""
    study = _study(
        [20] * 6,
        lambda i, s: {1: 2.0 if s >= 8 else 1 / s, 2: 2.303, 3: 2.303}.get(i, 1 / s),
        train__loss=lambda i, s: math.nan if (i == 1 and s >= 8) or (i == 4 and s == 20) else 1 / s,
    )
    assert statuses(study) == ["complete", "diverged", "not_learned", "not_learned", "complete", "complete"]
    assert [d.text for d in study.decisions] == [
        "1 of 6 trials diverged by their curves: train/loss is not finite from step 8 on.",
        "2 of 6 trials learned nothing by their curves: in one of them, for example, val/loss stays at 2.3 from its "
        "first evaluation on like other trials.",
    ]


def test_optuna_prunes_by_an_exception(database, monkeypatch):
    """A real script: MLflow marks each pruned run as FAILED, without a tag."""
    mlflow, optuna = pytest.importorskip("mlflow"), pytest.importorskip("optuna")
    mlflow.set_tracking_uri(database)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruners = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=4),
        "halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    }
    for name, pruner in pruners.items():
        mlflow.set_experiment(name)

        def objective(trial):
            with mlflow.start_run():
                lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
                mlflow.log_param("lr", lr)
                floor = 0.1 + 0.05 * (math.log10(lr) + 3) ** 2
                for epoch in range(1, 10):
                    loss = floor + (1 - floor) * math.exp(-epoch / 2)
                    mlflow.log_metric("val_loss", loss, step=epoch)
                    trial.report(loss, epoch)
                    if trial.should_prune():
                        raise optuna.TrialPruned
                return loss

        sampler = optuna.samplers.RandomSampler(seed=1)
        search = optuna.create_study(sampler=sampler, pruner=pruner, study_name=name)
        search.optimize(objective, n_trials=16)
        found = read_study(name, tracking_uri=database)
        pruned = sum(t.state.name == "PRUNED" for t in search.trials)
        assert pruned > 3
        assert {t.status for t in found.trials} == {"complete", "pruned"}
        assert sum(t.status == "pruned" for t in found.trials) == pruned
        assert found.spec.max_train_steps == 9


def _guarded(state, status, step=5):
    reason = f"trial cannot go on: {state}."
    return {"advisor.status": status, "advisor.stopped": json.dumps({"state": state, "step": step, "reason": reason, "at": 1})}


def test_trials_that_the_guard_stopped_are_named_with_their_reasons():
    tags = {
        6: _guarded("doomed", "pruned"),
        7: _guarded("doomed", "pruned", 7),
        8: {"advisor.status": "pruned"},
        9: _guarded("not_finite", "diverged"),
    }
    study = _study(SHORT_LAST, _falling, tags=tags)
    assert statuses(study)[6:] == ["pruned", "pruned", "pruned", "diverged"]
    assert [t.reason for t in study.trials[7:9]] == ["the guard stopped it at step 7: trial cannot go on: doomed.", ""]
    texts = [d.text for d in study.decisions if d.topic == "status"]
    assert texts[0].startswith("3 of 10 trials were pruned, 2 of them by the guard. ")
    assert texts[1] == (
        "The guard stopped 3 of 10 trials: 2 could not become the best, 1 had an objective that was not finite. "
        "`advisor run … --continue TRIAL` continues one of them."
    )


@pytest.mark.parametrize("status", [None, "running", "stopped", "infeasible", "no_data"])
@pytest.mark.parametrize("process", ["RUNNING", "KILLED", "FAILED"])
def test_a_trial_that_the_guard_has_just_stopped_did_not_crash(status, process):
    """Its launcher marks it, ends its process, and records the end last."""
    tags = {k: v for k, v in _guarded("doomed", status).items() if v is not None}
    study = _study([20] * 6 + [5], _falling, ["FINISHED"] * 6 + [process], tags={6: tags})
    ended = (study.trials[6].status, study.trials[6].reason)
    assert ended == ("pruned", "the guard stopped it at step 5: trial cannot go on: doomed.")


def test_a_trial_that_went_on_or_has_a_broken_record_is_no_stopped_trial():
    finished = _guarded("doomed", "complete")
    broken = [{"advisor.status": "pruned", "advisor.stopped": text} for text in ("[1]", "{}", '{"state": 3, "step": 1}')]
    study = _study([20] * 9, _falling, tags=dict(enumerate([finished, *broken])))
    assert not any("guard" in d.text for d in study.decisions)
    assert statuses(study)[:4] == ["complete", "pruned", "pruned", "pruned"]

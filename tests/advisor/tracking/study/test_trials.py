import math
from dataclasses import replace

import numpy as np
from small_experiments import curves, points, run, study_of
from studies import make_study


def test_seeds_and_facts_are_no_hyperparameters():
    tags = {"advisor.seed": "7", "advisor.max_train_steps": "2"}
    study = study_of([run(0, tags=tags, lr=1)], val__loss=points((0, 1, 1, 1), (0, 2, 1, 2)))
    trial = study.trials[0]
    assert (trial.seed, trial.fact("max_train_steps"), study.spec.max_train_steps) == (7, 2.0, 2)
    assert math.isnan(trial.fact("nothing"))


def test_parameters_state_steps_batch_size_and_objective():
    settings = {"max_steps": 20, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "auto_batch_size": False}
    runs = [run(i, lr=i, monitor="val_f1", mode="min", trainer__seed=i, data_seed=9, **settings) for i in range(3)]
    metric = points(*((i, s, s + i, 100 + s) for i in range(3) for s in (10, 20)))
    study = study_of(runs, val_f1=metric, val_acc=metric)
    assert (study.spec.objective.metric, study.spec.objective.direction) == ("val_f1", "minimize")
    assert "parameter" in study.inferred["objective"]
    assert [t.fact("batch_size") for t in study.trials] == [16] * 3
    assert [study.planned_steps(t) for t in study.trials] == [20] * 3
    assert [t.seed for t in study.trials] == [0, 1, 2]


def test_runs_of_the_same_name_are_told_apart_by_their_ids():
    ids = ("12345678", "12345699", "9", "77")
    runs = [replace(run(i, lr=i), name="aaab"[i], id=id) for i, id in enumerate(ids)]
    study = study_of(runs, val__loss=curves([1] * 4, lambda i, s: 1.0))
    assert [t.name for t in study.trials] == ["a (1234567)", "a (1234569)", "a (9)", "b"]


def test_epochs_that_count_from_0_have_the_length_that_their_parameter_states() -> None:
    curves = {"val/loss": [[1 - 0.02 * i for i in range(20)]] * 2}
    study = make_study([{"lr": 0.1, "epochs": 20}, {"lr": 0.01, "epochs": 20}], curves, steps=list(range(20)))
    assert (study.unit, study.spec.max_train_steps, study.planned_steps(study.trials[0])) == ("epoch", 20, 20)


def _warns_of_best_so_far(values) -> bool:
    metric = curves([len(v) for v in values], lambda i, s: float(values[i][s - 1]))
    study = study_of([run(i, lr=i + 1) for i in range(len(values))], val__accuracy=metric)
    return any("best value so far" in w for w in study.warnings)


def test_the_best_value_so_far_is_no_curve_of_evaluations() -> None:
    rng = np.random.default_rng(3)
    course = 0.9 - 0.6 * np.exp(-np.arange(20) / 4)
    noisy = np.round(course + 0.02 * rng.standard_normal((6, 20)), 3)
    assert _warns_of_best_so_far(np.maximum.accumulate(noisy, axis=1))
    assert not _warns_of_best_so_far(noisy)
    assert not _warns_of_best_so_far(np.round(np.tile(course, (6, 1)), 3))

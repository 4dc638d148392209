import math

import pytest
from small_experiments import experiment, points, run

from advisor.tracking.study.assemble import assemble


def test_pruned_trials_did_not_crash():
    runs = [run(i, status="FAILED", tags={"state": state}) for i, state in enumerate(("TrialState.PRUNED", "FAIL"))]
    study = assemble(experiment(runs, loss=points((0, 1, 1.0, 101), (1, 1, 1.0, 101))))
    assert [t.status for t in study.trials] == ["pruned", "infeasible"]


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
    metric = points((0, 1, 1, 101), (0, 2, last, 102), (1, 1, 1, 101))
    study = assemble(experiment([run(0, mlflow_status, tags, lr=1), run(1, lr=2)], val__loss=metric))
    assert study.trials[0].status == status


def test_a_broken_evaluation_is_no_divergence():
    """Trial 0 trained on, 1 did not, of 2 no loss was logged after its last evaluation, and 3 was never evaluated well."""
    evaluated = [
        (i, step, math.nan if step == 3 or i == 3 else 1.0, 100 + step) for i in range(4) for step in (1, 2, 3)
    ]
    loss = [(i, step, math.nan if (i, step) == (1, 3) else 1.0, 100 + step) for i in range(4) for step in (1, 2, 3)]
    loss = [point for point in loss if point[:2] != (2, 3)]
    runs = [run(i, lr=i + 1) for i in range(4)]
    study = assemble(experiment(runs, val__loss=points(*evaluated), train__loss=points(*loss)), objective="val/loss")
    assert [t.status for t in study.trials] == ["complete", "diverged", "diverged", "diverged"]
    assert study.feasible.tolist() == [True, False, False, False]

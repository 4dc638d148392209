import pytest
from mlflow import MlflowClient
from small_experiments import experiment, run

from advisor.tracking import read_study
from advisor.tracking.study.run_filters import filter_of_runs

RUNS = experiment(
    [run(0, lr=1, a="x"), run(1, lr=2, a="x"), run(2, lr=3, a="y"), run(3, lr=4, **{"b/c": "z"}), run(4, lr=4, a="y", b="q")]
)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ((0, 1), "params.a = 'x'"),
        ((3,), "params.`b/c` = 'z'"),
        ((0, 1, 2, 4), "params.a IS NOT NULL"),
        ((0, 1, 2, 3), "params.b IS NULL"),
        ((0, 4), "attributes.run_id IN ('id0', 'id4')"),
    ],
)
def test_a_filter_selects_exactly_these_runs(members, text):
    assert filter_of_runs(RUNS, members) == text


@pytest.mark.parametrize("members", [(0, 1), (0, 1, 2, 4), (3,)])
def test_mlflow_understands_the_filters(members, database):
    client = MlflowClient(database)
    experiment_id = client.create_experiment("e")
    for made in RUNS.runs:
        run_id = client.create_run(experiment_id, run_name=made.name).info.run_id
        for name, value in made.params.items():
            client.log_param(run_id, name, value)
        client.log_metric(run_id, "val_loss", 1.0, step=1)
        client.set_terminated(run_id)
    study = read_study("e", tracking_uri=database, filter=filter_of_runs(RUNS, members))
    assert sorted(t.name for t in study.trials) == sorted(RUNS.runs[i].name for i in members)

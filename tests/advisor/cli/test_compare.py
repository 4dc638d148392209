"""`advisor compare` on a real MLflow store: names of its sides, output, errors."""

import json
import shutil
from functools import partial

import pytest
from commands import outcome_of
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from advisor.history.compare import Comparison

pytestmark = pytest.mark.xdist_group("compare")  # they share a study

ONE = {"adam": {0: [0.50, 0.51, 0.52, 0.505], 1: [0.7], 2: [0.72]}, "sgd": {3: [0.60, 0.61, 0.62, 0.605], 4: [0.9], 5: [0.95]}}


def log(client, name, values, shift=0.0):
    experiment = client.create_experiment(name)
    for optimizer, settings in values.items():
        for number, costs in settings.items():
            for seed, cost in enumerate(costs):
                run = client.create_run(experiment, run_name=f"trial-{number}-{seed}").info.run_id
                for key, value in (("optimizer", optimizer), ("lr", 0.1 * (number + 1)), ("seed", seed)):
                    client.log_param(run, key, value)
                client.log_batch(run, [Metric("val_loss", cost + shift + 0.5 / s, 1000 + s, s) for s in (1, 2, 10**9)])
                client.set_terminated(run, "FINISHED")


@pytest.fixture(scope="module")
def uri(tmp_path_factory, empty_store):
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('store') / 'mlflow.db')}"
    client = MlflowClient(uri)
    log(client, "one", ONE)
    log(client, "b:two", ONE, shift=0.3)
    return uri


@pytest.fixture
def advisor(capsys, uri, monkeypatch):
    """Runs `advisor compare`: (exit status, standard output, standard error)."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return partial(outcome_of, capsys, "compare")


def test_two_trials_with_their_repeats(advisor):
    status, out, _ = advisor("-e", "one", "trial-0-0", "trial-3-2")
    assert status == 0
    first, *rest = out.splitlines()
    assert first.startswith("Adopt. ")
    assert "candidate       0.50875  trial-0-0 (mean of 4 runs)" in rest
    assert "incumbent       0.60875  trial-3-2 (mean of 4 runs)" in rest
    assert any(line.startswith("gain            0.1 (95 % interval 0.0") for line in rest)
    assert any(line.startswith("data variance   ") for line in rest)
    assert not any(line.startswith("study variance") for line in rest)
    assert max(map(len, out.splitlines())) < 250


def test_swapped_sides_and_a_minimum_gain(advisor):
    assert advisor("-e", "one", "trial-3-0", "trial-0-0")[1].startswith("Do not adopt. The candidate is not better on average.")
    output = advisor("-e", "one", "trial-0-0", "trial-3-0", "--complexity", "50%")[1]
    assert output.startswith("Do not adopt. The gain of 0.1 is less than the 0.3 that the candidate's complexity requires.")
    assert ", 0.3 required" in output


def test_configurations_and_studies(advisor):
    status, out, _ = advisor("-e", "one", "optimizer=adam", "optimizer=sgd", "--json")
    result = Comparison.model_validate_json(out)
    assert status == 0
    assert (result.candidate.settings, result.incumbent.settings) == (3, 3)
    assert result.study_variance is not None
    result = Comparison.model_validate_json(advisor("one", "b:two", "--json")[1])
    assert (result.candidate.settings, result.gain) == (6, pytest.approx(0.3))
    assert Comparison.model_validate_json(advisor("one:trial-0-0", "b:two:lr=0.1", "--json")[1]).incumbent.runs == 4
    assert json.loads(advisor("-e", "one", "lr=0.1,optimizer=adam", "trial-3-1", "--json")[1])["decision"] == "adopt"


def test_single_runs_ask_for_seeds_or_take_the_variance_of_others(advisor):
    out = advisor("-e", "one", "trial-1-0", "trial-2-0")[1]
    assert "with the variance of all repeated settings" in out
    assert out.startswith("Run more seeds: ")
    assert " of trial-1-0 and " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-e", "one", "nothing", "trial-0-0"), "has no trial 'nothing'"),
        (("-e", "one", "width=3", "trial-0-0"), "no trial of 'one' has a hyperparameter 'width'; they have: lr, optimizer"),
        (("-e", "one", "lr=7", "trial-0-0"), "no trial of 'one' has lr=7"),
        (("-e", "one", "trial-0-0", "trial-0-1"), "have trials in common"),
        (("one", "three"), "no experiment named 'three'"),
        (("one:trial-0-0", "nowhere:trial-1"), "no experiment named 'nowhere'"),
        (("one", "b:two", "--complexity", "much"), "--complexity takes a gain"),
    ],
)
def test_errors_are_one_line(advisor, arguments, message):
    status, out, err = advisor(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err

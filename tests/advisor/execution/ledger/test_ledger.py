"""The ledger of a study: jobs that several launchers begin, and invalid jobs."""

import math
import threading

import pytest
from launches import SPEC, claim, client_of

from advisor.execution import Job, Ledger, jobs
from advisor.execution.engines.process import Exit
from advisor.execution.ledger.ledger import BLOCKED_STATES
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter
from advisor.tracking.stores.location import parse_tracking_uri


def test_many_jobs_are_begun_with_few_queries(project, monkeypatch):
    spec = SPEC.model_copy(update={"trials": 15, "seeds": 2})
    one, other = Ledger(parse_tracking_uri("mlflow.db"), "e", spec), Ledger(parse_tracking_uri("mlflow.db"), "e", spec)
    looks, look = [], one._client.search_runs
    monkeypatch.setattr(one._client, "search_runs", lambda *a, **more: looks.append(a) or look(*a, **more))
    begun = one.begin(jobs(spec))
    assert len(looks) <= 3
    assert [job.key for job, _ in begun] == [job.key for job in jobs(spec)]
    assert len({run_id for _, run_id in begun}) == 30
    assert {(job.number, job.seed) for job, _ in begun} == {(n, seed) for n in range(15) for seed in (0, 1)}
    assert [state for _, state in other.begin(jobs(spec))] == ["busy"] * 30


def test_two_launchers_that_begin_the_same_jobs_get_different_ones(project):
    spec = SPEC.model_copy(update={"trials": 10})
    claimed = {}

    def begin(name, ledger):
        claimed[name] = {job.key: run_id for job, run_id in ledger.begin(jobs(spec)) if run_id not in BLOCKED_STATES}

    ledgers = [Ledger(parse_tracking_uri("mlflow.db"), "e", spec) for _ in range(2)]
    threads = [threading.Thread(target=begin, args=pair) for pair in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not claimed[0].keys() & claimed[1].keys()
    assert len(claimed[0]) + len(claimed[1]) == 10
    assert {entry.run_id for entry in ledgers[0].entries()} == {*claimed[0].values(), *claimed[1].values()}


def test_many_and_long_hyperparameters_are_logged_and_invalid_names_refused(project):
    ledger = Ledger(parse_tracking_uri("mlflow.db"), "e", SPEC)
    params = {f"p{i}": i for i in range(250)} | {"long": "x" * 9000}
    run_id = claim(ledger, Job(0, 0, 0, params))
    client = client_of(project)
    assert len(client.get_run(run_id).data.params) == 251
    with pytest.raises(AdvisorError, match="Names may only contain"):
        claim(ledger, Job(1, 0, 0, {"lr[0]": 1.0}))
    assert [entry.key for entry in ledger.entries()] == [(0, 0)]
    client.delete_experiment(client.get_experiment_by_name("e").experiment_id)
    with pytest.raises(AdvisorError, match="was deleted; restore it in MLflow, or pass another --experiment"):
        Ledger(parse_tracking_uri("mlflow.db"), "e", SPEC)
    with pytest.raises(AdvisorError, match="must be in the 'active' state"):
        claim(ledger, jobs(SPEC)[1])


def test_trials_of_another_space_are_refused(project):
    spec = SPEC
    Ledger(parse_tracking_uri("mlflow.db"), "e", spec).begin(jobs(spec))
    assert Ledger(parse_tracking_uri("mlflow.db"), "e", spec.model_copy(update={"trials": 9})).entries()
    noted = {"parameters": {n: p.model_copy(update={"why": "as ever"}) for n, p in spec.parameters.items()}}
    assert Ledger(parse_tracking_uri("mlflow.db"), "e", spec.model_copy(update={**noted, "notes": ("more",)})).entries()
    for change in ({"max_train_steps": 20}, {"schedule": {"kind": "cosine"}}):
        with pytest.raises(AdvisorError, match=f"has trials of study .* with another {next(iter(change))}; give"):
            Ledger(parse_tracking_uri("mlflow.db"), "e", spec.model_copy(update=change))
    with pytest.raises(AdvisorError, match="from another search space or sampler"):
        Ledger(
            parse_tracking_uri("mlflow.db"),
            "e",
            spec.model_copy(update={"parameters": {"lr": Parameter(low=0.01, high=1.0, scale="log")}}),
        )


def test_artifacts_are_beside_a_store_in_another_folder(project, tmp_path, monkeypatch):
    client = client_of(project)
    Ledger(parse_tracking_uri("mlflow.db"), "here", SPEC)
    monkeypatch.chdir(tmp_path)
    Ledger(parse_tracking_uri(str(project / "mlflow.db")), "there", SPEC)
    place = client.get_experiment_by_name("there").artifact_location
    assert place.startswith((project / "mlruns").as_uri())


def test_a_curve_without_a_finite_value_is_not_read_again(project, monkeypatch):
    ledger = Ledger(parse_tracking_uri("mlflow.db"), "e", SPEC)
    run_id = claim(ledger, jobs(SPEC)[0])
    ledger.log(run_id, {1: (math.nan, 0)})
    ended = ledger.end(run_id, Exit(0))
    monkeypatch.setattr(ledger._client, "get_metric_history", lambda *_: pytest.fail("the curve is read again"))
    assert [entry.outcome for entry in ledger.entries()] == [ended]
    assert (ended.status, ended.best) == ("diverged", None)

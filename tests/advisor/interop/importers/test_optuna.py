"""Storages that Optuna itself wrote."""

import importlib.util
import math

import pytest
from fault_servers import Postgres
from imports import assert_same, dump, stored

from advisor.model.spec_yaml import parse_study_file
from advisor.report.text.run_command import training_command
from advisor.tracking import read_study
from advisor.tracking.stores.reading import read_experiment

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.CRITICAL)


def objective(trial):
    rate = trial.suggest_float("lr", 1e-5, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 8)
    kind = trial.suggest_categorical("optimizer", ["sgd", "adam"])
    if kind == "sgd":
        trial.suggest_float("momentum", 0.0, 0.99)
    value = math.inf
    for step in range(10):
        value = abs(layers - 4) / 8 + abs(math.log10(rate) + 3) + 1 / (step + 1)
        trial.report(value, step)
        if trial.number % 5 == 4 and step == 6:
            raise optuna.TrialPruned
    if trial.number == 3:
        raise RuntimeError("out of luck")
    return value


def storage(kind, folder):
    if kind == "journal":
        path = folder / "journal.log"
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        return optuna.storages.JournalStorage(backend), str(path)
    return f"sqlite:///{folder}/study.db", f"sqlite:///{folder}/study.db"


def study(where, name="digits", trials=12):
    sampler = optuna.samplers.RandomSampler(seed=0)
    made = optuna.create_study(storage=where, study_name=name, sampler=sampler, load_if_exists=True)
    made.set_metric_names(["val/loss"])
    made.optimize(objective, n_trials=trials, catch=RuntimeError)
    return made


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_trials_with_curves_states_and_the_declared_space(tmp_path, imported, uri, kind):
    where, path = storage(kind, tmp_path)
    made = study(where)
    expected = {f"trial {t.number}": {"val/loss": sorted(t.intermediate_values.items())} for t in made.trials}
    experiment = imported(["optuna", path], "digits", expected)
    by_name = {run.name: run for run in experiment.runs}
    for trial in made.trials:
        run = by_name[f"trial {trial.number}"]
        assert run.params == {k: str(v) for k, v in trial.params.items()}
        assert run.status == {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED"}[trial.state.name]
        assert run.started == pytest.approx(trial.datetime_start.timestamp(), abs=0.01)
        assert run.ended == pytest.approx(trial.datetime_complete.timestamp(), abs=0.01)
    read = read_study("digits", tracking_uri=uri)
    assert [t.status for t in read.trials][2:5] == ["complete", "infeasible", "pruned"]
    assert (read.spec.objective.metric, read.spec.objective.direction) == ("val/loss", "minimize")
    rate, layers = read.spec.parameters["lr"], read.spec.parameters["layers"]
    assert (rate.low, rate.high, rate.scale, rate.type) == (1e-5, 1.0, "log", "float")
    assert (layers.low, layers.high, layers.scale, layers.type) == (1, 8, "linear", "int")
    assert read.spec.parameters["optimizer"].choices == ("sgd", "adam")
    assert read.spec.parameters["momentum"].when == {"optimizer": "sgd"}
    assert not set(read.inferred) & {"lr", "layers", "optimizer", "momentum"}
    assert training_command(read, read.spec) == ""  # the report shows the command that exports the next study to Optuna


def test_a_study_that_went_on_is_completed(tmp_path, advisor, uri):
    where, path = storage("sqlite", tmp_path)
    study(where, trials=4)
    assert advisor("import", path)[1].startswith("Imported 4 trials")
    running = optuna.load_study(storage=where, study_name="digits").ask()
    running.report(1.0, 0)
    assert advisor("import", path)[1].startswith("Imported 1 trial with 1 point, 4 were imported before")
    running.report(0.5, 1)
    optuna.load_study(storage=where, study_name="digits").tell(running, 0.5)
    assert advisor("import", path)[1].startswith("Imported 0 trials with 1 point, 1 extended, 4 were imported before")
    assert stored(uri, "digits")["trial 4"] == {"val/loss": [(0, 1.0), (1, 0.5)]}
    assert read_experiment("digits", tracking_uri=uri).runs[4].status == "FINISHED"
    study(where, trials=8)
    assert advisor("import", path)[1].startswith("Imported 8 trials")
    declared = read_experiment("digits", tracking_uri=uri).tags["advisor.study_file"]
    assert parse_study_file(declared).trials == 13  # the declared study is that of the last import


def test_final_values_of_another_metric_stay_apart(tmp_path, advisor, uri):
    def accuracy(trial):
        for step in range(3):
            trial.report(1 / (step + 1), step)
        return 90 + trial.suggest_float("x", 0, 1)

    where, path = storage("sqlite", tmp_path)
    made = optuna.create_study(storage=where, study_name="two", direction="maximize")
    made.optimize(accuracy, n_trials=3)
    assert advisor("import", path)[0] == 0
    curve = [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    expected = {f"trial {t.number}": {"value": [(2, t.value)], "value.intermediate": curve} for t in made.trials}
    assert_same(stored(uri, "two"), expected)


def test_of_several_objectives_one_is_chosen(tmp_path, advisor, refused, uri):
    where, path = storage("sqlite", tmp_path)
    made = optuna.create_study(storage=where, study_name="many", directions=["minimize", "maximize"])
    made.set_metric_names(["loss", "accuracy"])
    made.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 2.0), n_trials=3)
    line = refused("optuna", path)
    assert "has 2 objectives: loss (minimize), accuracy (maximize); choose one with --objective" in line
    assert "has 2 objectives" in refused("optuna", path, "--objective", "7")
    assert advisor("import", "optuna", path, "--objective", "accuracy")[0] == 0
    assert read_experiment("many", tracking_uri=uri).tags["advisor.direction"] == "maximize"


def test_what_is_no_storage_is_refused_and_left_as_it_is(tmp_path, refused, empty_store):
    assert "No such file" in refused("optuna", tmp_path / "absent.db")
    assert "No such file" in refused("optuna", f"sqlite:///{tmp_path}/absent.db")
    assert not (tmp_path / "absent.db").exists()
    before = empty_store.read_bytes()
    assert "is not a storage of Optuna" in refused("optuna", empty_store)  # of MLflow, that is
    assert empty_store.read_bytes() == before
    (tmp_path / "text.log").write_text("hello\n")
    assert "is not JSON" in refused("optuna", tmp_path / "text.log")
    (tmp_path / "other.log").write_text('{"a": 1}\n')
    assert "neither an SQLite database nor a journal file" in refused("optuna", tmp_path / "other.log")
    (tmp_path / "wrong.log").write_text('{"op_code": 77}\n{"op_code": {}}\n')
    assert "Optuna" in refused("optuna", tmp_path / "wrong.log")
    assert "is a folder" in refused("optuna", tmp_path)
    line = refused("optuna", "postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in line
    where, path = storage("sqlite", tmp_path)
    study(where, trials=1)
    assert "no study named 'x' in the storage; its studies are: digits" in refused("optuna", path, "--study", "x")


@pytest.mark.skipif(
    Postgres.binaries() is None or importlib.util.find_spec("psycopg2") is None,
    reason="needs PostgreSQL: initdb is not there, or psycopg2 is not installed",
)
def test_a_storage_in_postgresql(advisor, refused, uri):
    postgres = Postgres()
    try:
        assert "is not a storage of Optuna" in refused("optuna", postgres.uri)
        made = study(postgres.uri, trials=6)
        assert advisor("import", postgres.uri)[1].startswith("Imported 6 trials")
        expected = {f"trial {t.number}": {"val/loss": sorted(t.intermediate_values.items())} for t in made.trials}
        assert_same(stored(uri, "digits"), expected)
        before = dump(uri)
        advisor("import", postgres.uri)
        assert dump(uri) == before
    finally:
        postgres.remove()

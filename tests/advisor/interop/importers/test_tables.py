import json
import math
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from forks import run_script
from imports import import_tables

from advisor.interop.importers.importing import ImportSummary
from advisor.interop.importers.mlflow_runs import SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX
from advisor.model.errors import AdvisorError
from advisor.tracking.stores.reading import list_experiments, read_experiment

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
TRIALS = ("study", "trial", "params", "status", "objective", "direction", "seed", "extra")
CURVES = ("study", "trial", "metric", "step", "value", "time_s")


def trial(study, name, **given):
    params = json.dumps(given.pop("params", {"lr": 0.1, "layers": 3, "nesterov": True, "decay": None, "name": 'a, "b"'}))
    extra = json.dumps(given.pop("extra", {}))
    default = {"status": "complete", "objective": "valid/loss", "direction": "min", "seed": None}
    return {"study": study, "trial": name, "params": params, "extra": extra, **default, **given}


TRIAL_ROWS = [
    trial("s/one", "t0", seed=3, extra={"n_valid": 5000, "planned_steps": 900, "stop_reason": "target", "odd": [1]}),
    trial("s/one", "t1", status="diverged", params={"lr": 0.1 + 0.2, "tiny": 5e-324, "big": 12345678901234567890}),
    trial("s/one", "t2", status="no_data", params={}),
    trial("s/two", "t0", status="stopped", direction="max", objective="acc"),
    trial("s/two", "t9", status="running", direction="max", objective="acc"),
    trial("s/two", "t8", status="infeasible", direction="max", objective="acc"),
]
CURVE_ROWS = [
    ("s/one", "t0", "valid/loss", 0, 2.5, 0.0),
    ("s/one", "t0", "valid/loss", 10, 0.1 + 0.2, 1.5),
    ("s/one", "t0", "valid/loss", 10, 0.25, 1.5),  # the same step twice
    ("s/one", "t0", "valid/loss", 10, 0.25, 1.5),  # the same point twice: MLflow keeps one
    ("s/one", "t0", "valid/loss", 5, 1e-300, 2.0),  # out of order
    ("s/one", "t1", "valid/loss", 0, 1.0, None),
    ("s/one", "t1", "valid/loss", 1, math.inf, None),
    ("s/one", "t1", "valid/loss", 2, -math.inf, None),
    ("s/one", "t1", "valid/loss", 3, math.nan, None),
    ("s/two", "t0", "acc", 7, 0.5, 60.0),
    ("s/two", "t9", "acc", 7, -0.5, None),
]


def tables(folder, kind="parquet", trials=TRIAL_ROWS, curves=CURVE_ROWS):
    columns = {name: [row[name] for row in trials] for name in TRIALS}
    of_trials = pa.table({**columns, "seed": pa.array(columns["seed"], pa.int64())})
    of_curves = pa.table({name: [row[i] for row in curves] for i, name in enumerate(CURVES)})
    paths = folder / f"trials.{kind}", folder / f"curves.{kind}"
    for table, path in zip((of_trials, of_curves), paths, strict=True):
        write = pa.parquet.write_table if kind == "parquet" else pa.csv.write_csv
        write(table, path)
    return paths


def run_import(folder, kind="parquet", uri=None, **given):
    return import_tables(*tables(folder, kind), tracking_uri=uri or f"sqlite:///{folder}/mlflow.db", **given)


def check_stored(uri):
    """What MLflow's own client reads back is what the tables hold."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    runs = {(e.name, r.info.run_name): r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])}
    assert set(runs) == {(t["study"], t["trial"]) for t in TRIAL_ROWS}
    assert [runs[t["study"], t["trial"]].info.status for t in TRIAL_ROWS] == [
        *("FINISHED", "FINISHED", "FAILED", "KILLED", "RUNNING", "FAILED")
    ]
    first, diverged = runs["s/one", "t0"], runs["s/one", "t1"]
    assert first.data.params == {"lr": "0.1", "layers": "3", "nesterov": "True", "name": 'a, "b"'}
    assert diverged.data.params == {"lr": "0.30000000000000004", "tiny": "5e-324", "big": "12345678901234567890"}
    expected = {"study": "s/one", "status": "complete", "objective": "valid/loss", "direction": "minimize", "seed": "3"}
    expected |= {"n_valid": "5000", "max_train_steps": "900", "stop_reason": "target", "extra": '{"odd": [1]}'}
    tags = {k.removeprefix("advisor."): v for k, v in first.data.tags.items() if k.startswith("advisor.")}
    assert {k: tags.get(k) for k in expected} == expected
    for (study, name), run in runs.items():
        wanted = [c for c in dict.fromkeys(CURVE_ROWS) if c[:2] == (study, name)]
        for metric in {c[2] for c in wanted} | set(run.data.metrics):
            stored = client.get_metric_history(run.info.run_id, metric)
            points = {(p.step, _infinite(p.value)) for p in stored if not math.isnan(p.value)}
            assert points == {(c[3], c[4]) for c in wanted if c[2] == metric and not math.isnan(c[4])}
            assert [p.step for p in stored if math.isnan(p.value)] == [c[3] for c in wanted if math.isnan(c[4])]
            for point in stored:
                seconds = {c[5] for c in wanted if c[3] == point.step}
                assert (point.timestamp - run.info.start_time) / 1000 in seconds or seconds == {None}
    assert diverged.data.metrics["valid/loss"] != diverged.data.metrics["valid/loss"]  # the latest one is NaN
    assert first.data.metrics["valid/loss"] == 0.1 + 0.2  # of the last step's points the last by time, then by value


def _infinite(value):
    return math.copysign(math.inf, value) if abs(value) >= np.finfo(np.float64).max else value


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_mlflow_reads_back_what_the_tables_hold(tmp_path, kind, empty_store):
    if kind == "csv":  # else the import creates the store
        shutil.copy(empty_store, tmp_path / "mlflow.db")
    summary = run_import(tmp_path, kind)
    assert summary == ImportSummary(("s/one", "s/two"), 6, 0, 11)
    check_stored(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.xdist_group("tracking server")
def test_a_server_gets_only_missing_runs_the_second_time(tmp_path, empty_store, serve):
    from mlflow import MlflowClient

    server = serve(empty_store).address
    assert run_import(tmp_path, uri=server).new_runs == 6
    check_stored(server)
    client = MlflowClient(server)
    (id,) = [e.experiment_id for e in client.search_experiments() if e.name == "s/one"]
    unfinished = client.search_runs([id], "run_name = 't0'")[0]
    source = unfinished.data.tags[SOURCE_RUN_TAG]
    client.set_tag(unfinished.info.run_id, SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX + source)  # as an interrupted import leaves it
    again = run_import(tmp_path, uri=server)
    assert (again.new_runs, again.unchanged_runs) == (1, 5)
    check_stored(server)


@pytest.mark.usefixtures("database")
def test_what_was_imported_is_analysed_like_any_experiment(tmp_path):
    progress = []
    run_import(tmp_path, on_progress=lambda *p: progress.append(p))
    assert progress[-1] == (6, 6)
    experiment = read_experiment("s/one", tracking_uri=str(tmp_path / "mlflow.db"))
    assert [r.name for r in experiment.runs] == ["t0", "t1", "t2"]  # the table's order
    assert experiment.tags["advisor.objective"] == "valid/loss"
    points = experiment.points["valid/loss"]
    np.testing.assert_array_equal(points.values[points.runs == 1], [1.0, math.inf, -math.inf, math.nan])
    assert np.isnan(points.times[points.runs == 1]).all()
    np.testing.assert_allclose(points.times[points.runs == 0] - experiment.runs[0].started, [0, 1.5, 1.5, 2.0])


@pytest.mark.usefixtures("database")
def test_a_second_import_adds_only_deleted_runs(tmp_path):
    from mlflow import MlflowClient

    first, second = run_import(tmp_path), run_import(tmp_path)
    assert (first.new_runs, first.unchanged_runs, second.new_runs, second.unchanged_runs, second.points) == (6, 0, 0, 6, 0)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    client.delete_run(read_experiment("s/two", tracking_uri=client.tracking_uri).runs[0].id)
    assert run_import(tmp_path).new_runs == 1
    check_stored(client.tracking_uri)


@pytest.mark.usefixtures("database")
def test_one_experiment_for_all_prefixes_names_that_collide(tmp_path):
    assert run_import(tmp_path, experiment="all").experiments == ("all",)
    experiment = read_experiment("all", tracking_uri=str(tmp_path / "mlflow.db"))
    assert [r.name for r in experiment.runs] == ["s/one/t0", "t1", "t2", "s/two/t0", "t9", "t8"]
    assert "advisor.objective" not in experiment.tags  # the studies differ in it; each run has its own
    assert experiment.runs[3].tags["advisor.objective"] == "acc"


@pytest.mark.usefixtures("database")
def test_an_import_that_was_killed_is_completed_by_repeating_it(tmp_path):
    rows = [trial("big", f"t{i}") for i in range(520)]
    curves = [("big", f"t{i}", "valid/loss", s, i + s / 20, None) for i in range(520) for s in range(20)]
    paths = tables(tmp_path, trials=rows, curves=curves)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    script = (
        "import os, sys; from pathlib import Path\n"
        "from advisor.interop.importers.importing import import_runs; from advisor.interop.importers.tables import TidyTables\n"
        "import_runs(TidyTables(Path(sys.argv[2])).find_runs(sys.argv[1]), tracking_uri=sys.argv[3],\n"
        "    on_progress=lambda done, of: done >= 500 and os.kill(os.getpid(), 9))"
    )
    assert run_script(script, tmp_path, *map(str, paths), uri)[0] == -signal.SIGKILL
    there = len(read_experiment("big", tracking_uri=uri).runs)
    assert 500 <= there < 520
    summary = import_tables(*paths, tracking_uri=uri)
    assert (summary.new_runs, summary.unchanged_runs) == (520 - there, there)
    experiment = read_experiment("big", tracking_uri=uri)
    assert len(experiment.runs) == 520
    points = experiment.points["valid/loss"]
    np.testing.assert_array_equal(points.values, np.repeat(np.arange(520), 20) + np.tile(np.arange(20), 520) / 20)


@pytest.mark.usefixtures("database")
def test_names_that_mlflow_rejects_are_changed_with_a_warning(tmp_path):
    rows = [trial("s", "t0", params={"lr@epoch": 1, "lr#epoch": 2, "../x": 3, "": 4})]
    paths = tables(
        tmp_path, trials=rows, curves=[("s", "t0", "loss (valid)", 0, 1.0, None), ("s", "none", "loss", 0, 1.0, None)]
    )
    summary = import_tables(*paths, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = read_experiment("s", tracking_uri=str(tmp_path / "mlflow.db")).runs
    assert run.params == {"lr_epoch": "1", "lr_epoch_2": "2", "x": "3", "_": "4"}
    assert "MLflow does not accept the name 'loss (valid)'; it was imported as 'loss _valid_'." in summary.warnings
    assert any("1 points in" in w and "belong to no trial" in w for w in summary.warnings)


@pytest.mark.usefixtures("database")
def test_csv_as_pandas_writes_it(tmp_path):
    (tmp_path / "trials.csv").write_text(
        "study,trial,params,status,objective,direction,seed\ns,0,{},complete,loss,maximize,1.0\ns,1,,complete,loss,max,\n"
    )
    (tmp_path / "curves.csv").write_text("study,trial,metric,step,value\ns,0,loss,0,\ns,0,loss,1.0,inf\ns,1,loss,0,nan\n")
    import_tables(tmp_path / "trials.csv", tmp_path / "curves.csv", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = read_experiment("s", tracking_uri=str(tmp_path / "mlflow.db"))
    assert [r.tags.get("advisor.seed") for r in experiment.runs] == ["1", None]
    assert experiment.tags["advisor.direction"] == "maximize"
    np.testing.assert_array_equal(experiment.points["loss"].values, [math.nan, math.inf, math.nan])


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_trials_without_a_point_are_imported_with_a_warning(tmp_path, kind):
    paths = tables(tmp_path, kind, [trial("s", "t0")], [("s", "other", "loss", 1, 1.0, None)])
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    (warning,) = import_tables(*paths, tracking_uri=uri).warnings[1:]
    assert warning == f"No trial has a point: {paths[1]} holds none of these trials."
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(CURVES) + "\n")
    summary = import_tables(paths[0], empty, tracking_uri=uri, experiment="empty")
    assert (summary.new_runs, summary.points) == (1, 0)
    assert summary.warnings == (f"No trial has a point: {empty} holds none.",)


BAD = [
    ({"status": "done"}, None, "trials.csv, column 'status', row 2: 'done' is none of complete"),
    ({"direction": "up"}, None, "trials.csv, column 'direction', row 2: 'up' is none of min, max, minimize, maximize"),
    ({"trial": "t0"}, None, "trials.csv, column 'trial', row 2: 't0' of study 's' is already in row 1"),
    ({"seed": "seven"}, None, "trials.csv, column 'seed', row 2: 'seven' is not a whole number"),
    ({"params": "{lr: 1}"}, None, "trials.csv, column 'params', row 2: is not JSON"),
    ({"extra": "[1]"}, None, "trials.csv, column 'extra', row 2: must be a JSON object"),
    ({"objective": None}, None, "trials.csv, column 'objective', row 2: the cell is empty"),
    ({}, ("s", "t0", "loss", 1.5, 1.0), "curves.csv, column 'step', row 2: '1.5' is not a whole number"),
    ({}, ("s", "t0", "loss", 10**20 - 1, 1.0), "column 'step', row 2: '99999999999999999999' is too large"),
    ({"seed": "1e300"}, None, "column 'seed', row 2: '1e300' is too large"),
    ({}, ("s", "t0", "loss", None, 1.0), "curves.csv, column 'step', row 2: the cell is empty"),
    ({}, ("s", "t0", "loss", 1, "high"), "curves.csv, column 'value', row 2: 'high' is not a number"),
    ({}, ("s", None, "loss", 1, 1.0), "curves.csv, column 'trial', row 2: the cell is empty"),
]


@pytest.mark.parametrize(("cells", "point", "message"), BAD)
def test_a_bad_cell_is_named_and_nothing_is_written(tmp_path, cells, point, message):
    columns = dict.fromkeys(TRIALS)
    rows = [trial("s", "t0", seed=1), {**trial("s", "t1", seed=1), **cells}]
    of_trials = pa.table({name: [None if r[name] is None else str(r[name]) for r in rows] for name in columns})
    pa.csv.write_csv(of_trials, tmp_path / "trials.csv")
    points = [("s", "t0", "loss", 0, 1.0), point or ("s", "t0", "loss", 1, 1.0)]
    of_curves = {n: [None if p[i] is None else str(p[i]) for p in points] for i, n in enumerate(CURVES[:5])}
    pa.csv.write_csv(pa.table(of_curves), tmp_path / "curves.csv")
    with pytest.raises(AdvisorError) as caught:
        import_tables(tmp_path / "trials.csv", tmp_path / "curves.csv", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mlflow.db").exists()


def test_files_that_are_no_tables(tmp_path):
    trials, curves = tables(tmp_path)
    (tmp_path / "no.parquet").write_text("hello")
    (tmp_path / "few.csv").write_text("study,trial\ns,t\n")
    for path, message in (
        (tmp_path / "absent.parquet", "cannot read .*absent.parquet"),
        (tmp_path / "no.parquet", "no.parquet is not a Parquet file"),
        (tmp_path / "few.csv", "lacks the column 'params'; its columns are: study, trial"),
        (tmp_path / "table.xlsx", "neither a .parquet nor a .csv file"),
        (curves, "lacks the column 'params'"),
    ):
        with pytest.raises(AdvisorError, match=message):
            import_tables(path, curves, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(AdvisorError, match="there is no folder"):
        import_tables(trials, curves, tracking_uri=f"sqlite:///{tmp_path}/absent/mlflow.db")


@pytest.mark.usefixtures("database")
def test_a_store_of_another_schema_is_not_migrated(tmp_path):
    import sqlite3

    run_import(tmp_path)
    path = shutil.copy(tmp_path / "mlflow.db", tmp_path / "old.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'a5b4c3d2e1f0'")
    connection.close()
    before = Path(path).read_bytes()
    with pytest.raises(AdvisorError, match="mlflow db upgrade"):
        run_import(tmp_path, uri=f"sqlite:///{path}")
    assert Path(path).read_bytes() == before
    assert list_experiments(f"sqlite:///{tmp_path}/mlflow.db") == ("Default", "s/one", "s/two")

"""What all importers share: how runs are written to a store, missing libraries and the help."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from fault_servers import Postgres
from imports import assert_same, dump, stored

from advisor.interop.importers import writers
from advisor.interop.importers.importing import import_runs
from advisor.interop.importers.runs import RunContent, RunCurves, RunList, SourceRun
from advisor.model.errors import AdvisorError
from advisor.tracking.stores.reading import read_experiment

POINTS = [(0, 1.0), (1, math.nan), (2, math.inf), (3, -math.inf), (3, 2.0), (3, 2.0), (10**15, 1e308)]


def source_run(name, points, state=None, **content):
    def read():
        curves = RunCurves()
        for step, value in points:
            curves.add("loss", step, value, 1_700_000_000_000 + step % 1000)
        return RunContent(curves.points(), **content)

    return SourceRun(name, ("test", name), "e", read, state)


def as_stored(points):
    return [p for i, p in enumerate(points) if p not in points[:i] or math.isnan(p[1])]


@pytest.mark.parametrize("kind", ["sqlite", "files", "postgresql"])
def test_into_each_kind_of_store(kind, uri, tmp_path, request):
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    (tmp_path / "mlruns").mkdir()
    if kind != "postgresql":
        grow_and_compare(uri if kind == "sqlite" else str(tmp_path / "mlruns"))
        return
    if Postgres.binaries() is None or importlib.util.find_spec("psycopg2") is None:
        pytest.skip("needs PostgreSQL: initdb is not there, or psycopg2 is not installed")
    postgres = Postgres()
    request.addfinalizer(postgres.remove)
    SqlAlchemyStore(postgres.uri, "./mlruns").engine.dispose()
    grow_and_compare(postgres.uri)


def grow_and_compare(uri):
    """A run is written, grows, and is completed; what is the same stays, also the points that are not finite."""
    first = import_runs(RunList([source_run("r", POINTS[:4], "1", params={"lr": 0.1}, status="RUNNING")]), tracking_uri=uri)
    assert (first.new_runs, first.points) == (1, 4)
    (before,) = read_experiment("e", tracking_uri=uri).runs
    assert (before.status, before.ended) == ("RUNNING", None)
    again = import_runs(RunList([source_run("r", POINTS, "2", params={"lr": 0.2, "new": "x"})]), tracking_uri=uri)
    assert (again.new_runs, again.extended_runs, again.unchanged_runs) == (0, 1, 0)
    unread = replace(source_run("r", POINTS, "2"), read=lambda: pytest.fail("an unchanged run is read"))
    third = import_runs(RunList([unread]), tracking_uri=uri)
    assert (third.extended_runs, third.unchanged_runs, third.points) == (0, 1, 0)
    touched = import_runs(RunList([source_run("r", POINTS, "3", params={"lr": 0.1})]), tracking_uri=uri)
    assert (touched.extended_runs, touched.unchanged_runs, touched.points) == (0, 1, 0)
    experiment = read_experiment("e", tracking_uri=uri)
    (run,) = experiment.runs
    assert (run.id, run.status, run.params) == (before.id, "FINISHED", {"lr": "0.1", "new": "x"})
    assert run.ended is not None
    assert_same(stored(uri, "e"), {"r": {"loss": sorted(as_stored(POINTS), key=lambda p: p[0])}})


def test_the_latest_value_is_that_of_the_last_step(uri):
    from mlflow import MlflowClient

    for points in ([(0, 5.0), (9, 3.0), (4, 7.0)], [(0, 5.0), (9, 3.0), (4, 7.0), (11, math.nan)]):
        import_runs(RunList([source_run("r", points, str(len(points)))]), tracking_uri=uri)
        (run,) = MlflowClient(uri).search_runs(
            [MlflowClient(uri).get_experiment_by_name("e").experiment_id]  # type: ignore[union-attr]
        )
        latest = max(points)[1]
        assert run.data.metrics["loss"] == latest or math.isnan(latest)
        assert math.isnan(run.data.metrics["loss"]) == math.isnan(latest)


def test_runs_and_points_are_split_over_transactions_and_statements(uri, monkeypatch):
    monkeypatch.setattr(writers, "_POINTS_PER_TRANSACTION", 5)
    monkeypatch.setattr(writers, "_POINTS_PER_STATEMENT", 2)
    curves = {f"r{i}": [(step, float(i + step)) for step in range(3)] for i in range(5)}
    summary = import_runs(RunList([source_run(name, points) for name, points in curves.items()]), tracking_uri=uri)
    assert (summary.new_runs, summary.points) == (5, 15)
    assert_same(stored(uri, "e"), {name: {"loss": points} for name, points in curves.items()})


def test_unreadable_runs_are_left_out_and_create_no_experiment(uri):
    def fail():
        raise AdvisorError("r1 is broken")

    broken = SourceRun("r1", ("test", "r1"), "e", fail)
    before = dump(uri)
    with pytest.raises(AdvisorError, match="r1 is broken"):
        import_runs(RunList([broken]), tracking_uri=uri)
    assert dump(uri) == before
    summary = import_runs(RunList([source_run("r0", POINTS), broken, source_run("r2", POINTS)]), tracking_uri=uri)
    assert (summary.new_runs, summary.unreadable) == (2, ("r1 is broken",))
    assert set(stored(uri, "e")) == {"r0", "r2"}


def test_progress_counts_skipped_and_unreadable_runs_when_they_are_met(uri):
    def fail():
        raise AdvisorError("r1 is broken")

    old, new = source_run("r0", POINTS), source_run("r2", POINTS)
    import_runs(RunList([old]), tracking_uri=uri)
    runs, progress = RunList([old, SourceRun("r1", ("test", "r1"), "e", fail), new]), []
    import_runs(runs, tracking_uri=uri, on_progress=lambda *counts: progress.append(counts))
    assert progress[:3] == [(1, 3), (2, 3), (3, 3)]


def test_names_and_values_that_stores_reject(uri):
    params = {"a": {"b": [1, {"c": 2}], "d": None}, "half\ud800": "zero\0", "long": "x" * 9000, "deep": [[]] * 3000}
    import_runs(RunList([source_run("n\udc00me", POINTS, params=params)]), tracking_uri=uri)
    (run,) = read_experiment("e", tracking_uri=uri).runs
    assert run.name == "n\\udc00me"
    assert run.params["a.b"] == '[1, {"c": 2}]'
    assert run.params["half_ud800"] == "zero "
    assert len(run.params["long"]) == len(run.params["deep"]) == 5000


def test_runs_with_the_same_name_get_different_ones(uri):
    two = [SourceRun("r", ("test", study), study, source_run("r", POINTS).read) for study in ("a", "b")]
    import_runs(RunList(two), tracking_uri=uri, experiment="all")
    assert set(stored(uri, "all")) == {"a/r", "b/r"}


def test_an_interrupted_import_continues_as_it_began(uri, tmp_path):
    curves = RunCurves()
    curves.add("loss", 1, 0.5, 0)
    runs = [SourceRun(str(i), ("test", str(i)), "e", lambda: RunContent(curves.points())) for i in range(3)]
    import_runs(RunList(runs[:1]), tracking_uri=uri)
    import_runs(RunList(runs), tracking_uri=uri)
    starts = [run.started for run in read_experiment("e", tracking_uri=uri).runs]
    assert len(set(starts)) == 3


def test_facts_among_the_parameters(uri):
    params = {"trainer": {"max_steps": 100}, "data": {"batch_size": "32"}, "seed": 7, "other": {"seed": 8}}
    import_runs(
        RunList([source_run("r", POINTS, params=params), source_run("s", POINTS, params={"max_steps": -1})]), tracking_uri=uri
    )
    tags = {run.name: run.tags for run in read_experiment("e", tracking_uri=uri).runs}
    assert (tags["r"]["advisor.max_train_steps"], tags["r"]["advisor.batch_size"]) == ("100", "32")
    assert "advisor.seed" not in tags["r"]  # two of them
    assert "advisor.max_train_steps" not in tags["s"]


def test_a_missing_library_is_named_with_its_extra(tmp_path, refused, monkeypatch):
    (tmp_path / "events.out.tfevents.1.h").touch()
    (tmp_path / "run-1.wandb").touch()
    (tmp_path / "journal.log").write_text(json.dumps({"op_code": 0}) + "\n")
    for kind, path in (("tensorboard", tmp_path), ("wandb", tmp_path), ("optuna", tmp_path / "journal.log")):
        for name in [name for name in sys.modules if name == kind or name.startswith(f"{kind}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, kind, None)
        assert 'pip install "tuning-advisor[importers]"' in refused(kind, path)


def test_help_teaches_without_loading_any_library():
    script = (
        "import sys\nfrom advisor.cli import main\n"
        "for kind in sys.argv[1:]:\n"
        "    main(['import', kind, '--help'])\n"
        "heavy = {'mlflow', 'tensorboard', 'wandb', 'optuna', 'pyarrow', 'numpy', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    kinds = ["tensorboard", "wandb", "lightning", "trainer-state", "optuna", "csv", "jsonl", "algoperf", "ray", "auto"]
    kinds.append("results-tsv")
    ran = subprocess.run([sys.executable, "-c", script, *kinds], capture_output=True, text=True, check=True, env={**os.environ})
    for kind in kinds:
        assert "advisor import " + ("lightning_logs" if kind == "auto" else kind) in ran.stdout

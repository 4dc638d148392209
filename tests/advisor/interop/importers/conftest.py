"""Fixtures of the importers' tests: a store, the command line, and checks of what MLflow holds afterwards."""

import json
import os
import shutil

import pytest
from commands import outcome_of
from imports import assert_same, dump, stored

from advisor.tracking.stores.reading import read_experiment

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture
def uri(tmp_path, empty_store, monkeypatch):
    folder = tmp_path / "store"
    folder.mkdir()
    uri = f"sqlite:///{shutil.copy(empty_store, folder / 'mlflow.db')}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture
def advisor(capsys, uri):
    """Run the command line on the store; return (exit status, standard output, standard error)."""

    def run(*arguments):
        return outcome_of(capsys, *arguments)

    return run


@pytest.fixture
def imported(advisor, uri, tmp_path):
    """Import, compare point by point, import again without a change, and analyze; return the experiment as read."""

    def run(arguments, experiment, expected, objective=None, last_bit=True):
        status, out, err = advisor("import", *arguments)
        assert status == 0, err
        points = sum(len(p) for metrics in expected.values() for p in metrics.values())
        trials = "1 trial" if len(expected) == 1 else f"{len(expected):,} trials"
        assert out.startswith(f"Imported {trials} with {points:,} points. Experiments:\n  {experiment}\n")
        assert_same(stored(uri, experiment), expected, last_bit=last_bit)
        before = dump(uri)
        status, out, err = advisor("import", *arguments)
        already = "1 was" if len(expected) == 1 else f"{len(expected):,} were"
        first = f"Imported 0 trials with 0 points, {already} imported before. Experiments:"
        assert (status, out.splitlines()[0]) == (0, first)
        assert dump(uri) == before
        options = ["--objective", objective] if objective else []
        status, _, err = advisor("analyze", experiment, *options, "--out", tmp_path / "report", "--quiet")
        assert (status, err) == (0, "")
        findings = json.loads((tmp_path / "report/findings.json").read_text())
        assert findings["study"] == experiment
        assert not [v for v in findings["verdicts"] if v["status"] == "broken"]
        return read_experiment(experiment, tracking_uri=uri)

    return run


@pytest.fixture
def refused(advisor, uri):
    """Check that an import is refused with one line, status 2 and nothing written; return the line."""

    def run(*arguments):
        before = dump(uri)
        status, out, err = advisor("import", *arguments)
        assert status == 2, out + err
        assert err.startswith("advisor: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        assert "(a bug" not in err
        assert dump(uri) == before
        return err.removeprefix("advisor: ").rstrip("\n")

    return run

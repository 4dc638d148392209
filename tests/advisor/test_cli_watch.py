"""`advisor analyze --watch` where an analysis fails, and the command that a report says repeats it."""

import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from advisor import analyze
from advisor.cli import main
from advisor.cli.watch import follow
from tests.advisor.test_cli import log_study

RATES = [10 ** (-5 + 0.25 * i) for i in range(12)]


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    log_study(MlflowClient(uri), "plain", RATES)
    return uri


def test_watch_outlives_every_failure_of_an_analysis(uri):
    report = analyze("plain", tracking_uri=uri, settings={})
    kept, said = [], []
    newer = report.model_copy(update={"provenance": report.provenance.model_copy(update={"data": "newer"})})
    steps = iter([ValueError("odd\ndata of http://me:hunter2@host"), ValueError("odd"), newer, KeyboardInterrupt()])

    def make():
        step = next(steps)
        if isinstance(step, BaseException):
            raise step
        return step

    follow(report, make=make, keep=kept.append, port=0, say=said.append, every=0.01)
    failures = [line for line in said if "is tried again" in line]
    assert [line.partition("again: ")[2] for line in failures] == [
        "ValueError: odd data of http://***@host",
        "ValueError: odd",
    ]
    assert kept == [newer]


def test_the_command_that_repeats_an_analysis_has_its_rules(uri):
    for name in ("one", "other rules"):
        Path(name).mkdir()
    main(["analyze", "plain", "--tracking-uri", uri, "--rules", "one", "--rules", "other rules", "-q"])
    written = json.loads(Path("advisor-report/findings.json").read_text("utf-8"))
    assert written["provenance"]["command"] == "advisor analyze plain --rules one --rules 'other rules'"

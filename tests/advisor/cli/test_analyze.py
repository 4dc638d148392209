"""`advisor analyze` beyond one report: into MLflow, and again while trials come in."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor import analyze
from advisor.cli import main
from advisor.cli.watch import follow
from advisor.report.publish import tags

RATES = [10 ** (-5 + 0.25 * i) for i in range(12)]


@pytest.fixture
def uri(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_study(MlflowClient(database), "plain", RATES)
    return database


def test_log_to_mlflow_puts_the_report_beside_the_trials(uri, capsys):
    main(["analyze", "plain", "--tracking-uri", uri, "--log-to-mlflow"])
    said = capsys.readouterr().out
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("plain").experiment_id], "tags.`advisor.report` != ''")
    assert f"In MLflow: run {run.info.run_id}" in said
    assert "View run" not in said
    for name in ("report.html", "findings.json"):
        stored = Path(client.download_artifacts(run.info.run_id, name)).read_bytes()
        assert stored == (Path("advisor-report") / name).read_bytes()
    listed = {Path(a.path).name for a in client.list_artifacts(run.info.run_id, "next")}
    assert listed == {p.name for p in Path("advisor-report/next").glob("*.yaml")} != set()
    findings = json.loads(Path("advisor-report/findings.json").read_text("utf-8"))
    for verdict in findings["verdicts"]:
        tag = run.data.tags[f"advisor.verdict.{verdict['rule']}"]
        assert tag.startswith(verdict["status"])
        assert all(f["message"] in tag for f in verdict["findings"])
    # The run that holds the report is no trial, and the same report changes nothing.
    main(["analyze", "plain", "--tracking-uri", uri, "--log-to-mlflow"])
    assert "(was there already)" in capsys.readouterr().out
    assert findings["trials"]["total"] == len(RATES)
    assert analyze("plain", tracking_uri=uri).counts.total == len(RATES)


def test_the_tags_hold_the_verdict_on_the_study(uri):
    report = analyze("plain", tracking_uri=uri)
    said = tags(report)
    assert said["advisor.headline"] in report.to_html()
    assert set(said) == {"advisor.headline", "mlflow.note.content"} | {
        f"advisor.verdict.{v.rule}" for v in report.verdicts
    }


def test_watch_goes_on_so_that_fail_on_makes_no_sense(uri, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "plain", "--tracking-uri", uri, "--watch", "--fail-on", "note"])
    assert ended.value.code == 2
    assert "--fail-on says nothing" in capsys.readouterr().err


def test_watch_serves_each_new_report_and_says_what_changed(uri, tmp_path):
    code = "import advisor.cli.watch as w; w.follow.__kwdefaults__['every'] = 0.2; from advisor.cli import main; main()"
    command = [sys.executable, "-c", code, "analyze", "plain", "--tracking-uri", uri, "--watch", "--out", "out"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - as in the background it is ignored
    ) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if found := re.match(r"Live at (http://127\.0\.0\.1:\d+/) ", line):
                    break
            url = found[1]
            state = json.load(urllib.request.urlopen(url + "state"))
            assert (state["version"], state["changes"], state["error"]) == (1, [], None)
            client = MlflowClient(uri)
            id = client.get_experiment_by_name("plain").experiment_id
            for i in range(2):
                run = client.create_run(id, run_name=f"late-{i}").info.run_id
                client.log_param(run, "lr", 0.1)
                for step, loss in ((0, 2.0), (200, 0.25), (380, 0.2 - 0.01 * i)):
                    client.log_metric(run, "val_loss", loss, step=step)
                client.set_terminated(run)
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline:
                state = json.load(urllib.request.urlopen(url + "state"))
                page = urllib.request.urlopen(url + "report.html").read().decode()
                if "late-1" in page and (tmp_path / "out" / "report.html").read_text("utf-8") == page:
                    break
                time.sleep(0.3)
            assert "late-1" in page
            assert state["version"] > 1
            assert any("new trial" in line for line in state["changes"]) or state["version"] > 2
        finally:
            process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert re.search(r"\d\d:\d\d:\d\d Best val_loss: 0\.19", rest)
    assert "Traceback" not in rest


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

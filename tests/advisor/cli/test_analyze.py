"""`advisor analyze` beyond its report: the report in MLflow, and the command that repeats it."""

import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor import analyze
from advisor.cli import main
from advisor.report.save import report_tags

RATES = [10 ** (-5 + 0.25 * i) for i in range(12)]


@pytest.fixture
def uri(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_study(MlflowClient(database), "plain", RATES)
    return database


def test_log_to_mlflow_puts_the_report_beside_the_trials(uri, capsys):
    main(["analyze", "plain", "--tracking-uri", uri, "--log-to-mlflow"])
    output = capsys.readouterr().out
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("plain").experiment_id], "tags.`advisor.report` != ''")
    assert f"In MLflow: run {run.info.run_id}" in output
    assert "View run" not in output
    for name in ("report.html", "findings.json"):
        stored = Path(client.download_artifacts(run.info.run_id, name)).read_bytes()
        assert stored == (Path("advisor-report") / name).read_bytes()
    listed = {Path(a.path).name for a in client.list_artifacts(run.info.run_id, "next")}
    assert listed == {p.name for p in Path("advisor-report/next").glob("*.yaml")} != set()
    findings = json.loads(Path("advisor-report/findings.json").read_text("utf-8"))
    fired = [verdict for verdict in findings["verdicts"] if verdict["status"] == "fired"]
    for verdict in fired:
        tag = run.data.tags[f"advisor.verdict.{verdict['rule']}"]
        assert all(f["message"] in tag for f in verdict["findings"])
    assert run.data.tags["advisor.rules"].startswith(f"{len(fired)} fired, ")
    note = client.get_experiment_by_name("plain").tags["mlflow.note.content"]
    assert f"[Report](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/report.html)" in note
    # The run that holds the report is no trial, and the same report changes nothing.
    main(["analyze", "plain", "--tracking-uri", uri, "--log-to-mlflow"])
    assert "(was there already)" in capsys.readouterr().out
    assert findings["trials"]["total"] == len(RATES)
    assert analyze("plain", tracking_uri=uri).counts.total == len(RATES)


def test_the_tags_hold_the_verdict_on_the_study(uri):
    report = analyze("plain", tracking_uri=uri)
    logged = report_tags(report)
    assert logged["advisor.headline"] in report.to_html()
    assert set(logged) == {"advisor.headline", "mlflow.note.content", "advisor.rules"} | {
        f"advisor.verdict.{v.rule}" for v in report.verdicts if v.status == "fired"
    }
    counts = [int(part.split()[0]) for part in logged["advisor.rules"].split(", ")]
    assert sum(counts) == len(report.verdicts)


def test_the_command_that_repeats_an_analysis_has_its_rules(uri):
    for name in ("one", "other rules"):
        Path(name).mkdir()
    main(["analyze", "plain", "--tracking-uri", uri, "--rules", "one", "--rules", "other rules", "-q"])
    written = json.loads(Path("advisor-report/findings.json").read_text("utf-8"))
    assert written["provenance"]["command"] == "advisor analyze plain --rules one --rules 'other rules'"

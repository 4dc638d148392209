"""`advisor watch`: analyses repeated while trials come in, and the page that follows them."""

import json
import re
import signal
import sys
import threading
import urllib.request

import pytest
from commands import start
from mlflow.tracking import MlflowClient
from mlflow_studies import log_study

from advisor import analyze
from advisor.cli.watch import describe_report_changes, serve_live_report, wait_for_report
from advisor.report import Report
from advisor.report.model import RunningTrial
from tests.advisor.report.studies import make_report, make_study, make_verdicts, of_one_optimizer

RATES = [10 ** (-5 + 0.25 * i) for i in range(12)]


@pytest.fixture
def uri(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_study(MlflowClient(database), "plain", RATES)
    return database


@pytest.fixture(scope="module")
def report():
    return make_report(make_study(12, dense=False), ())


def test_watch_serves_each_new_report_and_says_what_changed(uri, tmp_path):
    code = (
        "import advisor.cli.watch as w; w.serve_live_report.__kwdefaults__['interval_s'] = 0.2; "
        "from advisor.cli import main; main()"
    )
    words = ["watch", "plain", "--tracking-uri", uri, "--out", "out"]
    with start(words, tmp_path, program=[sys.executable, "-c", code]) as process:
        too_long = threading.Timer(120, process.kill)
        too_long.start()
        try:
            url = next(
                found[1] for line in process.stdout if (found := re.match(r"Live report at (http://127\.0\.0\.1:\d+/) ", line))
            )
            state = json.load(urllib.request.urlopen(url + "state"))
            assert (state["version"], state["changes"], state["running"], state["error"]) == (1, [], [], None)
            log_two_more(uri)
            # The analysis may also run between the two trials, so the last of its lines counts.
            assert any(re.match(r"\d\d:\d\d:\d\d Best val_loss: 0\.19", line) for line in process.stdout)
            state = json.load(urllib.request.urlopen(url + "state"))
            page = urllib.request.urlopen(url + "report.html").read().decode()
            assert "late-1" in page
            assert (tmp_path / "out" / "report.html").read_text("utf-8") == page
            assert state["version"] > 1
            assert state["changes"]
        finally:
            too_long.cancel()
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "Traceback" not in errors


def log_two_more(uri):
    client = MlflowClient(uri)
    id = client.get_experiment_by_name("plain").experiment_id
    for i in range(2):
        run = client.create_run(id, run_name=f"late-{i}").info.run_id
        client.log_param(run, "lr", 0.1)
        for step, loss in ((0, 2.0), (200, 0.25), (380, 0.2 - 0.01 * i)):
            client.log_metric(run, "val_loss", loss, step=step)
        client.set_terminated(run)


def test_watch_waits_for_the_first_result(uri):
    """There is nothing to judge without a run, while only another metric was logged, and while the only trial runs."""
    client, said = MlflowClient(uri), []
    id = client.create_experiment("young")
    run = client.create_run(id, tags={"advisor.objective": "val/loss"}).info.run_id
    client.delete_run(run)
    steps = [
        lambda: client.restore_run(run),
        lambda: client.log_metric(run, "train/loss", 1.0),
        lambda: client.log_metric(run, "val/loss", 0.5),
        lambda: client.set_terminated(run),
    ]

    def analyze_young():
        try:
            return analyze("young", tracking_uri=uri, unfinished=True)
        finally:
            if steps:
                steps.pop(0)()

    report = wait_for_report(analyze_young, said.append, interval_s=0.0)
    assert (report.best, [t.state for t in report.running]) == (None, ["unknown"])
    reasons = [line.partition("Waiting for the first value: ")[2] for line in said]
    ends = ("has no runs", "logged a metric", "no run logged the objective 'val/loss'")
    assert len(reasons) == 3
    assert all(part in reason for part, reason in zip(ends, reasons, strict=True)), reasons


def test_watch_says_once_that_a_running_trial_is_in_trouble(report):
    plain = {"id": "r", "name": "trial-1", "step": 40, "length": 100.0, "stop": False}
    states = ("stuck", "fine", "stuck", "doomed", "doomed")
    running = [RunningTrial(**plain, state=state, message=f"trial-1 is {state}.") for state in states]
    steps = iter(
        report.model_copy(update={"running": (trial,), "provenance": report.provenance.model_copy(update={"data": str(i)})})
        for i, trial in enumerate(running)
    )
    first, lines = next(steps), []

    def next_result():
        if (step := next(steps, None)) is None:
            raise KeyboardInterrupt
        return step

    serve_live_report(first, analyze=next_result, write=lambda _: None, port=0, echo=lines.append, interval_s=0.01)
    told = [line.split(" ", 1)[1] for line in lines if "trial-1 is" in line]
    assert told == ["Stuck: trial-1 is stuck.", "Doomed: trial-1 is doomed."]


def test_watch_outlives_every_failure_of_an_analysis(report):
    written, lines = [], []
    newer = report.model_copy(update={"provenance": report.provenance.model_copy(update={"data": "newer"})})
    steps = iter([ValueError("odd\ndata of http://me:hunter2@host"), ValueError("odd"), newer, KeyboardInterrupt()])

    def next_result():
        step = next(steps)
        if isinstance(step, BaseException):
            raise step
        return step

    serve_live_report(report, analyze=next_result, write=written.append, port=0, echo=lines.append, interval_s=0.01)
    failures = [line for line in lines if "will be repeated" in line]
    assert [line.partition("repeated: ")[2] for line in failures] == [
        "ValueError: odd data of http://***@host",
        "ValueError: odd",
    ]
    assert written == [newer]


STUDY = make_study(40, dense=False)
VERDICTS = make_verdicts(STUDY)


def part(trials: int, running: int = 0) -> Report:
    """Return the report on the first `trials` trials; the last `running` trials are running."""
    shown = make_study(trials, dense=False, statuses=dict.fromkeys(range(trials - running, trials), "running"))
    return make_report(shown, ())


def test_nothing_changes_between_a_report_and_itself() -> None:
    report = make_report(STUDY, VERDICTS)
    assert describe_report_changes(report, report) == ()


def test_new_and_ended_trials_are_counted() -> None:
    before, after = part(10, 2), part(12, 1)
    lines = describe_report_changes(before, after)
    assert lines[0] == "2 new trials (12 in total, 1 running)."
    assert lines[1].startswith("2 trials ended: trial-0008 (")


def test_a_better_value_is_compared_to_the_previous_one() -> None:
    before, after = part(10), part(40)
    best = [line for line in describe_report_changes(before, after) if line.startswith("Best")]
    costs = STUDY.costs[STUDY.feasible]
    now = f"{costs.min():.4f} (trial-{int(STUDY.ranked()[0].index):04d})"
    assert best == [f"Best validation/error: {now}, previously {part(10).best.value:.4f}."]


def test_the_first_result_is_named() -> None:
    assert any(line.startswith("First result: validation/error 0.") for line in describe_report_changes(part(2, 2), part(3, 1)))


def test_new_and_resolved_findings_are_listed_whatever_their_numbers() -> None:
    spikes, boundary, *rest = VERDICTS
    reworded = boundary.findings[0].model_copy(update={"message": "Five of the five best trials lie there"})
    quiet = spikes.model_copy(update={"status": "quiet", "findings": ()})
    before = make_report(STUDY, (spikes, boundary))
    after = make_report(STUDY, (quiet, boundary.model_copy(update={"findings": (reworded,)}), rest[0]))
    differences = [line for line in describe_report_changes(before, after) if line.startswith(("New finding", "Resolved"))]
    assert differences == [
        "New finding: The best trials are still improving at step 10,000: 0.004 more is expected by step 15,000.",
        "Resolved: Four of the ten best trials have gradient norms above 20, over 15 times their median of 1.1.",
    ]


def test_newly_assessed_checks_and_changed_studies_are_listed() -> None:
    lacking = next(v for v in VERDICTS if v.status == "not-assessed")
    study = of_one_optimizer(40, dense=False)
    before = make_report(study, (lacking,))
    after = make_report(study, (lacking.model_copy(update={"status": "quiet"}), VERDICTS[1]))
    lines = describe_report_changes(before, after)
    assert f"1 more check has enough data: {lacking.rule}." in lines
    assert "Updated: next/1-search-lower-weight-decay.yaml." in lines
    assert f"Removed: next/{before.next_studies[0].file}." in lines
    assert f"Removed: next/{after.next_studies[0].file}." in describe_report_changes(after, before)

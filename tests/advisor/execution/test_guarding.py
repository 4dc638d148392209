"""Launches with a guard: it stops hopeless trainings, which a later launch can continue."""

import json
import math
import time
from dataclasses import replace

import launches
import pytest
from clusters import ray_cluster
from guarded import EVALUATIONS, SPEC, TRAINING, Notices, guarded_plan, log_study
from launches import Background, begun, claim, client_of, wait_until
from mlflow import MlflowClient

from advisor import contract
from advisor.contract.guard_stop import GuardStop
from advisor.execution import Ledger, jobs
from advisor.execution.engines import process
from advisor.execution.engines.local import LocalEngine
from advisor.execution.engines.process import Exit
from advisor.execution.engines.slurm import SlurmEngine
from advisor.execution.guarding import GuardedStudy, ReadPacer, StudyGuard
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.execution.ledger.record import JobOutcome
from advisor.model.errors import AdvisorError
from advisor.model.spec import Sampler
from advisor.tracking import read_study
from advisor.tracking.stores.location import parse_tracking_uri

STOPPED = {(n, 0): "complete" for n in range(5)} | {(5, 0): "pruned", (6, 0): "diverged"}


@pytest.fixture
def trained(project, logs):
    (project / "train.py").write_text(TRAINING)
    return project


def run_of(project, trial):
    client = client_of(project)
    experiment = client.get_experiment_by_name("e").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`advisor.trial` = '{trial}'")
    return run


def location():
    return parse_tracking_uri("sqlite:///mlflow.db")


def open_ledger():
    return Ledger(location(), "e", SPEC)


def tag(run):
    return json.loads(run.data.tags[contract.TAG_GUARD_STOP])


def test_hopeless_trainings_are_marked_before_their_processes_end_stopped_once_and_recorded(trained, monkeypatch):
    monkeypatch.setattr(process, "STOP_GRACE_S", 300.0)
    (trained / "stubborn").touch()  # they ignore Ctrl-C, so they go on until they are killed
    running = Background(guarded_plan(trained))
    wait_until(lambda: len(begun(trained)) == 7)
    wait_until(lambda: contract.TAG_GUARD_STOP in run_of(trained, 5).data.tags)
    assert run_of(trained, 5).info.status == "RUNNING"
    trial = read_study("e", tracking_uri="sqlite:///mlflow.db", spec=SPEC).trials[5]
    assert trial.status == "pruned"
    assert "the guard stopped it at step" in trial.reason
    monkeypatch.setattr(process, "STOP_GRACE_S", 1.0)
    assert running.end() == STOPPED
    doomed, infinite = run_of(trained, 5), run_of(trained, 6)
    steps = tag(doomed)["step"], tag(infinite)["step"]
    assert running.reported(f"trial-5 was stopped at step {steps[0]}: trial-5 cannot become the best")
    reason = "val/loss of trial-6 is not finite from step 1 on."
    assert running.reported(f"trial-6 was stopped at step {steps[1]}: {reason}")
    assert sum("was stopped" in line for line in running.news) == 2
    assert (tag(doomed)["state"], tag(infinite)["state"], tag(infinite)["reason"]) == ("doomed", "not_finite", reason)
    assert (5 <= steps[0] <= 8, 2 <= steps[1] <= 8) == (True, True)
    assert abs(tag(doomed)["at"] - time.time()) < 300
    assert (doomed.info.status, infinite.info.status) == ("KILLED", "KILLED")
    assert doomed.data.tags[contract.TAG_STATUS] == "pruned"
    again = Background(guarded_plan(trained))
    assert again.end() == STOPPED
    assert begun(trained) == [str(n) for n in range(7)]
    assert running.summary.counts() == {"complete": 5, "pruned": 1, "diverged": 1}
    assert running.summary.failed == 0


def test_two_launchers_with_guards_agree(trained):
    one, two = (Background(guarded_plan(trained, engine=LocalEngine([{}]))) for _ in range(2))
    one.end(), two.end()  # the first one to end does not see how the other's last trial ends
    entries = open_ledger().entries()
    assert {entry.key: entry.outcome.status for entry in entries} == STOPPED
    assert begun(trained) == [str(n) for n in range(7)]
    assert sum("was stopped" in line for line in (*one.news, *two.news)) == 2


def test_a_guard_that_only_reports_stops_nothing(trained):
    notices = Notices()
    running = Background(guarded_plan(trained, stop_doomed=False, notifier=notices))
    wait_until(lambda: {"doomed", "not_finite"} <= notices.events)
    (trained / "go").touch()
    assert set(running.end().values()) == {"complete"}


def test_nothing_is_stopped_while_the_store_is_away(training, proxy, monkeypatch):
    errors, latest = [], StudyGuard.latest

    def counted(guard):
        reading = latest(guard)
        errors.extend([] if reading is None or reading.error is None else [reading.error])
        return reading

    monkeypatch.setattr(StudyGuard, "latest", counted)
    uri = f"http://127.0.0.1:{proxy.port}"
    running = Background(guarded_plan(training, launches.SPEC, uri))
    wait_until(lambda: begun(training) == ["0", "1"])
    proxy.cut()
    wait_until(lambda: len(errors) >= 2, 300.0)
    assert sum("The guard cannot read the study, so it stops nothing" in line for line in running.news) == 1
    (training / "go").touch()
    time.sleep(1.0)
    proxy.restored()
    assert running.end() == {(0, 0): "complete", (1, 0): "complete"}


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("last", "code", "status"), [(12, 0, "complete"), (11, -2, "complete"), (10, 0, "pruned"), (12, -2, "complete")]
)
def test_a_training_that_ended_by_itself_just_before_counts_as_complete(project, last, code, status, marked):
    ledger = open_ledger()
    run_id = claim(ledger, jobs(SPEC)[0])
    for step in range(1, last + 1):
        client_of(project).log_metric(run_id, "val/loss", 3.0, step=step)
    stop = GuardStop("doomed", 8, "it cannot win", time.time(), float(EVALUATIONS))
    if marked:
        ledger.mark_stop(run_id, stop)
    outcome = ledger.end(run_id, Exit(code, interrupted=True), stop=stop)
    assert (outcome.status, outcome.best) == (status, 3.0)
    assert (contract.TAG_GUARD_STOP in run_of(project, 0).data.tags) == (status == "pruned")


@pytest.mark.parametrize("code", [0, 1])
def test_a_stop_by_the_guard_of_the_hook_is_no_failure(project, code):
    ledger = open_ledger()
    run_id = claim(ledger, jobs(SPEC)[0])
    client_of(project).set_tag(run_id, contract.TAG_GUARD_STOP, GuardStop("doomed", 8, "it cannot win", 1.0).tag_text())
    assert ledger.end(run_id, Exit(code)) == JobOutcome("pruned", None, "it cannot win")
    assert ledger.entries()[0].outcome == JobOutcome("pruned", None, "it cannot win")
    assert run_of(project, 0).info.status == "KILLED"


def test_a_stop_outlives_its_launcher(project):
    """A launcher that is killed before the store has the stop leaves a record that the next one delivers."""
    folder, ledger = project / "out", open_ledger()
    run_id = claim(ledger, jobs(SPEC)[0])
    stop = GuardStop("doomed", 8, "it cannot win", 1.0, 12.0)
    records = ExitRecords(folder, location(), "e")
    records.keep(ExitRecord("trial-0", run_id, Exit(-2, interrupted=True), stop=stop))
    records.close()
    open_ledger().deliver_left_records(ExitRecords(folder, location(), "e"))
    assert tag(run_of(project, 0)) == {"state": "doomed", "step": 8, "reason": "it cannot win", "at": 1.0, "length": 12.0}


@pytest.mark.parametrize("kind", ["halton", "adaptive"])
def test_a_stopped_trial_is_continued_in_a_new_run(trained, kind):
    spec = SPEC.model_copy(update={"trials": 6, "sampler": Sampler(kind=kind)})
    assert Background(guarded_plan(trained, spec)).end()[5, 0] == "pruned"
    before = run_of(trained, 5)
    notices = Notices()
    running = Background(guarded_plan(trained, spec, notifier=notices), continued=("trial-5",))
    wait_until(lambda: begun(trained) == list("0123455"))
    guarded = GuardedStudy("e", location(), spec)
    wait_until(lambda: [(v.state, v.stop) for v in guarded.read().running] == [("doomed", False)])
    wait_until(lambda: "doomed" in notices.events)  # the guard of the launch has judged it as well
    (trained / "go").touch()
    assert running.end() == {(n, 0): "complete" for n in range(6)}
    after = run_of(trained, 5)
    assert after.info.run_id != before.info.run_id
    assert after.data.params == before.data.params
    assert after.data.tags[contract.TAG_SEED] == before.data.tags[contract.TAG_SEED]
    assert after.data.tags[contract.TAG_CONTINUED_AFTER_STOP] == before.data.tags[contract.TAG_GUARD_STOP]
    assert contract.TAG_GUARD_STOP not in after.data.tags


def test_a_training_that_resumes_is_continued_in_its_run(project):
    ledger = open_ledger()
    job, client = jobs(SPEC)[3], client_of(project)
    run_id = claim(ledger, job)
    client.log_metric(run_id, "val/loss", 3.0, step=1)
    client.set_tag(run_id, contract.TAG_CHECKPOINTS, json.dumps({"kept": [{"step": 0}], "resumes": True}))
    ledger.end(run_id, Exit(-2, interrupted=True), stop=GuardStop("doomed", 1, "it cannot win", 1.0))
    later = open_ledger()
    assert claim(later, job) == "done"
    assert [e.can_resume for e in later.continue_trial("3").values()] == [True]
    assert claim(later, job) == run_id
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert not {contract.TAG_GUARD_STOP, contract.TAG_STATUS} & run.data.tags.keys()
    client.log_metric(run_id, "val/loss", 2.0, step=12)
    assert later.end(run_id, Exit(0)) == JobOutcome("complete", 2.0)
    assert claim(open_ledger(), job) == "done"


RESUMING = (
    TRAINING.partition("for step in range(1, 9)")[0]
    + """
import json, torch
from advisor_pytorch import TuningLogger
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
settings = {"objective": "val/loss", "max_train_steps": 12, "checkpoints": 1, "resume": True}
guard = "stop" if (here / "hook").exists() else None
params = json.loads(os.environ["ADVISOR_PARAMS"])
with TuningLogger(model, optimizer, params=params, guard=guard, **settings) as log:
    first = log.steps
    while log.steps < 12:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        log.step(3.0)
        log.evaluate({"val/loss": 3.0})
        until = time.monotonic() + 300
        while log.steps >= 8 and time.monotonic() < until and not log.should_stop and not (here / "go").exists():
            (here / f"from-{first}").write_text(log.verdict["state"] if log.verdict else "")
            time.sleep(0.05)
        if log.should_stop:
            break
"""
)
"""Trial 5 logs with our hook and resumes from its last checkpoint."""


@pytest.mark.parametrize("by", [pytest.param("hook", marks=pytest.mark.slow), "both"])
def test_a_trial_that_resumes_with_the_hook_counts_once(trained, by):
    Background(launches.make_plan(trained, SPEC.model_copy(update={"trials": 5}))).end()  # without PyTorch
    (trained / "train.py").write_text(RESUMING)
    if by != "launcher":
        (trained / "hook").touch()
    spec = SPEC.model_copy(update={"trials": 6})
    first = Background(guarded_plan(trained, spec, stop_doomed=by != "hook"))
    assert first.end(300.0)[5, 0] == "pruned"
    before = run_of(trained, 5)
    assert tag(before)["state"] == "doomed"
    assert not (trained / "from-8").exists()
    notices = Notices()
    running = Background(guarded_plan(trained, spec, notifier=notices), continued=("trial-5",))
    wait_until((trained / "from-8").exists)
    guarded = GuardedStudy("e", location(), spec)
    wait_until(lambda: [(v.state, v.stop) for v in guarded.read().running] == [("doomed", False)])
    if by == "hook":
        wait_until(lambda: (trained / "from-8").read_text() == "doomed")
    wait_until(lambda: "doomed" in notices.events)  # the guard of the launch has judged it as well
    (trained / "go").touch()
    assert running.end(300.0)[5, 0] == "complete"
    after = run_of(trained, 5)
    assert after.info.run_id == before.info.run_id
    assert contract.TAG_GUARD_STOP not in after.data.tags
    study = read_study("e", tracking_uri="sqlite:///mlflow.db", spec=spec)
    assert [t.status for t in study.trials] == ["complete"] * 6
    assert study.cost_curve(study.trials[5]).steps.tolist() == list(range(12))


def test_only_a_stopped_trial_can_be_continued(project):
    ledger = open_ledger()
    with pytest.raises(AdvisorError, match=r"did not stop trial '3', .*; it stopped no trial of this study"):
        ledger.continue_trial("3")
    run_id = claim(ledger, jobs(SPEC)[2])
    ledger.end(run_id, Exit(-2, interrupted=True), stop=GuardStop("doomed", 1, "", 1.0))
    with pytest.raises(AdvisorError, match=r"did not stop trial '3', .*; it stopped trial-2"):
        ledger.continue_trial("3")


@pytest.mark.parametrize(("evaluations", "stop"), [(EVALUATIONS - 2, True), (EVALUATIONS - 1, False), (EVALUATIONS, False)])
def test_a_training_that_has_made_its_last_step_is_not_stopped(database, evaluations, stop):
    """Steps may be counted from 0, as our hook does: the last one is then the length minus 1."""
    log_study(database, running=(3.0,) * evaluations)
    (verdict,) = GuardedStudy("e", parse_tracking_uri(database)).read().running
    assert (verdict.state, verdict.stop) == ("doomed", stop)


def test_the_first_trials_are_judged_before_one_of_them_has_ended(database):
    run_id = log_study(database, running=(math.nan, math.nan), whole=0)
    reading = GuardedStudy("e", parse_tracking_uri(database)).read()
    assert [(v.run_id, v.state, v.stop) for v in reading.running] == [(run_id, "not_finite", True)]
    assert reading.error is None


@pytest.mark.parametrize("clock_s", [-86400.0, 86400.0])
def test_clocks_that_differ_change_no_verdict(database, clock_s):
    run_id = log_study(database, clock_s=clock_s)
    (verdict,) = GuardedStudy("e", parse_tracking_uri(database)).read().running
    assert (verdict.run_id, verdict.state, verdict.stop, verdict.length) == (run_id, "doomed", True, EVALUATIONS)


def test_the_guard_ends_with_its_launcher_and_verdicts_survive_a_standard_output_that_is_not_utf8(database, monkeypatch):
    """A launcher that is killed closes the pipe; close() ends the process as well.

    Standard output as on Windows: otherwise the guard ends, or its launcher stops to read, and no trial is stopped any more.
    """
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    MlflowClient(database).set_tag(log_study(database), "mlflow.runName", "Größe ≥ 1")
    guard = StudyGuard(GuardedStudy("e", parse_tracking_uri(database), interval_s=0.1))
    readings = []
    wait_until(lambda: readings.append(guard.latest()) or readings[-1])
    assert [(v.trial, v.state) for v in readings[-1].running] == [("Größe ≥ 1", "doomed")]
    first = guard._process
    first.stdin.close()
    assert first.wait(60) == 0
    wait_until(lambda: (reading := guard.latest()) is not None and reading.error is not None)
    wait_until(lambda: (reading := guard.latest()) is not None and reading.running)  # starting it again
    second = guard._process
    guard.close()
    assert second.poll() is not None


def test_a_password_of_the_store_is_no_argument_of_the_guard(database):
    guarded = GuardedStudy("e", replace(parse_tracking_uri(database), uri="http://user:s3cret@127.0.0.1:9"))
    assert "s3cret" not in guarded.to_json()
    guard = StudyGuard(guarded)
    guard.latest()
    assert "s3cret" not in " ".join(guard._process.args)
    guard.close()


def test_a_slow_store_is_read_less_than_a_tenth_of_the_time_but_the_first_read_starts_up():
    pacer = ReadPacer()
    assert [pacer.pause_s(seconds) for seconds in (3.0, 3.0, 0.2, 60.0)] == [10.0, 30.0, 10.0, 600.0]
    assert ReadPacer().pause_s(60.0) == 60.0


def test_a_doomed_job_of_slurm_is_stopped(trained):
    Background(launches.make_plan(trained, SPEC.model_copy(update={"trials": 5}))).end()  # without the start of five jobs
    options = {"cluster": "local", "options": {}}
    engine = SlurmEngine(trained / "slurm", gpus_per_trial=0, parallel=None, timeout_s=300.0, **options)
    spec = SPEC.model_copy(update={"trials": 6})
    running = Background(guarded_plan(trained, spec, engine=engine))
    assert running.end(300.0)[5, 0] == "pruned"
    assert begun(trained) == list("012345")


@pytest.mark.slow
def test_a_doomed_training_on_ray_is_stopped(trained):
    from advisor.execution.engines.ray import RayEngine

    with ray_cluster({"num_cpus": 2}) as cluster:
        engine = RayEngine(cluster.address, gpus_per_trial=0, cpus_per_trial=1.0, parallel=2)
        running = Background(guarded_plan(trained, SPEC.model_copy(update={"trials": 6}), engine=engine))
        assert running.end()[5, 0] == "pruned"
        assert begun(trained) == list("012345")

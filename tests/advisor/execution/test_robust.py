"""What goes wrong while trainings run: the store goes away, launchers die, machines fall silent, runs are deleted."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from clusters import ray_cluster
from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.execution import Job, LaunchPlan, Ledger, jobs, launch
from advisor.execution.engines import Exit
from advisor.execution.engines.local import Local
from advisor.execution.engines.slurm import Slurm
from advisor.execution.job_env import job_environment, make_private
from advisor.execution.ledger import claims
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.execution.ledger.ledger import TAKEN
from advisor.execution.queue import AdaptiveQueue, ListedQueue
from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.tracking.stores.location import Location, from_anywhere, locate

SPEC = StudySpec(
    study="l'été",
    objective=Objective(metric="val/loss", direction="minimize"),
    parameters={"lr": Parameter(low=0.001, high=1.0, scale="log")},
    trials=2,
)
TRAINING = """
import os, sys, time
from pathlib import Path
from quick import log
here = Path.cwd()
log(0.5, step=1)
with (here / "begun").open("a") as file:
    file.write(os.environ["ADVISOR_TRIAL"] + "\\n")
until = time.monotonic() + 300
while time.monotonic() < until and not (here / "go").exists():
    time.sleep(0.05)
"""
DYING_LAUNCHER = """
import os, subprocess, sys, time
from advisor.execution import Ledger, jobs
from advisor.model.spec_yaml import load
from advisor.tracking.stores.location import locate
spec = load(__import__("pathlib").Path("study.yaml"))
ledger = Ledger(locate("mlflow.db"), "e", spec)
((_, run_id),) = ledger.begin(jobs(spec)[:1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, "MLFLOW_RUN_ID": run_id},
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
if sys.argv[1] == "noted":
    import psutil
    began = psutil.Process(child.pid).create_time()
    ledger.beat(run_id, {"training": child.pid, "training_began": began, "until": time.time()})
print(child.pid, run_id, flush=True)
os._exit(9)
"""


def plan(project, spec=SPEC, uri="sqlite:///mlflow.db", engine=None, **more):
    location = locate(uri)
    adaptive = spec.sampler.kind == "adaptive"
    queue = AdaptiveQueue(spec, spec.trials, 0, []) if adaptive else ListedQueue(jobs(spec))
    return LaunchPlan(
        spec=spec,
        queue=queue,
        words=[sys.executable, str(project / "train.py")],
        location=location,
        experiment="e",
        folder=project / "out put",
        engine=engine or Local([{}] * 2),
        **more,
    )


class Background:
    """A launch in a thread."""

    def __init__(self, wanted):
        self.news, self.summary = [], None
        self._wanted = wanted
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        ledger = Ledger(self._wanted.location, "e", self._wanted.spec)
        self.summary = launch(self._wanted, ledger, lambda summary, news: self.news.append(news) if news else None)

    def heard(self, words):
        return any(words in line for line in self.news)

    def end(self, seconds=120.0):
        self._thread.join(seconds)
        assert self.summary is not None
        return {key: outcome.status for key, outcome in self.summary.outcomes.items()}


def until(condition, seconds=90.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def client_of(project):
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def claim(ledger, job):
    """The id of the run in which the job is begun, or its state."""
    ((_, got),) = ledger.begin([job])
    return got


def begun(project):
    file = project / "begun"
    return sorted(file.read_text().split()) if file.exists() else []


@pytest.fixture
def training(project, logs):
    (project / "train.py").write_text(TRAINING)
    return project


def test_a_server_that_goes_away_loses_no_outcome(training, way):
    running = Background(plan(training, uri=f"http://127.0.0.1:{way.port}"))
    until(lambda: begun(training) == ["0", "1"])
    way.cut()
    (training / "go").touch()
    until(lambda: running.heard("The store does not answer"))
    until(lambda: list((training / "out put").glob("*.ended.json")))
    way.mended()
    assert running.end() == {(0, 0): "complete", (1, 0): "complete"}
    assert running.heard("The store answers again.")
    assert sorted(f.suffix for f in (training / "out put").iterdir()) == [".json", ".json", ".log", ".log"]
    assert begun(training) == ["0", "1"]


KEEPER = """
import os, sys
from pathlib import Path
from advisor.execution.engines import Exit
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.tracking.stores.location import locate
ExitRecords(Path("out put"), locate("mlflow.db"), "e").keep(ExitRecord("trial-0", sys.argv[1], Exit(0)))
os._exit(9)
"""


def test_how_a_training_ended_is_recorded_by_the_next_launcher(training):
    spec = SPEC.model_copy(update={"trials": 1})
    ledger = Ledger(locate("mlflow.db"), "e", spec)
    run_id = claim(ledger, jobs(spec)[0])
    ledger.log(run_id, {1: (0.25, 0)})
    assert subprocess.run([sys.executable, "-c", KEEPER, run_id], check=False).returncode == 9
    (training / "go").touch()
    assert Background(plan(training, spec, "sqlite:///other.db")).end() == {(0, 0): "complete"}  # knows nothing of it
    assert begun(training) == ["0"]
    assert Background(plan(training, spec)).end() == {(0, 0): "complete"}
    assert begun(training) == ["0"]
    assert not list((training / "out put").glob(".*.lock"))


def test_what_a_living_launcher_keeps_is_its_own_to_record(training):
    spec = SPEC.model_copy(update={"trials": 1})
    ledger = Ledger(locate("mlflow.db"), "e", spec)
    run_id = claim(ledger, jobs(spec)[0])
    ledger.log(run_id, {1: (0.25, 0)})
    living = ExitRecords(training / "out put", locate("mlflow.db"), "e")
    living.keep(ExitRecord("trial-0", run_id, Exit(1, last_line="no data")))
    assert Background(plan(training, spec)).end() == {}
    assert [entry.state for entry in ledger.entries()] == ["busy"]
    living.close()  # it has given up, and lives on
    assert Background(plan(training, spec)).end() == {(0, 0): "infeasible"}
    assert begun(training) == []


def test_nobody_takes_an_ending_from_a_launcher_that_is_about_to_record_it(tmp_path):
    store, over, taken = locate(str(tmp_path / "mlflow.db")), threading.Event(), []

    def look():
        other = ExitRecords(tmp_path, store, "e")
        while not over.is_set():
            taken.extend(other.left())

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    mine = ExitRecords(tmp_path, store, "e")
    for i in range(100):
        mine.keep(ExitRecord(f"trial-{i}", "run", Exit(0)))
        mine.forget(f"trial-{i}")
    over.set()
    for looker in lookers:
        looker.join()
    assert taken == []
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_taken_for_a_dead_launcher_s_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    store = locate(str(tmp_path / "mlflow.db"))
    mine, other = ExitRecords(tmp_path, store, "e"), ExitRecords(tmp_path, store, "e")
    flock, looks = fcntl.flock, []

    def late(descriptor, operation):
        if not looks:
            looks.append(operation)
            assert list(other.left()) == []
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    mine.keep(ExitRecord("trial-0", "run", Exit(0)))
    assert list(other.left()) == []
    assert other.others


def test_the_folder_is_closed_to_others_also_where_it_was_there_before(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    folder.chmod(0o755)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_run_that_is_deleted_meanwhile_stops_nobody_else(training):
    running = Background(plan(training))
    until(lambda: begun(training) == ["0", "1"])
    client = client_of(training)
    (gone,) = client.search_runs([client.get_experiment_by_name("e").experiment_id], "tags.`advisor.trial` = '0'")
    client.delete_run(gone.info.run_id)
    (training / "go").touch()
    assert running.end() == {(1, 0): "complete"}
    assert running.heard("trial-0 cannot be recorded")
    assert Background(plan(training)).end() == {(0, 0): "complete", (1, 0): "complete"}


def test_sigterm_stops_cleanly(training):
    def terminate():
        until(lambda: begun(training) == ["0", "1"])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    wanted = plan(training)
    ledger = Ledger(wanted.location, "e", SPEC)
    with pytest.raises(KeyboardInterrupt):
        launch(wanted, ledger, lambda *_: None)
    assert [entry.state for entry in ledger.entries()] == ["open", "open"]


def test_many_jobs_are_begun_with_a_few_looks_at_the_store(project, monkeypatch):
    spec = SPEC.model_copy(update={"trials": 15, "seeds": 2})
    one, other = Ledger(locate("mlflow.db"), "e", spec), Ledger(locate("mlflow.db"), "e", spec)
    looks, look = [], one._client.search_runs
    monkeypatch.setattr(one._client, "search_runs", lambda *a, **more: looks.append(a) or look(*a, **more))
    begun = one.begin(jobs(spec))
    assert len(looks) <= 3
    assert [job.key for job, _ in begun] == [job.key for job in jobs(spec)]
    assert len({run_id for _, run_id in begun}) == 30
    assert {(job.number, job.seed) for job, _ in begun} == {(n, seed) for n in range(15) for seed in (0, 1)}
    assert [got for _, got in other.begin(jobs(spec))] == ["busy"] * 30


def test_of_two_that_begin_the_same_jobs_at_once_each_gets_others(project):
    spec = SPEC.model_copy(update={"trials": 10})
    got = {}

    def begin(name, ledger):
        got[name] = {job.key: run_id for job, run_id in ledger.begin(jobs(spec)) if run_id not in TAKEN}

    ledgers = [Ledger(locate("mlflow.db"), "e", spec) for _ in range(2)]
    threads = [threading.Thread(target=begin, args=pair) for pair in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not got[0].keys() & got[1].keys()
    assert len(got[0]) + len(got[1]) == 10
    assert {entry.run_id for entry in ledgers[0].entries()} == {*got[0].values(), *got[1].values()}


def orphan(project, how):
    """The process and the run of a training whose launcher has died."""
    from advisor.model.spec_yaml import dump

    (project / "study.yaml").write_text(dump(SPEC))
    done = subprocess.run([sys.executable, "-c", DYING_LAUNCHER, how], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    pid, run_id = done.stdout.split()
    return int(pid), run_id


def test_what_a_killed_launcher_had_begun_but_not_noted_is_not_trained_twice(project):
    pid, run_id = orphan(project, "not noted")
    ledger = Ledger(locate("mlflow.db"), "e", SPEC)
    assert claim(ledger, jobs(SPEC)[0]) == "busy"
    os.kill(pid, signal.SIGKILL)
    until(lambda: ledger.entries()[0].state == "open")
    assert claim(ledger, jobs(SPEC)[0]) not in ("busy", run_id)


def test_what_outlives_its_time_without_its_launcher_is_stopped(project):
    orphan(project, "noted")
    ledger = Ledger(locate("mlflow.db"), "e", SPEC)
    time.sleep(0.1)
    ledger.take_in_orphans()
    (entry,) = ledger.entries()
    assert (entry.state, entry.outcome.status, entry.outcome.error) == ("done", "stopped", "timeout")


def test_what_failed_when_its_launcher_was_dead_is_recorded_as_failed(project):
    pid, run_id = orphan(project, "noted")
    os.kill(pid, signal.SIGKILL)
    client = client_of(project)
    client.log_metric(run_id, "val/loss", 0.5, step=1)
    client.set_terminated(run_id, "FAILED")
    ledger = Ledger(locate("mlflow.db"), "e", SPEC)
    until(lambda: ledger.entries()[0].state == "done")
    ledger.take_in_orphans()
    (entry,) = ledger.entries()
    assert (entry.outcome.status, entry.outcome.error, entry.outcome.best) == ("infeasible", "exit status 1", 0.5)


def test_a_silent_machine_is_listened_to_before_it_is_taken_for_dead(project, monkeypatch):
    monkeypatch.setattr(claims, "CONFIRM_S", 0.3)
    first, job = Ledger(locate("mlflow.db"), "e", SPEC), jobs(SPEC)[0]
    run_id = claim(first, job)
    client = client_of(project)

    def hear(ago):
        note = {"host": "elsewhere", "pid": 1, "began": 0.0, "launcher": "x", "seen": time.time() - ago}
        client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps(note))

    ledger = Ledger(locate("mlflow.db"), "e", SPEC)
    hear(10)
    assert claim(ledger, job) == "busy"
    hear(9000)  # a clock that is far off looks the same
    assert claim(ledger, job) == "silent"
    time.sleep(0.4)
    hear(8990)
    assert claim(ledger, job) == "silent"
    time.sleep(0.4)
    assert claim(ledger, job) not in ("silent", "busy", "done", run_id)


def test_another_container_is_another_machine_though_it_has_this_ones_name(project):
    job, client = jobs(SPEC)[0], client_of(project)
    run_id = claim(Ledger(locate("mlflow.db"), "e", SPEC), job)
    said = claims.read(client.get_run(run_id).data.tags[contract.TAG_LAUNCH])
    said["pid"] = 2**22 + 1  # no process of this machine has it
    client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps({**said, "space": "another"}))
    assert claim(Ledger(locate("mlflow.db"), "e", SPEC), job) == "busy"
    client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps(said))
    assert claim(Ledger(locate("mlflow.db"), "e", SPEC), job) not in ("busy", run_id)


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo 7", "busy"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "silent"),
        ("exit 0", "open"),
    ],
)
def test_a_queue_that_does_not_answer_says_nothing_of_its_jobs(project, monkeypatch, squeue, state):
    tool = project / "squeue"
    tool.write_text(f"#!/bin/sh\n{squeue}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}:{os.environ['PATH']}")
    run_id = claim(Ledger(locate("mlflow.db"), "e", SPEC), jobs(SPEC)[0])
    client = client_of(project)
    said = claims.read(client.get_run(run_id).data.tags[contract.TAG_LAUNCH])
    client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps({**said, "pid": 2**22 + 1, "slurm": "7"}))
    (entry,) = Ledger(locate("mlflow.db"), "e", SPEC).entries()
    assert entry.state == state


def test_the_queue_is_asked_once_for_all_jobs(project, monkeypatch):
    tool = project / "squeue"
    tool.write_text("#!/bin/sh\necho asked >> asked\nseq -f 7_%g 0 8\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}:{os.environ['PATH']}")
    spec = SPEC.model_copy(update={"trials": 10})
    client = client_of(project)
    for job, run_id in Ledger(locate("mlflow.db"), "e", spec).begin(jobs(spec)):
        said = claims.read(client.get_run(run_id).data.tags[contract.TAG_LAUNCH])
        client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps({**said, "pid": 2**22 + 1, "slurm": f"7_{job.number}"}))
    states = [entry.state for entry in Ledger(locate("mlflow.db"), "e", spec).entries()]
    assert states == ["busy"] * 9 + ["open"]
    assert (project / "asked").read_text().split() == ["asked"]


def test_many_and_long_hyperparameters_are_logged_and_impossible_names_are_refused(project):
    ledger = Ledger(locate("mlflow.db"), "e", SPEC)
    params = {f"p{i}": i for i in range(250)} | {"long": "x" * 9000}
    run_id = claim(ledger, Job(0, 0, 0, params))
    client = client_of(project)
    assert len(client.get_run(run_id).data.params) == 251
    with pytest.raises(AdvisorError, match="Names may only contain"):
        claim(ledger, Job(1, 0, 0, {"lr[0]": 1.0}))
    assert [entry.key for entry in ledger.entries()] == [(0, 0)]
    client.delete_experiment(client.get_experiment_by_name("e").experiment_id)
    with pytest.raises(AdvisorError, match="was deleted; restore it in MLflow, or pass another --experiment"):
        Ledger(locate("mlflow.db"), "e", SPEC)
    with pytest.raises(AdvisorError, match="must be in the 'active' state"):
        claim(ledger, jobs(SPEC)[1])


def test_where_trainings_log_does_not_depend_on_their_folder_and_passwords_stay_in_the_environment(project):
    assert from_anywhere(locate("sqlite:///mlflow.db?timeout=9")) == f"sqlite:///{project}/mlflow.db?timeout=9"
    elsewhere = Location("database", "postgresql://me:s3cret@host/db")
    assert "s3cret" in job_environment(SPEC, jobs(SPEC)[0], "id", elsewhere, "e")["MLFLOW_TRACKING_URI"]
    assert "s3cret" not in elsewhere.shown


@pytest.mark.parametrize("kind", ["adaptive", "halton"])
def test_the_last_trial_is_begun_again_as_well_where_its_machine_was_lost(training, kind):
    spec = SPEC.model_copy(update={"trials": 1, "sampler": Sampler(kind=kind)})
    out, options = training / "slurm", {"cluster": "local", "max_submitted": 2, "options": {}}
    engine = Slurm(out, gpus_per_trial=0, parallel=1, timeout_s=300.0, **options)
    running = Background(plan(training, spec, engine=engine))
    until(lambda: begun(training) == ["0"])
    (run,) = client_of(training).search_runs(["1"])
    job = psutil.Process(json.loads(run.data.tags[contract.TAG_LAUNCH])["training"])
    for process in (*job.children(recursive=True), job):
        process.kill()
    (training / "go").touch()
    assert running.end() == {(0, 0): "complete"}
    assert begun(training) == ["0", "0"]


@pytest.mark.slow
def test_on_ray_a_trial_whose_node_dies_is_begun_again(training):
    from advisor.execution.engines.ray import Ray

    with ray_cluster({"num_cpus": 1}) as cluster:
        doomed = cluster.add_node(num_cpus=1)
        engine = Ray(cluster.address, gpus_per_trial=0, cpus_per_trial=1.0, parallel=2)
        running = Background(plan(training, engine=engine))
        until(lambda: begun(training) == ["0", "1"])
        cluster.remove_node(doomed, allow_graceful=False)
        until(lambda: running.heard("the machine that trained it was lost; it is begun again"))
        (training / "go").touch()
        assert running.end() == {(0, 0): "complete", (1, 0): "complete"}
        assert len(begun(training)) == 3

"""Which launcher has a job: on this machine, on others, in SLURM, and after launchers failed."""

import json
import os
import signal
import time

import psutil
import pytest
from forks import run_script
from launches import SPEC, claim, client_of, wait_until

from advisor import contract
from advisor.execution import Ledger, jobs
from advisor.execution.ledger import claims
from advisor.model.spec_yaml import format_study_file
from advisor.tracking.stores.location import parse_tracking_uri

KILLED_LAUNCHER = """
import os, subprocess, sys, time
from advisor.execution import Ledger, jobs
from advisor.model.spec_yaml import load_study_file
from advisor.tracking.stores.location import parse_tracking_uri
spec = load_study_file(__import__("pathlib").Path("study.yaml"))
ledger = Ledger(parse_tracking_uri("mlflow.db"), "e", spec)
((_, run_id),) = ledger.begin(jobs(spec)[:1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, "MLFLOW_RUN_ID": run_id},
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
if sys.argv[1] == "noted":
    import psutil
    began = psutil.Process(child.pid).create_time()
    ledger.send_heartbeat(run_id, {"training": child.pid, "training_began": began, "until": time.time()})
print(child.pid, run_id, flush=True)
os._exit(9)
"""


def orphan(project, how):
    """Return the process and the run of a training whose launcher was killed."""
    (project / "study.yaml").write_text(format_study_file(SPEC))
    status, out = run_script(KILLED_LAUNCHER, project, how)
    assert status == 9
    pid, run_id = out.split()
    return int(pid), run_id


def open_ledger(spec=SPEC):
    return Ledger(parse_tracking_uri("mlflow.db"), "e", spec)


def change_claim(client, run_id, **changes):
    """Change values of a run's claim."""
    tag = claims.read_claim(client.get_run(run_id).data.tags[contract.TAG_LAUNCH])
    client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps({**tag, **changes}))


NO_PROCESS = 2**22 + 1
"""An id that no process of this machine has."""


@pytest.fixture
def squeue(project, monkeypatch):
    """Put a script of this name first in the path."""

    def write(script):
        tool = project / "squeue"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{project}:{os.environ['PATH']}")

    return write


def test_a_training_whose_killed_launcher_did_not_note_it_is_not_repeated(project):
    pid, run_id = orphan(project, "not noted")
    ledger = open_ledger()
    assert claim(ledger, jobs(SPEC)[0]) == "busy"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ledger.entries()[0].state == "open")
    assert claim(ledger, jobs(SPEC)[0]) not in ("busy", run_id)


def test_a_training_beyond_its_time_limit_is_killed_if_its_launcher_failed(project):
    pid, _ = orphan(project, "noted")
    ledger = open_ledger()
    time.sleep(0.1)
    ledger.record_orphans()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    (entry,) = ledger.entries()
    assert (entry.state, entry.outcome.status, entry.outcome.error) == ("done", "stopped", "timeout")


def test_a_training_that_fails_after_its_launcher_is_recorded_as_failed(project):
    pid, run_id = orphan(project, "noted")
    os.kill(pid, signal.SIGKILL)
    client = client_of(project)
    client.log_metric(run_id, "val/loss", 0.5, step=1)
    client.set_terminated(run_id, "FAILED")
    ledger = open_ledger()
    wait_until(lambda: ledger.entries()[0].state == "done")
    ledger.record_orphans()
    (entry,) = ledger.entries()
    assert (entry.outcome.status, entry.outcome.error, entry.outcome.best) == ("infeasible", "exit status 1", 0.5)


def test_a_claim_without_heartbeats_lapses_after_a_while(project, monkeypatch):
    monkeypatch.setattr(claims, "MIN_POLLING_WITHOUT_HEARTBEAT_S", 0.3)
    job, client = jobs(SPEC)[0], client_of(project)
    run_id, ledger = claim(open_ledger(), job), open_ledger()

    def beat(ago_s):
        note = {"host": "elsewhere", "pid": 1, "began": 0.0, "launcher": "x", "seen": time.time() - ago_s}
        client.set_tag(run_id, contract.TAG_LAUNCH, json.dumps(note))

    beat(10)
    assert claim(ledger, job) == "busy"
    beat(9000)  # a clock that is far off looks the same
    assert claim(ledger, job) == "silent"
    time.sleep(0.4)
    beat(8990)
    assert claim(ledger, job) == "silent"
    time.sleep(0.4)
    assert claim(ledger, job) not in ("silent", "busy", "done", run_id)


def test_a_container_with_the_same_host_name_is_another_machine(project):
    job, client = jobs(SPEC)[0], client_of(project)
    run_id = claim(open_ledger(), job)
    space = claims.read_claim(client.get_run(run_id).data.tags[contract.TAG_LAUNCH])["space"]
    change_claim(client, run_id, pid=NO_PROCESS, space="another")
    assert claim(open_ledger(), job) == "busy"
    change_claim(client, run_id, space=space)
    assert claim(open_ledger(), job) not in ("busy", run_id)


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo 7", "busy"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "silent"),
        ("exit 0", "open"),
    ],
)
def test_jobs_of_a_queue_that_does_not_answer_are_silent(project, squeue, script, state):
    squeue(script)
    run_id = claim(open_ledger(), jobs(SPEC)[0])
    change_claim(client_of(project), run_id, pid=NO_PROCESS, slurm="7")
    (entry,) = open_ledger().entries()
    assert entry.state == state


def test_the_queue_is_queried_once_for_all_jobs(project, squeue):
    squeue("echo query >> queries\nseq -f 7_%g 0 8")
    spec = SPEC.model_copy(update={"trials": 10})
    client = client_of(project)
    for job, run_id in open_ledger(spec).begin(jobs(spec)):
        change_claim(client, run_id, pid=NO_PROCESS, slurm=f"7_{job.number}")
    assert [entry.state for entry in open_ledger(spec).entries()] == ["busy"] * 9 + ["open"]
    assert (project / "queries").read_text().split() == ["query"]

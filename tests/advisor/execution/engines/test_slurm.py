"""Trainings as jobs of submitit, and of SLURM if there is one."""

import shutil
import subprocess
import sys

import pytest
from engine_tasks import exercise, exit_of, processes, task
from launches import wait_until

from advisor.execution.engines import slurm
from advisor.execution.engines.slurm import SlurmEngine
from advisor.model.errors import AdvisorError


def test_slurm_jobs_through_submitit(folder):
    engine = SlurmEngine(folder / "slurm", gpus_per_trial=0, parallel=None, timeout_s=60.0, options={}, cluster="local")
    exercise(engine, folder)
    assert (folder / "slurm").stat().st_mode & 0o077 == 0  # the data of jobs may contain a password


def slurm_answers():
    return bool(shutil.which("sinfo")) and subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not slurm_answers(), reason="no SLURM answers here")
def test_slurm_itself(folder):
    engine = SlurmEngine(folder / "slurm", gpus_per_trial=0, parallel=4, timeout_s=60.0, options={})
    exercise(engine, folder)
    waiting, ran = task(folder, "waiting", "hang"), task(folder, "ran", "hang")
    (first,) = engine.start([ran])
    wait_until(lambda: processes(ran))
    assert slurm.SlurmQueue().has_claimed_job(first.claim_details())
    blocked = SlurmEngine(folder / "slurm", gpus_per_trial=0, parallel=None, timeout_s=60.0, options={"begin": "now+1hour"})
    (second,) = blocked.start([waiting])
    assert slurm.SlurmQueue().has_claimed_job(second.claim_details())
    second.stop()
    assert exit_of(second).interrupted
    subprocess.run(["scancel", first.claim_details()["slurm"]], check=True)  # not by the advisor
    assert exit_of(first).lost
    wait_until(lambda: not slurm.SlurmQueue().has_claimed_job(first.claim_details()))


def test_errors_name_what_slurm_needs(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(AdvisorError, match="sbatch is not on this machine"):
        SlurmEngine(folder, gpus_per_trial=0, parallel=None, timeout_s=60.0, options={})
    with pytest.raises(AdvisorError, match="--slurm nodes=two: 'two' is not a number"):
        SlurmEngine(folder, gpus_per_trial=0, parallel=None, timeout_s=60.0, options={"nodes": "two"}, cluster="local")
    with pytest.raises(AdvisorError, match="pass --timeout MINUTES"):
        SlurmEngine(folder, gpus_per_trial=0, parallel=None, timeout_s=None, options={}, cluster="local")


@pytest.mark.parametrize(("module", "extra"), [("ray", "ray"), ("submitit", "slurm")])
def test_the_error_names_the_missing_extra(module, extra, folder):
    code = f"import sys; sys.modules[{module!r}] = None\nfrom advisor.cli import main\nmain()"
    (folder / "s.yaml").write_text("study: s\nobjective: {metric: m, direction: minimize}\ntrials: 1\n")
    words = [sys.executable, "-c", code, "run", "s.yaml", "--on", extra, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f'pip install "tuning-advisor[{extra}]"' in done.stderr

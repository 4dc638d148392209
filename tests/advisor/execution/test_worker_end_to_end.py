"""`advisor run` as a process of its own: trainings that crash, hang, are killed, and are resumed."""

import json
import signal
import sys
from collections import Counter
from pathlib import Path

import commands
import psutil
import pytest
from commands import status_of
from forks import Fork
from launches import wait_until
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from advisor import analyze, contract
from advisor.tracking.stores.reading import read_experiment

STUDY = """
study: small
objective: {metric: val/loss, direction: minimize}
parameters:
  lr: {low: 0.001, high: 1.0, scale: log}
  momentum: {low: 0.0, high: 0.9}
trials: %d
max_train_steps: 10
"""


TRAINING = """
import json, os, sys, time
from pathlib import Path

trial, lr = int(os.environ["ADVISOR_TRIAL"]), float(sys.argv[1])
assert json.loads(os.environ["ADVISOR_PARAMS"])["lr"] == lr
with open("begun", "a") as file:
    file.write(f"{trial}\\n")
kind = json.loads(Path("kinds.json").read_text()).get(str(trial))
if kind == "crash":
    sys.exit("the data are not there")
if kind == "mlflow":
    import mlflow
    with mlflow.start_run():
        for step in range(3):
            mlflow.log_metric("val/loss", lr + 1 / (1 + step), step=step)
else:
    from quick import log
    until = time.monotonic() + 600
    while kind == "hang" and time.monotonic() < until and not Path("go").exists():
        time.sleep(0.05)
    log(lr, 1)
    if kind == "late":
        sys.exit("no memory left")
    if kind == "nan":
        log(float("nan"), 2)
    log(end="FINISHED")
with open("ended", "a") as file:
    file.write(f"{trial}\\n")
"""


@pytest.fixture
def folder(project, logs):
    """The project's folder with a training script in it."""
    (project / "train.py").write_text(TRAINING)
    (project / "kinds.json").write_text("{}")
    return project


def words(folder: Path, trials: int, *options: str, command: tuple[str, ...] = ()) -> list[str]:
    (folder / "study.yaml").write_text(STUDY % trials)
    command = command or (sys.executable, "train.py", "{lr}", "{momentum}")
    return ["run", "study.yaml", "--tracking-uri", uri(folder), *options, "--", *command]


def start(folder: Path, trials: int, *options: str) -> Fork:
    """Start `advisor run` as a process of its own."""
    return commands.fork(words(folder, trials, *options), folder)


def finish(process: Fork) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return process.returncode, out, err


@pytest.fixture
def advisor_run(folder, capfd):
    """Run `advisor run` in this process, and return its status, output and errors."""

    def run(trials: int, *options: str, command: tuple[str, ...] = ()) -> tuple[int, str, str]:
        return status_of(*words(folder, trials, *options, command=command)), *capfd.readouterr()

    return run


def uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def lines(folder: Path, name: str) -> list[int]:
    path = folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def runs(folder: Path) -> dict[str, object]:
    return {run.name: run for run in read_experiment("small", tracking_uri=uri(folder)).runs}


def test_every_trial_is_trained_and_recorded_with_its_status(folder, advisor_run):
    (folder / "kinds.json").write_text(json.dumps({0: "mlflow", 1: "crash", 2: "nan", 3: "hang"}))
    status, out, err = advisor_run(3, "--parallel", "2")
    assert status == 1, err  # a trial failed
    assert "3 of 3 trainings have ended: best val/loss" in out
    assert "One trial failed; to start it again, run the same command with --retry failed." in out
    assert "of 3: trial-0, val/loss 0.3" in err  # a line a trial where there is no terminal
    assert "trial-1 failed: exit status 1: the data are not there" in err
    status, out, err = advisor_run(4, "--timeout", "0.01")
    assert status == 1, err
    assert "trial-3 was stopped: timeout" in err
    recorded = runs(folder)
    assert {name: run.tags[contract.TAG_STATUS] for name, run in recorded.items()} == {
        "trial-0": "complete",
        "trial-1": "infeasible",
        "trial-2": "diverged",
        "trial-3": "stopped",
    }
    assert [recorded[f"trial-{i}"].status for i in range(4)] == ["FINISHED", "FAILED", "FINISHED", "KILLED"]
    assert recorded["trial-1"].tags[contract.TAG_ERROR] == "exit status 1: the data are not there"
    assert recorded["trial-0"].tags[contract.TAG_MAX_TRAIN_STEPS] == "10"
    assert set(recorded["trial-0"].params) == {"lr", "momentum"}
    assert float(recorded["trial-0"].params["lr"]) == json.loads((folder / "advisor-runs/small/trial-0.json").read_text())["lr"]

    # The same command trains only the trial again that crashed; a larger number of trials continues the sequence.
    before = lines(folder, "begun")
    status, out, err = advisor_run(5)
    assert status == 1, err
    assert "3 of 5 jobs had already ended." in err
    assert lines(folder, "begun") == [*before, 1, 4]
    assert sorted(runs(folder)) == [f"trial-{i}" for i in range(5)]


def test_ctrl_c_stops_cleanly_and_the_same_command_resumes(folder, advisor_run):
    (folder / "kinds.json").write_text(json.dumps({1: "hang"}))
    process = start(folder, 3)
    wait_until(lambda: 1 in lines(folder, "begun"))
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130
    assert err.splitlines()[-1] == "advisor: interrupted; run the same command again to resume"
    assert lines(folder, "ended") == [0]
    assert runs(folder)["trial-1"].status == "KILLED"
    (folder / "go").touch()
    status, _, err = advisor_run(3)
    assert status == 0, err
    assert lines(folder, "ended") == [0, 1, 2]
    assert all(run.tags[contract.TAG_STATUS] == "complete" for run in runs(folder).values())
    every = MlflowClient(uri(folder)).search_runs(["1"], run_view_type=ViewType.ALL)
    # The interrupted run can be restored.
    assert Counter(r.info.lifecycle_stage for r in every) == {"active": 3, "deleted": 1}


def test_a_killed_launcher_loses_and_repeats_nothing(folder, advisor_run):
    (folder / "kinds.json").write_text(json.dumps({1: "hang", 2: "hang"}))
    process = start(folder, 4, "--parallel", "2")
    wait_until(lambda: set(lines(folder, "begun")) >= {1, 2})
    process.kill()
    process.communicate()
    # Its trainings continue, so no other launcher begins them.
    status, out, err = advisor_run(4)
    assert status == 0, err
    assert "Other launchers have 2 of the trials" in out
    assert sorted(lines(folder, "ended")) == [0, 3]
    (folder / "go").touch()
    wait_until(lambda: sorted(lines(folder, "ended")) == [0, 1, 2, 3])
    wait_until(lambda: all(run.status == "FINISHED" for run in runs(folder).values()))
    status, out, err = advisor_run(4)
    assert "4 of 4 trainings have ended" in out
    assert sorted(lines(folder, "begun")) == [0, 1, 2, 3]

    # A job whose training was killed as well is begun again.
    (folder / "go").unlink()
    (folder / "kinds.json").write_text(json.dumps({4: "hang"}))
    process = start(folder, 5)
    wait_until(lambda: 4 in lines(folder, "begun"))
    trainings = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    for training in trainings:
        training.kill()
    (folder / "go").touch()
    status, out, err = advisor_run(5)
    assert status == 0, err
    assert Counter(lines(folder, "begun"))[4] == 2
    assert sorted(lines(folder, "ended")) == [0, 1, 2, 3, 4]
    assert len(runs(folder)) == 5


def test_launchers_share_a_study(folder):
    (folder / "mlflow.db").unlink()
    both = [start(folder, 4) for _ in range(2)]  # both make the store, too
    ended = [finish(process) for process in both]
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert sorted(lines(folder, "begun")) == list(range(4))
    assert sorted(runs(folder)) == [f"trial-{i}" for i in range(4)]


def test_a_command_that_always_fails_ends_the_launch(folder, advisor_run):
    (folder / "kinds.json").write_text(json.dumps(dict.fromkeys(range(9), "crash")))
    status, _, err = advisor_run(9)
    assert status == 1
    assert err.splitlines()[-1].startswith("advisor: the first 3 trials all failed, the last with: exit status 1: the data are")
    assert len(runs(folder)) == 3

    # Trials that logged nothing are begun again, and end the launch again if the training still fails.
    status, _, err = advisor_run(9)
    assert (status, lines(folder, "begun")) == (1, [0, 1, 2, 0, 1, 2]), err
    assert "the first 3 trials all failed" in err
    (folder / "kinds.json").write_text(json.dumps({1: "late"}))
    status, _, err = advisor_run(3)
    assert (status, lines(folder, "begun")[6:]) == (1, [0, 1, 2]), err

    # A trial that logged something is begun again only on request.
    (folder / "kinds.json").write_text("{}")
    status, _, err = advisor_run(3)
    assert (status, "3 of 3 jobs had already ended." in err) == (1, True), err
    status, _, err = advisor_run(3, "--retry", "failed")
    assert (status, lines(folder, "begun")[9:]) == (0, [1]), err
    assert all(run.tags[contract.TAG_STATUS] == "complete" for run in runs(folder).values())

    assert "leave out --trials" in advisor_run(3, "--retry", "all", "--trials", "2")[2]
    before = {run.id for run in runs(folder).values()}
    status, _, err = advisor_run(3, "--retry", "all")
    assert (status, lines(folder, "begun")[10:]) == (0, [0, 1, 2]), err
    assert before.isdisjoint(run.id for run in runs(folder).values())


def test_failed_trials_of_a_launcher_that_still_works_are_left_to_it(folder, advisor_run):
    (folder / "kinds.json").write_text(json.dumps({0: "crash", 1: "hang"}))
    process = start(folder, 2)
    wait_until(lambda: 1 in lines(folder, "begun"))
    status, out, err = advisor_run(2)
    assert status == 1, err
    assert "Other launchers have 1 of the trials" in out
    (folder / "go").touch()
    assert finish(process)[0] == 1
    assert lines(folder, "begun") == [0, 1]
    advisor_run(2)
    assert lines(folder, "begun") == [0, 1, 0]


def test_trainings_that_log_elsewhere_end_the_launch(advisor_run):
    status, _, err = advisor_run(9, command=(sys.executable, "-c", "pass"))
    assert status == 1
    assert "gave no result: val/loss was never logged" in err.splitlines()[-1]
    assert "MLFLOW_RUN_ID" in err.splitlines()[-1]


def test_a_misspelt_objective_is_named_beside_the_metrics_that_were_logged(folder, capfd):
    def run() -> tuple[int, str]:
        return status_of(*words(folder, 1)), capfd.readouterr().err

    right = STUDY
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "STUDY", right.replace("val/loss", "val/los"))
        status, err = run()
    assert status == 1
    assert "val/los was never logged; logged: val/loss: set `objective.metric: val/loss` in the study file" in err
    # The corrected study file is accepted, and the trial counts without another training.
    status, err = run()
    assert (status, lines(folder, "begun")) == (0, [0]), err
    assert analyze("small", tracking_uri=uri(folder)).counts.complete == 1


@pytest.mark.parametrize(
    ("options", "command", "message"),
    [
        ((), ("python", "{larning_rate}"), "no hyperparameter of the study"),
        ((), ("no-such-program", "{max_train_steps}"), "cannot run 'no-such-program': No such file or directory"),
        (("--gpus-per-trial", "0", "--tracking-uri", "http://127.0.0.1:9"), ("python",), "127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_line_and_status_2(advisor_run, options, command, message):
    status, out, err = advisor_run(2, *options, command=command)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1

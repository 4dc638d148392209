"""`advisor tune` on a real training and a real store: a wrong space, interruptions, and decisions that are kept."""

import signal
import sys
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import commands
import pytest
from commands import status_of
from forks import Fork
from launches import wait_until

from advisor import contract
from advisor.cli.tune.record import SearchRecord
from advisor.model.spec_yaml import load_study_file
from advisor.tracking.stores.location import parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment

STUDY = """
study: small
objective: {metric: val/loss, direction: minimize}
parameters:
  lr: {low: 1.0e-5, high: 1.0e-3, scale: log, why: the range of an earlier project}
  momentum: {low: 0.0, high: 0.9}
max_train_steps: 10
"""
"""The best learning rate is 0.1, a hundred times the highest."""
TRAINING = """
import math, os, random, sys, time
from pathlib import Path
from quick import log

lr, momentum, seed = map(float, sys.argv[1:4])
study, trial = os.environ["ADVISOR_STUDY"], os.environ["ADVISOR_TRIAL"]
with open("begun", "a") as file:
    file.write(f"{study}/{trial}/{int(seed)}\\n")
until = time.monotonic() + 300
while Path("hang").exists() and Path("hang").read_text() == f"{study}/{trial}" and time.monotonic() < until:
    time.sleep(0.05)
loss = 1 + (math.log10(lr) + 1) ** 2 + (momentum - 0.5) ** 2 + random.Random(seed).gauss(0, 0.02)
log(loss + 1, 5)
log(loss, 10)
log(end="FINISHED")
with open("ended", "a") as file:
    file.write(f"{study}/{trial}\\n")
"""


@pytest.fixture
def folder(project, logs):
    (project / "train.py").write_text(TRAINING)
    (project / "study.yaml").write_text(STUDY)
    return project


def words(trials: int, *options: str) -> list[str]:
    command = [sys.executable, "train.py", "{lr}", "{momentum}", "{seed}", "{max_train_steps}"]
    where = ["--tracking-uri", "sqlite:///mlflow.db"]
    return ["tune", "study.yaml", *where, "--trials", str(trials), *options, "--", *command]


def start(folder: Path, trials: int) -> Fork:
    """Start `advisor tune` as a process of its own."""
    return commands.fork(words(trials), folder)


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split() if path.exists() else []


def files(folder: Path) -> list[Path]:
    return sorted((folder / "advisor-tune" / "small").glob("*.yaml"))


def decisions(folder: Path, experiment: str = "small") -> list[str]:
    return [path.name + path.read_text() for path in sorted((folder / "advisor-tune" / experiment).glob("*.yaml"))]


def trained(folder: Path, experiment: str) -> list[tuple[str, ...]]:
    """The seed and hyperparameters of each run."""
    runs = read_experiment(experiment, tracking_uri=f"sqlite:///{folder}/mlflow.db").runs
    return sorted((run.tags[contract.TAG_SEED], run.params["lr"], run.params["momentum"]) for run in runs)


def test_a_wrong_space_is_widened_and_the_best_setting_repeated(folder, capfd):
    assert status_of(*words(15, "-j", "3")) == 0
    out, err = capfd.readouterr()
    assert "Warning" not in err
    assert out.startswith("Block 1, 9 trials: Explore the space.")
    assert "Block 2, 3 trials: Widen lr: 1e-5 to 0.01. Better trials lie towards the upper end, 0.001." in out
    assert "15 trials in 4 blocks.\nBest setting: lr 0.0" in out
    assert "The 2 runs of this setting with different seeds have val/loss" in out
    assert out.endswith("Next: advisor analyze small --tracking-uri sqlite:///mlflow.db\n")
    assert [path.name for path in files(folder)] == [
        "01-explore.yaml",
        "02-extend-lr.yaml",
        "03-extend-lr.yaml",
        "04-repeat.yaml",
    ]
    second = load_study_file(folder / "advisor-tune/small/02-extend-lr.yaml")
    assert (second.study, second.parent, second.round) == ("small-block-02", "small", 2)
    assert second.parameters["lr"].high == 0.01
    assert all(setting["lr"] > 0.001 for setting in second.settings)
    assert second.notes[-1] == "The first trials lie in the part that has no trials yet."
    assert [p.rule for p in second.predictions] == ["space-boundary"]

    # The same command trains nothing and decides nothing; a larger budget continues the search.
    before = lines(folder, "begun"), decisions(folder)
    assert status_of(*words(15, "-j", "3")) == 0
    assert capfd.readouterr().out.endswith(out[out.index("15 trials in") :])
    assert (lines(folder, "begun"), decisions(folder)) == before
    assert status_of(*words(19, "-j", "3")) == 0
    assert len(lines(folder, "begun")) == 19
    assert decisions(folder)[: len(before[1])] == before[1]


def test_an_interrupted_search_makes_the_same_decisions_and_trains_nothing_twice(folder, capfd):
    (folder / "hang").write_text("small/1")
    process = start(folder, 8)
    wait_until(lambda: any(line.startswith("small/1/") for line in lines(folder, "begun")))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    (folder / "hang").write_text("small-block-03/0")
    process = start(folder, 8)
    wait_until(lambda: any(line.startswith("small-block-03/") for line in lines(folder, "begun")))
    process.kill()  # the training continues
    process.wait()
    (folder / "hang").unlink()
    assert status_of(*words(8)) == 0
    assert "Resuming at block 3" in capfd.readouterr().out
    assert set(Counter(lines(folder, "ended")).values()) == {1}

    assert status_of(*words(8, "--experiment", "again")) == 0
    assert trained(folder, "small") == trained(folder, "again")
    assert [text.replace("again", "small") for text in decisions(folder, "again")] == decisions(folder, "small")
    assert len(decisions(folder, "small")) == 6

    # Another store has no runs of these blocks.
    assert status_of(*words(8, "--tracking-uri", "sqlite:///other.db")) == 2
    assert "other.db has no runs of advisor-tune/small/01-explore.yaml" in capfd.readouterr().err


def test_the_search_waits_while_the_store_is_away(folder, capfd, monkeypatch):
    nowhere, read, calls = parse_tracking_uri("http://127.0.0.1:9"), SearchRecord._read, count(1)

    def away(record):
        return read(replace(record, location=nowhere) if next(calls) in (3, 4) else record)

    monkeypatch.setattr(SearchRecord, "_read", away)
    assert status_of(*words(8)) == 0
    out = capfd.readouterr().out
    assert out.count("The store does not answer; the search continues when the store answers again.\n") == 1
    assert len(lines(folder, "begun")) == 8

    monkeypatch.setattr("advisor.execution.ledger.record.MAX_STORE_WAIT_S", 0.0)
    calls = iter([1, 2, 3, 4])
    assert status_of(*words(8, "--experiment", "again")) == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        "advisor: the tracking store does not answer: cannot reach http://127.0.0.1:9; try again when it does"
    )
    calls = count(10)
    assert status_of(*words(8, "--experiment", "again")) == 0
    assert trained(folder, "small") == trained(folder, "again")


def test_what_the_search_cannot_go_on_with_is_one_line(folder, capfd):
    (folder / "train.py").write_text("import sys; sys.exit('no data')")
    assert status_of(*words(8)) == 1
    assert "the first 3 trials all failed" in capfd.readouterr().err
    (folder / "study.yaml").write_text(STUDY.replace("1.0e-3", "1.0e-2"))
    assert status_of(*words(8)) == 2
    assert "holds a search that started with a different value of 'parameters'" in capfd.readouterr().err
    assert status_of(*words(8, "--out", "elsewhere")) == 2
    error = capfd.readouterr().err
    assert "experiment 'small' already holds runs of the study 'small', which are not from this search" in error
    assert error.count("\n") == 1
    assert not (folder / "elsewhere").exists()


def test_a_corrected_objective_needs_no_new_training(folder, capfd):
    (folder / "study.yaml").write_text(STUDY.replace("val/loss", "val/los"))
    assert status_of(*words(4)) == 1
    assert "set `objective.metric: val/loss` in the study file" in capfd.readouterr().err
    (folder / "study.yaml").write_text(STUDY)
    assert status_of(*words(4)) == 0
    out, err = capfd.readouterr()
    assert "3 of 3 jobs had already ended." in err
    assert "The only run of this setting has val/loss" in out  # the fourth trial is another one: the first three are known
    assert len(lines(folder, "begun")) == 4
    assert {load_study_file(path).objective.metric for path in files(folder)} == {"val/loss"}

    # Now the trials have values of the objective, so another one would be another search.
    (folder / "study.yaml").write_text(STUDY.replace("minimize", "maximize"))
    assert status_of(*words(4)) == 2
    assert "holds a search that started with a different value of 'objective'" in capfd.readouterr().err


def test_a_search_ends_if_a_whole_block_fails(folder, capfd):
    broken = TRAINING.replace("loss = 1", 'assert study == "small", "no data left"\nloss = 1')
    (folder / "train.py").write_text(broken)
    assert status_of(*words(36)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("advisor: the last 3 trials, up to block 2, all failed, the last with: exit status 1: ")
    assert "no data left; their output is in advisor-tune/small/02-" in error
    assert len(files(folder)) == 2


def test_a_search_without_any_result_exits_with_1(folder, capfd):
    (folder / "train.py").write_text("import sys; sys.exit('no data')")
    assert status_of(*words(4, "--keep-going")) == 1
    assert "No setting has a result in all of its runs." in capfd.readouterr().out

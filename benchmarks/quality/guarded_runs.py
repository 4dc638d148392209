"""Trains a study with `advisor run`, with and without `--stop-doomed`, and prints steps, minutes, best value and all stops.

    python benchmarks/quality/guarded_runs.py                forty trainings, four at a time; takes about half an hour
    python benchmarks/quality/guarded_runs.py --trials 8     fewer trainings

Each training is a small perceptron on handwritten digits (1,500 steps, 20 evaluations, cosine schedule) that waits 0.1 s for each
batch, so a training takes three minutes but little processor time. Both launches train the same settings with the same seeds and
run at the same time, so that other load affects both alike. Trainings are deterministic, so the launch without the guard shows the
result that each stopped trial would have reached.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow.tracking import MlflowClient

from advisor import contract
from advisor.contract.guard_stop import GuardStop, read_guard_stop

OBJECTIVE = "val/loss"
STEPS, EVERY = 1500, 75
STUDY = f"""
study: digits
objective: {{metric: {OBJECTIVE}, direction: minimize}}
parameters:
  learning_rate: {{low: 0.0003, high: 3.0, scale: log}}
  weight_decay: {{low: 0.000001, high: 0.1, scale: log}}
  dropout: {{low: 0.0, high: 0.8}}
  momentum: {{low: 0.0, high: 0.98}}
max_train_steps: {STEPS}
"""
TRAINING = f"""
import json, os
from pathlib import Path

from recordings.training import Training
from recordings.trial import train

settings = Training(
    task="digits-mlp", max_train_steps={STEPS}, evaluate_every={EVERY}, objective="{OBJECTIVE}", wait_s=0.1, keep="none"
)
params, seed = json.loads(os.environ["ADVISOR_PARAMS"]), int(os.environ["ADVISOR_SEED"])
folder = Path.cwd() / os.environ["ADVISOR_TRIAL"]
folder.mkdir(exist_ok=True)
train(settings, params, seed, "digits", os.environ["MLFLOW_TRACKING_URI"], folder)
"""


@dataclass(frozen=True)
class TrainedTrial:
    """One trial of a launch."""

    status: str
    step: int
    """Last evaluated step."""
    best: float
    stop: GuardStop | None


@dataclass(frozen=True)
class LaunchResult:
    minutes: float
    trials: Mapping[int, TrainedTrial]

    @property
    def best(self) -> float:
        return min(t.best for t in self.trials.values())


def start_launch(folder: Path, words: Sequence[str], trials: int, parallel: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(STUDY + f"trials: {trials}\n")
    (folder / "train.py").write_text(TRAINING)
    here = str(Path(__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "ADVISOR_SPOOL": str(folder / "spool"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    launch = [
        "run",
        "study.yaml",
        "--tracking-uri",
        "sqlite:///mlflow.db",
        "-j",
        str(parallel),
        "--gpus-per-trial",
        "0",
    ]
    advisor = [sys.executable, "-c", "import sys; from advisor.cli.main import main; main(sys.argv[1:])"]
    command = [*advisor, *launch, *words, "--no-args", "--", sys.executable, "train.py"]
    with (folder / "launch.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def read_trials(folder: Path) -> Mapping[int, TrainedTrial]:
    """Return the trials in the store of a launch, by number."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None, "the launch began no trial"
    found = {}
    for run in client.search_runs([experiment.experiment_id], max_results=1000):
        tags = run.data.tags
        points = client.get_metric_history(run.info.run_id, OBJECTIVE)
        found[int(tags[contract.TAG_TRIAL])] = TrainedTrial(
            tags[contract.TAG_STATUS],
            max((p.step for p in points), default=0),
            min((p.value for p in points if math.isfinite(p.value)), default=math.inf),
            read_guard_stop(tags.get(contract.TAG_STOPPED)),
        )
    return dict(sorted(found.items()))


def show(plain: LaunchResult, guarded: LaunchResult) -> None:
    print(f"\n| launch | minutes | steps | best {OBJECTIVE} | trials |\n|---|---|---|---|---|")
    for name, launch in (("without the guard", plain), ("`--stop-doomed`", guarded)):
        steps = sum(t.step for t in launch.trials.values())
        states = ", ".join(f"{n} {state}" for state, n in Counter(t.status for t in launch.trials.values()).items())
        print(f"| {name} | {launch.minutes:.1f} | {steps:,} | {launch.best:.4f} | {states} |")
    print(f"\n| stopped trial | verdict | at | best {OBJECTIVE} then | in the whole training |\n|---|---|---|---|---|")
    for number, trial in guarded.trials.items():
        if trial.stop is not None:
            share, whole = trial.stop.step / STEPS, plain.trials[number].best
            print(f"| {number} | {trial.stop.state} | {share:.0%} | {trial.best:.4f} | {whole:.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40, help="default: 40")
    parser.add_argument("--parallel", type=int, default=4, help="trainings at a time in each launch; default: 4")
    parser.add_argument("--folder", type=Path, help="new folder to keep the stores in; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        ways = {"plain": [], "guarded": ["--stop-doomed"]}
        began = time.monotonic()
        running = {
            name: start_launch(folder / name, words, options.trials, options.parallel) for name, words in ways.items()
        }
        minutes: dict[str, float] = {}
        while len(minutes) < len(running):
            time.sleep(1.0)
            for name, process in running.items():
                if name not in minutes and process.poll() is not None:
                    minutes[name] = (time.monotonic() - began) / 60
        show(*(LaunchResult(minutes[name], read_trials(folder / name)) for name in ways))


if __name__ == "__main__":
    main()

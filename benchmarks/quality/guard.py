"""Replays the guard on studies drawn from recorded curves: steps saved, winners lost and false verdicts.

    python benchmarks/quality/guard.py                       the guard, with 1 and 4 workers
    python benchmarks/quality/guard.py --pruners --studies 20  beside Optuna's pruners on the same draws (slow)
    python benchmarks/quality/guard.py --first-seed 500      other draws

A study is a random choice of 16 to 64 trials of a task in random order; of a task with fewer than 36 trials, of 80 % of them.
Trials begin one after another on each worker and take a time proportional to their steps. Sources are the real studies that
`ADVISOR_BENCHMARK` names, and our recordings. The columns:

    saved    share of all steps
    lost     share of studies whose best result is worse than without stopping
    > noise  the same if it is worse by more than the median difference of the winner's last evaluations
    stopped  trials that were stopped
    false    share of these that were finite and would have become better than the best completed trial at that moment
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from cases import REAL, RECORDED

from advisor.engine.guard.policy import Policy, Progress
from advisor.engine.guard.replay import Stopper, guard_stopper, not_finite, replay

SOURCES: Mapping[str, Sequence[Path]] = {
    "TaskSet": [REAL.folder / "taskset"],
    "DeepOBS": [REAL.folder / "deepobs", REAL.folder / "deepobs_svhn"],
    "AlgoPerf": [REAL.folder / "algoperf", REAL.folder / "algoperf_generalized_adam"],
    "recordings": [RECORDED.folder],
}
MIN_TRIALS = 12
MIN_EVALUATIONS = 5
MAX_LOST = 0.01
"""Share of lost winners from which a task is listed."""

Task = Sequence[Progress]


def tasks(folder: Path) -> Iterator[tuple[str, Task]]:
    """Yield the tasks of a folder: all trials of a problem and optimizer that were planned alike."""
    columns = ["study", "trial", "metric", "step", "value"]
    table = pq.read_table(folder / "curves.parquet", columns=columns).to_pandas()
    curves = dict(tuple(table.groupby(["study", "trial", "metric"], observed=True)))
    found: dict[str, list[Progress]] = defaultdict(list)
    for row in pq.read_table(folder / "trials.parquet").to_pylist():
        curve = curves.get((row["study"], row["trial"], row["objective"]))
        extra = json.loads(row.get("extra") or "{}")
        if curve is None or len(curve) < MIN_EVALUATIONS or extra.get("repeat_of_best_lr"):
            continue
        curve = curve.drop_duplicates("step").sort_values("step")
        sign = 1.0 if row["direction"].startswith("min") else -1.0
        steps = curve["step"].to_numpy(np.int64)
        length = float(extra.get("step_hint") or extra.get("max_train_steps") or np.nan)
        found[_task_name(row["study"])].append(Progress(steps, sign * curve["value"].to_numpy(np.float64), length))
    for name, trials in found.items():
        longest = float(max(t.steps[-1] for t in trials))
        planned = [t if np.isfinite(t.length) else Progress(t.steps, t.costs, longest) for t in trials]
        if len(planned) >= MIN_TRIALS:
            yield name, planned


def _task_name(study: str) -> str:
    """Return the name without the number of AlgoPerf's repeated studies of a workload."""
    head, _, tail = study.rpartition("/")
    return head if tail.startswith("study_") else study


def draws(task: Task, studies: int, seed: list[int]) -> Iterator[list[Progress]]:
    """Yield studies of a task."""
    rng = np.random.default_rng(seed)
    for _ in range(studies):
        count = int(rng.integers(16, 65))
        limit = len(task) if len(task) >= 36 else max(MIN_TRIALS, int(0.8 * len(task)))
        yield [task[i] for i in rng.permutation(len(task))[: min(count, limit)]]


@dataclass
class Counts:
    """Sums over the replayed studies of one task."""

    studies: int = 0
    saved: float = 0.0
    lost: int = 0
    beyond_noise: int = 0
    stopped: int = 0
    false: int = 0

    def add(self, other: Counts) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def text(self) -> str:
        n, stopped = max(self.studies, 1), max(self.stopped, 1)
        shares = f"{self.saved / n:7.1%} {self.lost / n:8.2%} {self.beyond_noise / n:8.2%}"
        return f"{self.studies:8} {shares} {self.stopped:9} {self.false / stopped:7.2%}"


def measure(trials: list[Progress], make: Callable[[], Stopper], workers: int) -> Counts:
    """Return the counts of one study. make: returns a new stopper."""
    stopper, false = make(), 0
    stopped: list[Progress] = []

    def stops(trial: Progress, at: int, completed: Sequence[Progress]) -> bool:
        nonlocal false
        stop = stopper(trial, at, completed)
        if stop and at + 1 < len(trial.steps):
            stopped.append(trial)
            best = min((float(t.best[-1]) for t in completed), default=-np.inf)
            false += not not_finite(trial, at) and bool(trial.best[-1] < best)
        return stop

    ends = replay(trials, stops, workers)
    steps = sum(float(t.steps[-1]) for t in trials)
    used = sum(float(t.steps[end - 1]) for t, end in zip(trials, ends, strict=True))
    winner = min(trials, key=lambda t: float(t.best[-1]))
    kept = min(float(t.best[end - 1]) for t, end in zip(trials, ends, strict=True))
    worse = kept - float(winner.best[-1])
    late = winner.costs[3 * len(winner.costs) // 4 :]
    noise = float(np.median(np.abs(np.diff(late[np.isfinite(late)])))) if len(late) > 1 else 0.0
    return Counts(1, 1 - used / steps, int(worse > 0), int(worse > noise), len(stopped), false)


# --- other ways to stop ----------------------------------------------------------------------------------------------------------


def only_not_finite(trial: Progress, at: int, completed: Sequence[Progress]) -> bool:  # noqa: ARG001
    return not_finite(trial, at)


def optuna_stopper(make_pruner: Callable[[int], Any], evaluations: int) -> Stopper:
    """Return one of Optuna's pruners as a stopper. It counts evaluations instead of steps, because trials differ in their steps."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(pruner=make_pruner(evaluations), sampler=optuna.samplers.RandomSampler(seed=0))
    begun: dict[int, Any] = {}

    def stops(trial: Progress, at: int, completed: Sequence[Progress]) -> bool:  # noqa: ARG001
        if id(trial) not in begun:
            begun[id(trial)] = study.ask()
        mine = begun[id(trial)]
        mine.report(float(trial.costs[at]), at + 1)
        if mine.should_prune():
            study.tell(mine, state=optuna.trial.TrialState.PRUNED)
            return True
        if at + 1 == len(trial.steps):
            final = float(trial.best[-1])
            study.tell(mine, final) if np.isfinite(final) else study.tell(mine, state=optuna.trial.TrialState.FAIL)
        return False

    return stops


def pruners() -> Mapping[str, Callable[[int], Any]]:
    """Return makers of Optuna's pruners, given the usual number of evaluations."""
    from optuna import pruners as p

    return {
        "median, warm-up 25 %": lambda n: p.MedianPruner(n_startup_trials=4, n_warmup_steps=n // 4),
        "successive halving, eta 3": lambda n: p.SuccessiveHalvingPruner(
            min_resource=max(1, n // 27), reduction_factor=3
        ),
        "Hyperband, eta 3": lambda n: p.HyperbandPruner(min_resource=1, max_resource=n, reduction_factor=3),
    }


# --- table -----------------------------------------------------------------------------------------------------------------------


def table(options: argparse.Namespace) -> None:
    columns = ("studies", 8), ("saved", 7), ("lost", 8), ("> noise", 8), ("stopped", 9), ("false", 7)
    print(f"{'source':11} {'way to stop':26} {'workers':>7} " + " ".join(f"{name:>{width}}" for name, width in columns))
    for source in options.sources:
        folders = SOURCES[source]
        found = [task for folder in folders if (folder / "trials.parquet").is_file() for task in tasks(folder)]
        for workers in options.workers:
            ways = ["guard", *(["non-finite only", *pruners()] if options.pruners else [])]
            for way in ways:
                total, bad = Counts(), []
                for name, task in found:
                    counts = Counts()
                    seed = [options.first_seed, zlib.crc32(name.encode())]
                    for trials in draws(task, options.studies, seed):
                        counts.add(measure(trials, partial(_stopper, way, trials), workers))
                    total.add(counts)
                    if counts.lost > MAX_LOST * counts.studies:
                        bad.append(f"{name.rpartition('/')[2] or name} {counts.lost / counts.studies:.1%}")
                print(f"{source:11} {way:26} {workers:7} {total.text()}", flush=True)
                if bad:
                    print(f"{'':11} lost more often: {', '.join(bad)}", flush=True)


def _stopper(way: str, trials: Sequence[Progress]) -> Stopper:
    if way == "guard":
        return guard_stopper(Policy())
    if way == "non-finite only":
        return only_not_finite
    return optuna_stopper(pruners()[way], int(np.median([len(t.steps) for t in trials])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=100, help="number of studies of each task; default: 100")
    parser.add_argument("--first-seed", type=int, default=100, help="seed of the draws; default: 100")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 4], help="numbers of trials at a time; default: 1 4"
    )
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=list(SOURCES), help="default: all")
    parser.add_argument("--pruners", action="store_true", help="also replay Optuna's pruners")
    table(parser.parse_args())


if __name__ == "__main__":
    main()

"""Replays the guard on studies drawn from recorded curves: steps saved, winners lost and false verdicts.

    python benchmarks/quality/guard.py                   the guard, with 1 and 4 workers
    python benchmarks/quality/guard.py --pruners         beside Optuna's pruners on the same draws
    python benchmarks/quality/guard.py --hindsight       settings that were safe in one study, on another study of the same task
    python benchmarks/quality/guard.py --first-seed 500  other draws

A study is a random choice of 16 to 64 trials of a task in random order, or of 80 % of the trials if the task has fewer than 36.
Trials begin one after another on each worker, and their durations are proportional to their steps. Sources are the real studies
that `ADVISOR_BENCHMARK` names, and our recordings. The guard was developed with the seeds 100 to 299. The columns:

    saved    share of all steps
    lost     share of studies whose best result is worse than without stopping
    > noise  the same, if worse by more than the median difference between the winner's last evaluations
    stopped  trials that were stopped
    false    share of the stopped trials that were finite and would have become better than the best completed trial at that time
    alarms   share of healthy trials with a false verdict of the guard, which may also be `stuck`, `diverging` or `not_finite`:
             the trial improved later. Healthy trials are the better half of a study

Median pruning and successive halving are those of `advisor.engine.guard.hindsight`, which a test compares with Optuna's.

With `--hindsight`, each task is divided at random into two studies without common trials. A stopper's setting counts as safe if it
would not have stopped the best trial of any task's first study; the table shows its effect in the second studies. "best safe
setting" is the safe setting that saved most in the first studies.
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

from advisor.engine.guard import hindsight
from advisor.engine.guard.policy import Policy, TrialProgress
from advisor.engine.guard.replay import Stopper, guard_stopper, is_not_finite, replay_trials
from advisor.engine.guard.verdicts import MIN_LEARNING_GAIN_SHARE, improvement_steps_of_siblings, lost_share_if_diverging

SOURCES: Mapping[str, Sequence[Path]] = {
    "TaskSet": [REAL.folder / "taskset"],
    "DeepOBS": [REAL.folder / "deepobs", REAL.folder / "deepobs_svhn"],
    "AlgoPerf": [REAL.folder / "algoperf", REAL.folder / "algoperf_generalized_adam"],
    "recordings": [RECORDED.folder],
}
MIN_TRIALS = 12
MIN_EVALUATIONS = 5
MAX_LOST = 0.01
"""Share of studies with a lost winner above which a task is listed."""

Task = Sequence[TrialProgress]


def tasks(folder: Path) -> Iterator[tuple[str, Task]]:
    """Yield the tasks in a folder: a task is all trials of one problem and optimizer with the same planned length."""
    columns = ["study", "trial", "metric", "step", "value"]
    table = pq.read_table(folder / "curves.parquet", columns=columns).to_pandas()
    curves = dict(tuple(table.groupby(["study", "trial", "metric"], observed=True)))
    found: dict[str, list[TrialProgress]] = defaultdict(list)
    for row in pq.read_table(folder / "trials.parquet").to_pylist():
        curve = curves.get((row["study"], row["trial"], row["objective"]))
        extra = json.loads(row.get("extra") or "{}")
        if curve is None or len(curve) < MIN_EVALUATIONS or extra.get("repeat_of_best_lr"):
            continue
        curve = curve.drop_duplicates("step").sort_values("step")
        sign = 1.0 if row["direction"].startswith("min") else -1.0
        steps = curve["step"].to_numpy(np.int64)
        length = float(extra.get("step_hint") or extra.get("max_train_steps") or np.nan)
        found[_name_of_task(row["study"])].append(TrialProgress(steps, sign * curve["value"].to_numpy(np.float64), length))
    for name, trials in found.items():
        longest = float(max(t.steps[-1] for t in trials))
        planned = [t if np.isfinite(t.length) else TrialProgress(t.steps, t.costs, longest) for t in trials]
        if len(planned) >= MIN_TRIALS:
            yield name, planned


def _name_of_task(study: str) -> str:
    """Return the study's name without the number by which AlgoPerf distinguishes repeated studies of a workload."""
    head, _, tail = study.rpartition("/")
    return head if tail.startswith("study_") else study


def draw_studies(task: Task, studies: int, seed: list[int]) -> Iterator[list[TrialProgress]]:
    """Yield random studies of a task's trials."""
    rng = np.random.default_rng(seed)
    for _ in range(studies):
        count = int(rng.integers(16, 65))
        limit = len(task) if len(task) >= 36 else max(MIN_TRIALS, int(0.8 * len(task)))
        yield [task[i] for i in rng.permutation(len(task))[: min(count, limit)]]


@dataclass
class ReplayCounts:
    """Counts summed over the replayed studies of one task."""

    studies: int = 0
    saved: float = 0.0
    lost: int = 0
    beyond_noise: int = 0
    stopped: int = 0
    false: int = 0
    healthy: int = 0
    alarms: int = 0

    def add(self, other: ReplayCounts) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def text(self) -> str:
        n, stopped = max(self.studies, 1), max(self.stopped, 1)
        shares = f"{self.saved / n:7.1%} {self.lost / n:8.2%} {self.beyond_noise / n:8.2%}"
        alarms = f"{self.alarms / self.healthy:7.2%}" if self.healthy else ""
        return f"{self.studies:8} {shares} {self.stopped:9} {self.false / stopped:7.2%} {alarms}"


def measure(
    trials: list[TrialProgress], make: Callable[[], Stopper], workers: int, alarms: FalseAlarms | None = None
) -> ReplayCounts:
    """Return the counts for one study. make: returns a new stopping method. alarms: counts false verdicts on healthy trials."""
    stopper, false = make(), 0
    stopped: list[TrialProgress] = []
    alarmed: set[int] = set()
    false_alarm = (lambda *_: False) if alarms is None else alarms.false_alarm
    finals = [float(t.best[-1]) for t in trials]
    middle, lowest = float(np.median(finals)), min(finals)

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        nonlocal false
        stop = stopper(trial, at, completed)
        healthy = bool(trial.best[-1] < middle)
        if stop and at + 1 < len(trial.steps):
            stopped.append(trial)
            best = min((float(t.best[-1]) for t in completed), default=-np.inf)
            if not is_not_finite(trial, at) and trial.best[-1] < best:
                false += 1
                alarmed.add(id(trial))
        if healthy and id(trial) not in alarmed and false_alarm(trial, at, completed, lowest):
            alarmed.add(id(trial))
        return stop

    ends = replay_trials(trials, stops, workers)
    steps = sum(float(t.steps[-1]) for t in trials)
    used = sum(float(t.steps[end - 1]) for t, end in zip(trials, ends, strict=True))
    winner = min(trials, key=lambda t: float(t.best[-1]))
    kept = min(float(t.best[end - 1]) for t, end in zip(trials, ends, strict=True))
    worse = kept - float(winner.best[-1])
    late = winner.costs[3 * len(winner.costs) // 4 :]
    noise = float(np.median(np.abs(np.diff(late[np.isfinite(late)])))) if len(late) > 1 else 0.0
    healthy = 0 if alarms is None else sum(bool(t.best[-1] < middle) for t in trials)
    return ReplayCounts(1, 1 - used / steps, int(worse > 0), int(worse > noise), len(stopped), false, healthy, len(alarmed))


class FalseAlarms:
    """Counts the guard's false alarms: verdicts that stop no trial, and stops of non-finite trials."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._diverging: dict[TrialProgress, list[bool]] = {}

    def false_alarm(self, trial: TrialProgress, at: int, completed: Sequence[TrialProgress], lowest: float) -> bool:
        """Return whether the guard falsely calls the trial stuck, diverging or not finite: the trial improves later. lowest: cost
        of the study's best trial."""
        if not trial.best[-1] < trial.best[at]:
            return False
        first = float(trial.costs[0])
        if not first - trial.best[at] > MIN_LEARNING_GAIN_SHARE * (first - lowest) and self._is_stuck(trial, at, completed):
            return True  # the first condition follows from the second and is faster to check
        return is_not_finite(trial, at) or self._is_diverging(trial, at)

    def _is_diverging(self, trial: TrialProgress, at: int) -> bool:
        if trial not in self._diverging:
            found = [lost_share_if_diverging(trial, k, self._policy) is not None for k in range(len(trial.steps))]
            self._diverging[trial] = found
        return self._diverging[trial][at]

    def _is_stuck(self, trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        siblings = [s for s in completed if np.isfinite(s.best[-1])]
        if len(siblings) < self._policy.siblings or not self._policy.has_enough_evaluations(siblings):
            return False
        return improvement_steps_of_siblings(trial, at, siblings, self._policy) is not None


# --- other ways to stop ----------------------------------------------------------------------------------------------------------


def only_not_finite(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:  # noqa: ARG001
    return is_not_finite(trial, at)


def optuna_stopper(make_pruner: Callable[[int], Any], evaluations: int) -> Stopper:
    """Return an Optuna pruner as a stopping method that counts evaluations instead of steps, because steps differ between
    trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.RandomSampler(seed=0)  # the study's name determines the brackets of Hyperband
    study = optuna.create_study(study_name="replay", pruner=make_pruner(evaluations), sampler=sampler)
    begun: dict[int, Any] = {}

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:  # noqa: ARG001
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


WARMUPS = (0.25, 0.5, 0.75)
"""Shares of a training, before which a median pruner stops no trial."""


def ways_to_stop(trials: Sequence[TrialProgress]) -> Mapping[str, Callable[[], Stopper]]:
    """Return functions that create the stopping methods other than the guard, for a study."""
    from optuna.pruners import HyperbandPruner

    evaluations = int(np.median([len(t.steps) for t in trials]))
    medians = {f"median, warm-up {share:.0%}": partial(hindsight.median_stopper, share) for share in WARMUPS}
    return {
        "non-finite only": lambda: only_not_finite,
        **medians,
        "successive halving, eta 3": partial(hindsight.halving_stopper, 3),
        "Hyperband, eta 3": lambda: optuna_stopper(
            lambda n: HyperbandPruner(min_resource=1, max_resource=n, reduction_factor=3), evaluations
        ),
    }


# --- tables ----------------------------------------------------------------------------------------------------------------------

COLUMNS = {"studies": 8, "saved": 7, "lost": 8, "> noise": 8, "stopped": 9, "false": 7, "alarms": 7}


def table_head() -> None:
    print(f"{'source':11} {'way to stop':26} {'workers':>7} " + " ".join(f"{n:>{width}}" for n, width in COLUMNS.items()))


def tasks_of(source: str) -> Sequence[tuple[str, Task]]:
    """Return the tasks of a source, from those of its folders that exist."""
    return [task for folder in SOURCES[source] if (folder / "trials.parquet").is_file() for task in tasks(folder)]


def table(options: argparse.Namespace) -> None:
    table_head()
    alarms = FalseAlarms(Policy())
    for source in options.sources:
        found = tasks_of(source)
        for workers in options.workers:
            ways = ["guard", *(ways_to_stop(found[0][1]) if options.pruners and found else [])]
            for way in ways:
                total, bad = ReplayCounts(), []
                for name, task in found:
                    counts = ReplayCounts()
                    seed = [options.first_seed, zlib.crc32(name.encode())]
                    for trials in draw_studies(task, options.studies, seed):
                        if way == "guard":
                            counts.add(measure(trials, partial(guard_stopper, Policy()), workers, alarms))
                        else:
                            counts.add(measure(trials, ways_to_stop(trials)[way], workers))
                    total.add(counts)
                    if way == "guard" and counts.lost > MAX_LOST * counts.studies:
                        bad.append(f"{'/'.join(name.split('/')[-2:])} {counts.lost / counts.studies:.1%}")
                print(f"{source:11} {way:26} {workers:7} {total.text()}", flush=True)
                if bad:
                    print(f"{'':11} lost more often: {', '.join(bad)}", flush=True)


# --- hindsight -------------------------------------------------------------------------------------------------------------------


def split_into_halves(task: Task, studies: int, seed: list[int]) -> Iterator[tuple[list[TrialProgress], list[TrialProgress]]]:
    """Yield pairs of studies of the same task that have no trials in common."""
    rng = np.random.default_rng(seed)
    for _ in range(studies):
        count = min(int(rng.integers(16, 65)), len(task) // 2)
        order = rng.permutation(len(task))
        yield [task[i] for i in order[:count]], [task[i] for i in order[count : 2 * count]]


def safe_settings(trials: list[TrialProgress], workers: int) -> Sequence[str] | None:
    """Return the settings of stopping methods that would not have stopped the best trial, sorted by saved steps, largest first;
    None if complete trials or evaluations are too few."""
    whole = {id(t) for t in trials if np.isfinite(t.costs[-1])}
    if len(whole) < hindsight.MIN_TRIALS or not Policy().has_enough_evaluations([t for t in trials if id(t) in whole]):
        return None
    found = hindsight.replay_outcomes(trials, whole, hindsight.pruning_stoppers(), workers, noise=0.0)
    return [o.name for o in sorted(found, key=lambda o: -o.saved) if not o.lost and o.saved]


def hindsight_table(options: argparse.Namespace) -> None:
    table_head()
    for source in options.sources:
        for workers in options.workers:
            counts: dict[str, ReplayCounts] = {
                n: ReplayCounts() for n in ("guard", "best safe setting", *hindsight.pruning_stoppers())
            }
            for name, task in tasks_of(source):
                for first, second in split_into_halves(task, options.studies, [options.first_seed, zlib.crc32(name.encode())]):
                    safe = safe_settings(first, workers)
                    if safe is None:
                        continue
                    counts["guard"].add(measure(second, partial(guard_stopper, Policy()), workers))
                    for setting in safe:
                        found = measure(second, partial(_other_stopper, setting), workers)
                        counts[setting].add(found)
                        if setting == safe[0]:
                            counts["best safe setting"].add(found)
            for way, sums in counts.items():
                print(f"{source:11} {_short_name(way):26} {workers:7} {sums.text()}", flush=True)


def _other_stopper(name: str) -> Stopper:
    return hindsight.pruning_stoppers()[name]()


def _short_name(way: str) -> str:
    return way.replace("median pruning from", "median, warm-up").replace(" of the training", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=100, help="number of studies of each task; default: 100")
    parser.add_argument("--first-seed", type=int, default=100, help="seed of the draws; default: 100")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], help="numbers of trials at a time; default: 1 4")
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=list(SOURCES), help="default: all")
    parser.add_argument("--pruners", action="store_true", help="also replay Optuna's pruners")
    parser.add_argument("--hindsight", action="store_true", help="replay the settings that were safe in another study")
    options = parser.parse_args()
    hindsight_table(options) if options.hindsight else table(options)


if __name__ == "__main__":
    main()

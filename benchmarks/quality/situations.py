"""Counts faults in the advisor's reports on simulated studies that are logged as real users log them.

    python benchmarks/quality/situations.py                    all rows
    python benchmarks/quality/situations.py --rows A01 C       rows whose names start with these
    python benchmarks/quality/situations.py --first-seed 0     the seeds for development; the default reports on others

Prints one line for each row: the share of studies with the fault, its 95 % interval (Clopper and Pearson), and the maximum share.
A row fails if its share exceeds the maximum.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module

import numpy as np
import worlds
from scipy.stats import binomtest
from worlds.world import Situation, analyze


def _all() -> tuple[Situation, ...]:
    """Return the situations in all modules of `worlds`, sorted by row."""
    modules = [import_module(f"worlds.{m.name}") for m in pkgutil.iter_modules(worlds.__path__)]
    return tuple(sorted((s for m in modules for s in getattr(m, "SITUATIONS", ())), key=lambda s: s.row))


SITUATIONS = _all()


def faults(number: int, first_seed: int, studies: int | None, *, tell: bool = False) -> tuple[int, int]:
    """Return the number of reports with the fault, and of studies, for one row. tell: print the seed of each fault."""
    situation = SITUATIONS[number]
    count, total = 0, studies or situation.studies
    for seed in range(first_seed, first_seed + total):
        outcome = analyze(situation.make(np.random.default_rng([seed, *situation.row.encode()])))
        if situation.faulty(outcome):
            count += 1
            if tell:
                print(f"  {situation.row}: seed {seed}", file=sys.stderr)
    return count, total


def line(situation: Situation, count: int, total: int) -> str:
    low, high = binomtest(count, total).proportion_ci(0.95)
    mark = "" if count <= situation.bound * total else "  TOO MANY"
    share = f"{count}/{total} ({low:.0%} to {high:.0%})"
    return f"{situation.row:58.58} {situation.fault:52.52} {share:>22} {situation.bound:7.0%}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[""], help="only rows whose names start with these")
    parser.add_argument("--first-seed", type=int, default=1000, help="default: 1000")
    parser.add_argument("--studies", type=int, help="studies of each row; default: as many as the row names")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--faults", action="store_true", help="print the seed of each fault")
    options = parser.parse_args()
    started = time.perf_counter()
    chosen = [i for i, s in enumerate(SITUATIONS) if s.row.startswith(tuple(options.rows))]
    if not chosen:
        raise SystemExit("no row begins with that; rows: " + ", ".join(s.row for s in SITUATIONS))
    print(f"{'situation':58} {'fault':52} {'faulty reports':>22} {'at most':>7}")
    failed = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(faults, i, options.first_seed, options.studies, tell=options.faults) for i in chosen]
        for i, future in zip(chosen, futures, strict=True):
            count, total = future.result()
            failed += count > SITUATIONS[i].bound * total
            print(line(SITUATIONS[i], count, total), flush=True)
    print(f"{len(chosen)} rows, {failed} with too many faults, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

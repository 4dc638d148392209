"""Compares the false-alarm rate of each rule with its promised rate, on simulated studies in which nothing is wrong.

    python benchmarks/quality/promises.py                        60 studies of each family; takes a minute or two
    python benchmarks/quality/promises.py --full                 400 of each
    python benchmarks/quality/promises.py --rules stability-spikes --studies 1000 --jobs 2

Prints one line for each rule and family, with the 95 % interval (Clopper and Pearson), and at the end the rules whose promise no
family tests. Rates are over all studies; `judged` counts the studies on which the rule had enough data. A line is marked if the
probability of at least this many alarms, given the promised rate, is at most 1 %.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from nulls import FAMILIES, NullFamily
from scipy.stats import binomtest

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule

_SIGNIFICANCE = 0.01


class Count(NamedTuple):
    """Number of false alarms of a rule on the studies of one family."""

    rule: str
    family: str
    alarms: int
    judged: int
    """Number of studies on which the rule had enough data to judge. On the other studies, the rule reported missing data, which is
    not an alarm."""
    studies: int

    def p(self, promise: float) -> float:
        """Return the probability of at least as many alarms if the promised rate holds."""
        return float(binomtest(self.alarms, self.studies, promise, alternative="greater").pvalue) if self.studies else 1.0


def promises() -> dict[str, float]:
    """Return, for each rule that promises a false-alarm rate, this rate."""
    return {r.rule_id(): float(vars(r)["false_alarms"]) for r in load_rules() if "false_alarms" in type(r).model_fields}


def count_alarms(family: NullFamily, studies: int, only: Collection[str] = ()) -> list[Count]:
    """Count the false alarms of the family's rules. Every call with the same arguments returns the same counts."""
    rules = [r for r in load_rules() if r.rule_id() in family.wrong and (not only or r.rule_id() in only)]
    alarms: dict[str, int] = defaultdict(int)
    judged: dict[str, int] = defaultdict(int)
    for seed in range(studies if rules else 0):
        for rule, wrong in _answers(family, rules, seed):
            judged[rule] += 1
            alarms[rule] += wrong
    return [Count(r.rule_id(), family.name, alarms[r.rule_id()], judged[r.rule_id()], studies) for r in rules]


def sum_of_counts(counts: Sequence[Count]) -> Count:
    """Return the counts of one rule, summed over its families of studies."""
    alarms, judged, studies = (sum(numbers) for numbers in zip(*(c[2:] for c in counts), strict=True))
    return Count(counts[0].rule, "all", alarms, judged, studies)


def _job(family: int, studies: int, only: Collection[str]) -> list[Count]:
    return count_alarms(FAMILIES[family], studies, only)


def _answers(family: NullFamily, rules: list[Rule], seed: int) -> Iterator[tuple[str, bool]]:
    """Yield each rule that had enough data to judge the study of this seed, and whether its verdict was wrong."""
    study, correct = family.make(np.random.default_rng([seed, *family.name.encode()]))
    for verdict in judge(study, rules):
        if verdict.status == "broken":
            raise RuntimeError(f"{verdict.rule} is broken: {verdict.reason}")
        if verdict.status != "not-assessed":
            yield verdict.rule, family.wrong[verdict.rule](verdict) and not correct.get(verdict.rule, False)


def line(name: str, counts: Count, promise: float) -> str:
    low, high = binomtest(counts.alarms, counts.studies).proportion_ci(0.95)
    mark = "  BROKEN?" if counts.p(promise) <= _SIGNIFICANCE else ""
    rate = f"{counts.alarms / counts.studies:6.1%} ({low:.1%} to {high:.1%})"
    return f"{name:38} {counts.family:32} {rate:>24} {counts.judged:7,d} {promise:9.0%}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=60, help="studies of each family")
    parser.add_argument("--full", action="store_true", help="400 studies of each family")
    parser.add_argument("--rules", nargs="*", default=[], help="only these rules")
    parser.add_argument("--families", nargs="*", default=[], help="only families whose names start with these")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    studies = 400 if options.full else options.studies
    chosen = [i for i, f in enumerate(FAMILIES) if not options.families or f.name.startswith(tuple(options.families))]
    started, promised = time.perf_counter(), promises()
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(_job, i, studies, options.rules) for i in chosen]
        counts = [c for future in futures for c in future.result() if c.rule in promised]
    print(f"{'rule':38} {'family':32} {'false alarms':>24} {'judged':>7} {'promised':>9}")
    for rule, promise in promised.items():
        mine = [c for c in counts if c.rule == rule]
        for i, found in enumerate(mine):
            print(line(rule if i == 0 else "", found, promise))
        if len(mine) > 1:
            print(line("", sum_of_counts(mine), promise))
    untested = sorted(set(promised) - {c.rule for c in counts})
    if untested and not options.rules and not options.families:
        print(f"no family tests the promise of: {', '.join(untested)}")
    print(f"{studies} studies a family, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

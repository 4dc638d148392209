"""How often each rule raises a false alarm, beside what it promises: over simulated studies in which nothing is wrong.

    python benchmarks/quality/promises.py                        60 studies of each family, a minute or two
    python benchmarks/quality/promises.py --full                 400 of each
    python benchmarks/quality/promises.py --rules stability-spikes --studies 1000 --jobs 2

A line a rule and family, with the 95 % interval (Clopper and Pearson); rules whose promise no family asks for are named at the end.
Rates are of all studies; `judged` are those of which a rule did not say that data are missing. A line is marked where so many
alarms would come in one of a hundred cases or fewer if the promise held.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from nulls import FAMILIES, Null
from scipy.stats import binomtest

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule

_DOUBTFUL = 0.01


class Count(NamedTuple):
    """What a rule said of the studies of one family."""

    rule: str
    family: str
    alarms: int
    judged: int
    """Studies that it could judge; of the others it says what is missing, which is no alarm."""
    studies: int

    def p(self, promise: float) -> float:
        """How often so many alarms or more would come by chance if the promise held."""
        return (
            float(binomtest(self.alarms, self.studies, promise, alternative="greater").pvalue) if self.studies else 1.0
        )


def promises() -> dict[str, float]:
    """The promise of each rule that makes one."""
    return {r.rule_id(): float(vars(r)["false_alarms"]) for r in load_rules() if "false_alarms" in type(r).model_fields}


def count(family: Null, studies: int, only: Collection[str] = ()) -> list[Count]:
    """The false alarms of the family's rules over so many studies; the same at every call."""
    rules = [r for r in load_rules() if r.rule_id() in family.wrong and (not only or r.rule_id() in only)]
    alarms: dict[str, int] = defaultdict(int)
    judged: dict[str, int] = defaultdict(int)
    for seed in range(studies if rules else 0):
        for rule, wrong in _answers(family, rules, seed):
            judged[rule] += 1
            alarms[rule] += wrong
    return [Count(r.rule_id(), family.name, alarms[r.rule_id()], judged[r.rule_id()], studies) for r in rules]


def together(counts: Sequence[Count]) -> Count:
    """One rule's counts over all of its families."""
    alarms, judged, studies = (sum(numbers) for numbers in zip(*(c[2:] for c in counts), strict=True))
    return Count(counts[0].rule, "all", alarms, judged, studies)


def _job(family: int, studies: int, only: Collection[str]) -> list[Count]:
    return count(FAMILIES[family], studies, only)


def _answers(family: Null, rules: list[Rule], seed: int) -> Iterator[tuple[str, bool]]:
    """The rules that could judge the study of this seed, and whether they were wrong."""
    made, right = family.make(np.random.default_rng([seed, *family.name.encode()]))
    for verdict in judge(made, rules):
        if verdict.status == "broken":
            raise RuntimeError(f"{verdict.rule} is broken: {verdict.reason}")
        if verdict.status != "not-assessed":
            yield verdict.rule, family.wrong[verdict.rule](verdict) and not right.get(verdict.rule, False)


def line(name: str, found: Count, promise: float) -> str:
    """One line of the table."""
    low, high = binomtest(found.alarms, found.studies).proportion_ci(0.95)
    mark = "  BROKEN?" if found.p(promise) <= _DOUBTFUL else ""
    rate = f"{found.alarms / found.studies:6.1%} ({low:.1%} to {high:.1%})"
    return f"{name:38} {found.family:32} {rate:>24} {found.judged:7,d} {promise:9.0%}{mark}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=60, help="studies of each family")
    parser.add_argument("--full", action="store_true", help="400 studies of each family")
    parser.add_argument("--rules", nargs="*", default=[], help="only these rules")
    parser.add_argument("--families", nargs="*", default=[], help="only families whose names begin so")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    studies = 400 if options.full else options.studies
    chosen = [i for i, f in enumerate(FAMILIES) if not options.families or f.name.startswith(tuple(options.families))]
    started, promised = time.perf_counter(), promises()
    with ProcessPoolExecutor(options.jobs) as pool:
        made = [pool.submit(_job, i, studies, options.rules) for i in chosen]
        counts = [c for m in made for c in m.result() if c.rule in promised]
    print(f"{'rule':38} {'family':32} {'false alarms':>24} {'judged':>7} {'promised':>9}")
    for rule, promise in promised.items():
        mine = [c for c in counts if c.rule == rule]
        for i, found in enumerate(mine):
            print(line(rule if i == 0 else "", found, promise))
        if len(mine) > 1:
            print(line("", together(mine), promise))
    unasked = sorted(set(promised) - {c.rule for c in counts})
    if unasked and not options.rules and not options.families:
        print(f"no family asks for the promise of: {', '.join(unasked)}")
    print(f"{studies} studies a family, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

"""Measures how often the advice of findings is right on random studies whose truth is known, and calibrates confidences.

    python benchmarks/quality/calibration.py                  reliability of the confidences in reports
    python benchmarks/quality/calibration.py --write          fit the calibration maps on other seeds, write them, then report
    python benchmarks/quality/calibration.py --rules adopt    only these rules; the maps of others stay

Prints, for each rule that `truths` can check: the number of findings, the mean confidence that the rule states, the mean confidence
that the report shows, the share of findings whose advice is right, and the Brier scores of both confidences (mean squared
difference from right = 1 or wrong = 0; lower is better). Then a reliability table with five bins of the shown confidence.

A map is an isotonic regression on bins of equal size. To each bin, one right and one wrong finding are added, so that no confidence
reaches 0 or 1. A rule with fewer findings than `MIN_FINDINGS` has no map, and reports show its stated confidence.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, fields
from functools import partial
from typing import TypeAlias

import numpy as np
from scipy.optimize import isotonic_regression
from truths import TRUTHS, world

from advisor.engine.calibration import CALIBRATION_FILE_NAME, CalibrationPoint, calibration_table, corrected_confidence
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules, path_of_rule_table

MIN_FINDINGS = 30
"""Minimum number of a rule's findings to fit a calibration map."""
PER_BIN = 25
"""Minimum number of findings in each bin of a calibration map."""
MAX_BINS = 8
"""Maximum number of bins of a calibration map."""
Answers: TypeAlias = dict[str, list[tuple[float, bool]]]
"""For each rule: the stated confidence of each finding, and whether its advice is right."""


def findings_of_world(seed: int, names: frozenset[str]) -> list[tuple[str, float, bool]]:
    """Return (rule, stated confidence, whether the advice is right) for each finding of these rules on one random world; findings
    whose truth is uncertain are left out."""
    rules = [r for r in load_rules() if r.rule_id() in names]
    made = world(np.random.default_rng([seed, 1]))
    found = [f for v in judge(made.study, rules, calibrate=False) for f in v.findings if f.doubt == 1]
    answers = [(f.rule, f.confidence, TRUTHS[f.rule](made, f)) for f in found]
    return [(rule, stated, right) for rule, stated, right in answers if right is not None]


def findings_of_worlds(seeds: Iterable[int], jobs: int, names: frozenset[str]) -> Answers:
    answers: Answers = defaultdict(list)
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(partial(findings_of_world, names=names), seeds, chunksize=10):
            for rule, stated, right in found:
                answers[rule].append((stated, bool(right)))
    return answers


def fit_confidence_map(rule: str, answers: Sequence[tuple[float, bool]]) -> list[CalibrationPoint]:
    """Fit and return the calibration map of one rule, given its findings."""
    if len(answers) < MIN_FINDINGS:
        return []
    stated, right = (np.array(column, dtype=np.float64) for column in zip(*sorted(answers), strict=True))
    bins = np.array_split(np.arange(len(stated)), max(1, min(MAX_BINS, len(stated) // PER_BIN)))
    counts = np.array([len(b) for b in bins])
    shares = np.array([(right[b].sum() + 1) / (len(b) + 2) for b in bins])
    rising = isotonic_regression(shares, weights=counts).x
    merged: dict[float, list[tuple[float, int]]] = defaultdict(list)
    for b, share in zip(bins, rising, strict=True):
        merged[round(float(stated[b].mean()), 3)].append((float(share), len(b)))
    return [
        CalibrationPoint(
            rule, at, round(float(np.average([s for s, _ in some], weights=[n for _, n in some])), 3), sum(n for _, n in some)
        )
        for at, some in merged.items()
    ]


def write(maps: Mapping[str, Sequence[CalibrationPoint]]) -> None:
    with path_of_rule_table(CALIBRATION_FILE_NAME).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([f.name for f in fields(CalibrationPoint)])
        lines.writerows(astuple(knot) for rule in sorted(maps) for knot in maps[rule])


def report(answers: Answers, maps: Mapping[str, tuple[CalibrationPoint, ...]], names: Sequence[str]) -> str:
    """Return a table of these rules, followed by the reliability table of the shown confidences."""
    lines = [f"{'rule':24} {'findings':>8} {'stated':>7} {'shown':>7} {'right':>7} {'Brier stated':>13} {'Brier shown':>12}"]
    every: list[tuple[float, bool]] = []
    for rule in names:
        found = answers.get(rule, [])
        if not found:
            lines.append(f"{rule:24} {0:8}")
            continue
        stated, right = (np.array(c, dtype=np.float64) for c in zip(*found, strict=True))
        shown = np.array([corrected_confidence(float(s), maps.get(rule, ())) for s in stated])
        every += [(float(s), bool(r)) for s, r in zip(shown, right, strict=True)]
        briers = f"{np.mean((stated - right) ** 2):13.3f} {np.mean((shown - right) ** 2):12.3f}"
        lines.append(f"{rule:24} {len(found):8} {stated.mean():7.2f} {shown.mean():7.2f} {right.mean():7.2f} {briers}")
    return "\n".join([*lines, "", *_reliability_table(every)])


def _reliability_table(answers: Sequence[tuple[float, bool]]) -> list[str]:
    lines = [f"{'shown confidence':24} {'findings':>8} {'mean':>7} {'right':>7}"]
    for i in range(5):
        inside = [(s, r) for s, r in answers if min(int(5 * s), 4) == i]
        if inside:
            means = [float(np.mean(column)) for column in zip(*inside, strict=True)]
            lines.append(f"{f'{i / 5:.1f} to {(i + 1) / 5:.1f}':24} {len(inside):8} {means[0]:7.2f} {means[1]:7.2f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=600, help="simulated studies to report on; default: 600")
    parser.add_argument("--first-seed", type=int, default=100_000, help="default: 100000")
    parser.add_argument(
        "--write", action="store_true", help="fit the calibration maps on twice as many studies from seed 0, and write them"
    )
    parser.add_argument("--rules", nargs="*", default=list(TRUTHS), choices=list(TRUTHS), help="default: all of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: 2")
    options = parser.parse_args()
    started, maps, names = time.perf_counter(), calibration_table(), frozenset(options.rules)
    if options.write:
        development = findings_of_worlds(range(2 * options.studies), options.jobs, names)
        fitted = {rule: tuple(knots) for rule, found in development.items() if (knots := fit_confidence_map(rule, found))}
        maps = {rule: knots for rule, knots in maps.items() if rule not in names} | fitted
        write(maps)
    answers = findings_of_worlds(range(options.first_seed, options.first_seed + options.studies), options.jobs, names)
    print(report(answers, maps, options.rules))
    print(f"\n{options.studies} studies, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

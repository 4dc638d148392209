"""Measures the rules of fine-tuning on small trainings with one cause switched on or off, each from several seeds.

    python benchmarks/quality/finetuning.py                      seeds 10 to 19
    python benchmarks/quality/finetuning.py --seeds 0 4          seeds 0 to 3, on which the thresholds were chosen

Prints recall and false alarms of each rule, and how often each rule fired on each study. Ten seeds take about 15 minutes on one
core.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diagnosis import markdown
from recordings.finetuning.grpo import Logs
from recordings.finetuning.studies import TunedStudy, studies
from worlds.world import Store

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.tracking.study.assemble import assemble


def fired(study: TunedStudy, trials: Sequence[tuple[Mapping[str, Any], Logs]], rules: Sequence[Any]) -> set[str]:
    """Return the rules that fire on the study."""
    store = Store(study.name)
    for params, logs in trials:
        metrics = {name: ([step for step, _ in curve], [value for _, value in curve]) for name, curve in logs.items()}
        store.log(params, metrics)
    made = assemble(store.experiment(), objective=study.objective, direction=study.direction)
    return {v.rule for v in judge(made, rules) if v.status == "fired"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, default=(10, 20), metavar=("FIRST", "END"), help="default: 10 20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    labelled = sorted({rule for s in studies() for rule in (*s.fires, *s.quiet)})
    rules = [rule for rule in load_rules() if rule.rule_id() in labelled]
    alarms: dict[tuple[str, str], int] = defaultdict(int)
    seeds = range(*options.seeds)
    for seed in seeds:
        for study in studies():
            for rule in fired(study, study.trials(seed), rules):
                alarms[study.name, rule] += 1
        print(f"seed {seed}", flush=True)
    print(scores(labelled, alarms, len(seeds)), end="\n\n")
    print(counts(labelled, alarms, len(seeds)))


def scores(rules: Sequence[str], alarms: Mapping[tuple[str, str], int], seeds: int) -> str:
    rows = [["rule", "recall (of)", "false alarms (of)"]]
    for rule in rules:
        on = [s.name for s in studies() if rule in s.fires]
        off = [s.name for s in studies() if rule in s.quiet]
        rows.append([f"`{rule}`"])
        for names, digits in ((on, 2), (off, 3)):
            share = sum(alarms.get((name, rule), 0) for name in names) / (seeds * len(names) or 1)
            rows[-1].append(f"{share:.{digits}f} ({seeds * len(names)})")
    return markdown(rows)


def counts(rules: Sequence[str], alarms: Mapping[tuple[str, str], int], seeds: int) -> str:
    rows = [[f"studies of {seeds} on which it fired", *(f"`{rule}`" for rule in rules)]]
    for study in studies():
        marks = {**dict.fromkeys(study.fires, " (must)"), **dict.fromkeys(study.accept, " (may)")}
        rows.append([study.name, *(f"{alarms.get((study.name, r), 0)}{marks.get(r, '')}" for r in rules)])
    return markdown(rows)


if __name__ == "__main__":
    main()

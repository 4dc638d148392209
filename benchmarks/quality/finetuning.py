"""Measures the rules of fine-tuning on small trainings with one cause switched on or off, each from several seeds.

    python benchmarks/quality/finetuning.py                 seeds 20 to 29
    python benchmarks/quality/finetuning.py --seeds 0 4     seeds 0 to 3, on which the thresholds were chosen
    python benchmarks/quality/finetuning.py --by trl        trainings by TRL's trainers (pip install trl), seeds 10 to 19
    python benchmarks/quality/finetuning.py --write         also write `trained.csv`, which rule pages quote

Prints recall and false alarms of each rule, and how often each rule fired on each study. Ten seeds take about 15 minutes on one
core, and half an hour by TRL.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diagnosis import markdown
from recordings.finetuning.studies import TunedStudy, studies

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.trained import FILE, Trained, write
from advisor.tracking.runs import Experiment
from advisor.tracking.study.assemble import assemble

FIRST_SEED = {"hand": 20, "trl": 10}
"""First of the ten seeds to report on, by kind of training loop. No rule was developed on the reported seeds."""
SCRIPTS = {"hand": "finetuning.py", "trl": "finetuning.py --by trl"}
"""Names of the measurements in the table of alarm rates."""


def fired(study: TunedStudy, experiment: Experiment, rules: Sequence[Any]) -> set[str]:
    """Return the rules that fire on the given study."""
    made = assemble(experiment, objective=study.objective, direction=study.direction)
    return {v.rule for v in judge(made, rules) if v.status == "fired"}


def labelled_studies(by: str) -> list[TunedStudy]:
    """Return the studies whose trials are trained by hand-written loops ("hand") or by TRL."""
    if by == "hand":
        return studies()
    try:
        from recordings.finetuning import trl_studies
    except ImportError as error:
        sys.exit(f"--by trl needs TRL and Transformers: pip install trl ({error})")
    return trl_studies.studies()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "END"), help="default: ten seeds")
    parser.add_argument(
        "--by", choices=tuple(FIRST_SEED), default="hand", help="who trains; default: hand-written loops"
    )
    parser.add_argument("--write", action="store_true", help=f"write the counts to {FILE}, which rule pages quote")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judged = labelled_studies(options.by)
    labelled = sorted({rule for s in judged for rule in (*s.fires, *s.quiet)})
    rules = [rule for rule in load_rules() if rule.rule_id() in labelled]
    alarms: dict[tuple[str, str], int] = defaultdict(int)
    first = FIRST_SEED[options.by]
    seeds = range(*(options.seeds or (first, first + 10)))
    for seed in seeds:
        for study in judged:
            for rule in fired(study, study.experiment(seed), rules):
                alarms[study.name, rule] += 1
        print(f"seed {seed}", flush=True)
    rows = [trained(rule, judged, alarms, len(seeds), SCRIPTS[options.by]) for rule in labelled]
    print(scores(rows), end="\n\n")
    print(counts(judged, labelled, alarms, len(seeds)))
    if options.write:
        write(SCRIPTS[options.by], rows)


def trained(
    rule: str, judged: Sequence[TunedStudy], alarms: Mapping[tuple[str, str], int], seeds: int, script: str
) -> Trained:
    """Return one rule's counts of alarms. alarms: number of seeds with an alarm, by study and rule."""
    on = [s.name for s in judged if rule in s.fires]
    off = [s.name for s in judged if rule in s.quiet]
    detected, false = (sum(alarms.get((name, rule), 0) for name in names) for names in (on, off))
    return Trained(rule, script, seeds * len(on), detected, seeds * len(off), false)


def scores(rows: Sequence[Trained]) -> str:
    lines = [["rule", "recall (of)", "false alarms (of)"]]
    for row in rows:
        recall, false = row.detected / (row.positives or 1), row.false_alarms / (row.negatives or 1)
        lines.append([f"`{row.rule}`", f"{recall:.2f} ({row.positives})", f"{false:.3f} ({row.negatives})"])
    return markdown(lines)


def counts(
    judged: Sequence[TunedStudy], rules: Sequence[str], alarms: Mapping[tuple[str, str], int], seeds: int
) -> str:
    rows = [[f"studies of {seeds} on which it fired", *(f"`{rule}`" for rule in rules)]]
    for study in judged:
        marks = {**dict.fromkeys(study.fires, " (must)"), **dict.fromkeys(study.accept, " (may)")}
        rows.append([study.name, *(f"{alarms.get((study.name, r), 0)}{marks.get(r, '')}" for r in rules)])
    return markdown(rows)


if __name__ == "__main__":
    main()

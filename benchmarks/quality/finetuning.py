"""Measures the rules of fine-tuning on small trainings with one cause switched on or off, each from several seeds.

    python benchmarks/quality/finetuning.py                 seeds 40 to 49
    python benchmarks/quality/finetuning.py --seeds 0 4     seeds 0 to 3, on which the thresholds were chosen
    python benchmarks/quality/finetuning.py --by trl        trainings by TRL's trainers (pip install trl), seeds 40 to 49
    python benchmarks/quality/finetuning.py --write         also write `trained.csv`, which rule pages quote

Prints recall and false alarms of each rule, and how often each rule fired on each study. A study that lacks the data that a rule
needs does not count as a study without the rule's cause. Ten seeds take about ten minutes on one core, and half an hour by TRL.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diagnosis import markdown
from recordings.finetuning.studies import TunedStudy, studies

from advisor.engine.judge import judge
from advisor.engine.measured import TRAINED_FILE_NAME, TrainedCounts, replace_script_rows
from advisor.engine.registry import load_rules
from advisor.tracking.runs import Experiment
from advisor.tracking.study.assemble import assemble

FIRST_SEED = {"hand": 40, "trl": 40}
"""First of the ten seeds to report on, by kind of training loop. No rule was developed on the reported seeds."""
Verdicts = Counter[tuple[str, str, str]]
"""Number of seeds by study, rule and status of the verdict."""
SCRIPTS = {"hand": "finetuning.py", "trl": "finetuning.py --by trl"}
"""Names of the measurements in the table of alarm rates."""


def statuses(study: TunedStudy, experiment: Experiment, rules: Sequence[Any]) -> dict[str, str]:
    """Return the status of each rule's verdict on the given study."""
    made = assemble(experiment, objective=study.objective, direction=study.direction)
    return {v.rule: v.status for v in judge(made, rules)}


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
    parser.add_argument("--by", choices=tuple(FIRST_SEED), default="hand", help="who trains; default: hand-written loops")
    parser.add_argument("--only", nargs="*", default=[""], help="only studies whose names start with these")
    parser.add_argument("--write", action="store_true", help=f"write the counts to {TRAINED_FILE_NAME}, which rule pages quote")
    options = parser.parse_args()
    if options.write and options.only != [""]:
        parser.error("--write needs all studies; omit --only")
    torch.set_num_threads(1)
    judged = [s for s in labelled_studies(options.by) if s.name.startswith(tuple(options.only))]
    labelled = sorted({rule for s in judged for rule in (*s.fires, *s.quiet)})
    rules = [rule for rule in load_rules() if rule.rule_id() in labelled]
    seen: Verdicts = Counter()
    first = FIRST_SEED[options.by]
    seeds = range(*(options.seeds or (first, first + 10)))
    for seed in seeds:
        for study in judged:
            for rule, status in statuses(study, study.experiment(seed), rules).items():
                seen[study.name, rule, status] += 1
        print(f"seed {seed}", flush=True)
    rows = [trained(rule, judged, seen, SCRIPTS[options.by]) for rule in labelled]
    print(scores(rows, lacking(judged, seen)), end="\n\n")
    print(counts(judged, labelled, seen, len(seeds)))
    if options.write:
        replace_script_rows(SCRIPTS[options.by], rows)


def trained(rule: str, judged: Sequence[TunedStudy], seen: Verdicts, script: str) -> TrainedCounts:
    """Return one rule's counts. Without the data that the rule needs, a study with the cause is missed, and one without does not
    count."""
    on = [s.name for s in judged if rule in s.fires]
    off = [s.name for s in judged if rule in s.quiet]
    positives = sum(n for (name, of, _), n in seen.items() if of == rule and name in on)
    quiet, detected, false = (
        sum(seen[name, rule, status] for name in names) for status, names in (("quiet", off), ("fired", on), ("fired", off))
    )
    return TrainedCounts(rule, script, positives, detected, quiet + false, false)


def lacking(judged: Sequence[TunedStudy], seen: Verdicts) -> Mapping[str, int]:
    """Return, by rule, the number of labelled studies that lack the data that the rule needs."""
    count: Counter[str] = Counter()
    for study in judged:
        for rule in (*study.fires, *study.quiet):
            count[rule] += seen[study.name, rule, "not-assessed"]
    return count


def scores(rows: Sequence[TrainedCounts], without_data: Mapping[str, int]) -> str:
    lines = [["rule", "recall (of)", "false alarms (of)", "could not judge"]]
    for row in rows:
        recall, false = row.detected / (row.positives or 1), row.false_alarms / (row.negatives or 1)
        rates = f"{recall:.2f} ({row.positives})", f"{false:.3f} ({row.negatives})"
        lines.append([f"`{row.rule}`", *rates, str(without_data[row.rule])])
    return markdown(lines)


def counts(judged: Sequence[TunedStudy], rules: Sequence[str], seen: Verdicts, seeds: int) -> str:
    rows = [[f"studies of {seeds} on which it fired", *(f"`{rule}`" for rule in rules)]]
    for study in judged:
        marks = {**dict.fromkeys(study.fires, " (must)"), **dict.fromkeys(study.accept, " (may)")}
        rows.append([study.name, *(f"{seen[study.name, r, 'fired']}{marks.get(r, '')}" for r in rules)])
    return markdown(rows)


if __name__ == "__main__":
    main()

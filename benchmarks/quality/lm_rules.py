"""Trains the studies of `recordings/lm_causes.py` and `schedule_causes.py` with other seeds, and prints recall and false alarms of
each rule.

    python benchmarks/quality/lm_rules.py                           seeds 101 to 110; about 12 minutes on one core
    python benchmarks/quality/lm_rules.py --seeds 1 --only float16  one seed of the studies whose names start with this
    python benchmarks/quality/lm_rules.py --first-seed 401 --write  also write `trained.csv` for the pages

A seed determines the sampled hyperparameters, the weights and the order of the data. The hook logs into memory. The rules were
developed on seeds below 10; the recordings of the project have seed 1.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnosis import markdown
from record import spec
from recordings.in_memory import record
from recordings.lm_causes import RULES, language_studies
from recordings.recorded_study import RecordedStudy
from recordings.schedule_causes import RULE as SCHEDULE_RULE, schedule_studies

from advisor.engine.judge import judge
from advisor.engine.measured import TRAINED_FILE_NAME, TrainedCounts, replace_script_rows
from advisor.engine.registry import load_rules
from advisor.model.finding import Verdict
from advisor.model.spec import Sampler
from advisor.planning.sampling.halton import draw_trials
from advisor.tracking.study.assemble import assemble

SCRIPT = Path(__file__).name


@dataclass(frozen=True)
class Answer:
    """A rule's verdict on a study, and the verdict that the study's cause requires."""

    study: str
    seed: int
    rule: str
    fires: bool
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        return (self.verdict.status == "fired") != self.fires


def answers(study: RecordedStudy, seed: int) -> Iterator[Answer]:
    """Train the study with this seed, and yield the verdicts of the rules for which the study has labels."""
    design = spec(study).model_copy(update={"sampler": Sampler(seed=seed)})
    experiment = record(study.name, study.training, list(draw_trials(design, study.trials)), 1000 * seed)
    data = assemble(experiment, spec=design)
    wanted = {label.rule: label.fires for label in study.labels if label.rule in (*RULES, SCHEDULE_RULE)}
    for verdict in judge(data, [r for r in load_rules() if r.rule_id() in wanted]):
        yield Answer(study.name, seed, verdict.rule, wanted[verdict.rule], verdict)


def counts(listed: list[Answer]) -> list[TrainedCounts]:
    """Return the counts of right and wrong verdicts for each rule. A study that lacks the data that a rule needs does not count as
    a study without the rule's cause."""
    by_rule: dict[str, list[Answer]] = defaultdict(list)
    for answer in listed:
        by_rule[answer.rule].append(answer)
    rows = []
    for rule, mine in by_rule.items():
        yes = [a.verdict.status == "fired" for a in mine if a.fires]
        no = [a.verdict.status == "fired" for a in mine if not a.fires and a.verdict.status != "not-assessed"]
        rows.append(TrainedCounts(rule, SCRIPT, len(yes), sum(yes), len(no), sum(no)))
    return rows


def table(listed: list[Answer]) -> str:
    """Return, for each rule, its recall, its false alarms on studies that it could judge, and the number of studies that it could
    not judge."""
    lacking = Counter(a.rule for a in listed if a.verdict.status == "not-assessed")
    rows = [["rule", "recall", "false alarms", "could not judge"]]
    rows += [[f"`{row.rule}`", *row.rate_texts(), str(lacking[row.rule])] for row in counts(listed)]
    return markdown(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds; default: 10")
    parser.add_argument("--first-seed", type=int, default=101, help="default: 101")
    parser.add_argument("--only", nargs="*", default=[""], help="only studies whose names start with these")
    parser.add_argument(
        "--write", action="store_true", help=f"write the counts of all studies to {TRAINED_FILE_NAME}, which rule pages quote"
    )
    options = parser.parse_args()
    if options.write and options.only != [""]:
        parser.error("--write needs all studies: leave out --only")
    warnings.simplefilter("ignore")  # the scheduler warns if a gradient scaler skips its first step
    logging.getLogger("advisor").setLevel(logging.ERROR)
    started, listed = time.perf_counter(), []
    for study in (*language_studies(), *schedule_studies()):
        if not study.name.startswith(tuple(options.only)):
            continue
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            found = list(answers(study, seed))
            listed += found
            for a in found:
                if a.wrong:
                    text = a.verdict.reason or "; ".join(str(f.message) for f in a.verdict.findings)
                    print(f"wrong: {a.study}, seed {seed}, {a.rule}: {a.verdict.status} {text}", flush=True)
    if options.write:
        replace_script_rows(SCRIPT, counts(listed))
    print(f"\n{table(listed)}\n\n{len(listed)} answers, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

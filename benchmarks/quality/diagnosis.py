"""Scores the rules on labelled studies: recall, false-alarm rate and share of cases not assessed, for each rule.

    python benchmarks/quality/diagnosis.py                                     every rule that has cases, high-confidence labels
    python benchmarks/quality/diagnosis.py --rules curve-overfitting --misses  one rule, with its message for each wrong answer
    python benchmarks/quality/diagnosis.py --part dev                          without the third of the cases that is held out
    python benchmarks/quality/diagnosis.py --peers                             the rules beside other tools on the same curves
    python benchmarks/quality/diagnosis.py --sources recordings                only our own recorded studies; takes a minute
    python benchmarks/quality/diagnosis.py --write                             also write `measured.csv` for the pages

There are three folders of labelled studies, and each is read if it exists: other people's real studies, which are not part of the
project (`ADVISOR_BENCHMARK` names the folder), our recordings with the hook (`recordings/data`, written by `record.py`), and those
in a plain MLflow store (`recordings/plain/data`, written by `record_plain.py`). The result is a Markdown table. Near-identical
cases form a group, and each group has weight one.

A positive case counts as detected if the rule fires on the labelled subject and side, or if another rule that the label accepts
fires. A negative case counts as a false alarm if the rule fires on the labelled subject. A case counts as not assessed if the rule
lacked data; a positive case is then also a miss. `--part dev` selects the two thirds of the cases for tuning thresholds, `--part
held-out` the other third.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from itertools import groupby

import peers
from cases import REAL, SOURCES, Case, load_cases
from rich.console import Console
from rich.progress import Progress

from advisor.engine.judge import judge
from advisor.engine.measured import MEASURED_FILE_NAME, STUDY_SIZE_GROUPS, MeasuredCounts, size_group
from advisor.engine.registry import load_rules, path_of_rule_table
from advisor.engine.rule import Rule
from advisor.model.finding import Verdict


@dataclass(frozen=True)
class Answer:
    """A rule's answer to one labelled case."""

    case: Case
    fired: bool
    """Whether the rule fired on the labelled subject and side, or a rule fired that the label accepts."""
    missing: bool
    """Whether the rule lacked the data to judge the case."""
    message: str
    broken: bool = False
    trials: int = 0
    """Number of trials in the study of the case."""
    peers: peers.Answers = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        return self.fired != self.case.fires


@dataclass
class Score:
    """Weighted counts of one rule's answers."""

    positives: float = 0.0
    detected: float = 0.0
    negatives: float = 0.0
    false_alarms: float = 0.0
    not_assessed: float = 0.0

    @property
    def recall(self) -> float:
        """Share of the positive cases that were detected; NaN if there are none."""
        return self.detected / self.positives if self.positives else math.nan

    @property
    def false_alarm_rate(self) -> float:
        """Share of the negative cases on which the rule fired; NaN if there are none."""
        return self.false_alarms / self.negatives if self.negatives else math.nan

    @property
    def not_assessed_rate(self) -> float:
        """Share of all cases for which the rule lacked data."""
        return self.not_assessed / (self.positives + self.negatives)


def answer(case: Case, verdicts: Sequence[Verdict]) -> Answer:
    by_rule = {v.rule: v for v in verdicts}
    own = by_rule[case.rule]
    subject, side = case.raw["subject"], case.raw["side"]
    fired = any(
        (subject is None or f.subject in (None, _subject_name(subject)))
        and (side is None or not case.fires or f.side in (None, side))
        for f in own.findings
    )
    if case.fires and not fired:
        fired = any(by_rule[r].status == "fired" for r in case.raw["accept"] if r in by_rule)
    message = own.reason or "; ".join(str(f.message) for f in own.findings) or own.status
    return Answer(case, fired, own.status in ("not-assessed", "broken"), message, own.status == "broken")


def _subject_name(subject: str | list[str]) -> str:
    """Return a labelled subject in the form that findings use; a pair of hyperparameters is in alphabetical order."""
    return subject if isinstance(subject, str) else " × ".join(sorted(subject))


def ask(view: Sequence[Case], *, with_peers: bool = False) -> list[Answer]:
    """Answer the cases that share one study, which is read and judged only once."""
    study = view[0].study()
    wanted = {name for case in view for name in (case.rule, *case.raw["accept"])}
    verdicts = judge(study, [r for r in _rules() if r.rule_id() in wanted])
    answers = [replace(answer(case, verdicts), trials=len(study.trials)) for case in view]
    if not with_peers:
        return answers
    questions = {case.rule for case in view} & set(peers.QUESTIONS)
    by_rule = peers.ask(study, questions) if questions else {}
    return [replace(a, peers=by_rule.get(a.case.rule, {})) for a in answers]


@lru_cache(maxsize=1)
def _rules() -> Sequence[Rule]:
    return load_rules()


def views(cases: Iterable[Case]) -> list[list[Case]]:
    """Group the cases whose study shows the same data. Groups that read the same tables are next to each other."""
    ordered = sorted(cases, key=lambda c: (c.source.name, c.raw["dataset"], c.raw["studies"], c.view))
    return [list(same) for _, same in groupby(ordered, key=lambda c: c.view)]


def ask_all(cases: Iterable[Case], *, processes: int, with_peers: bool = False, on_view: Callable[[int], None]) -> list[Answer]:
    """Answer all cases, in this process if `processes` is 1; after each step, call `on_view` with the number of cases that it
    answered."""
    answers: list[Answer] = []
    groups, ask_group = views(cases), partial(ask, with_peers=with_peers)
    with ProcessPoolExecutor(processes) if processes > 1 else nullcontext() as pool:
        chunk = max(1, min(8, len(groups) // (4 * processes)))
        for group in pool.map(ask_group, groups, chunksize=chunk) if pool else map(ask_group, groups):
            on_view(len(group))
            answers += group
    return answers


def scores(answers: Iterable[Answer]) -> dict[str, Score]:
    """Return the score of each rule; each group of cases has a weight of one."""
    return {rule: score for (rule, _), score in _scores([(a.case, a.fired, a.missing, "") for a in answers]).items()}


def measured_scores(answers: Iterable[Answer]) -> list[MeasuredCounts]:
    """Return the scores of each rule by the number of trials in the study, in the form that the rules' pages quote."""
    by_size = _scores([(a.case, a.fired, a.missing, size_group(a.trials)) for a in answers])
    order = [words for _, words in STUDY_SIZE_GROUPS]
    return [
        MeasuredCounts(rule, trials, s.positives, s.detected, s.negatives, s.false_alarms, s.not_assessed)
        for (rule, trials), s in sorted(by_size.items(), key=lambda item: (item[0][0], order.index(item[0][1])))
    ]


def write(rows: Iterable[MeasuredCounts]) -> None:
    """Write the table of scores that the rules' pages and the reports quote."""
    with path_of_rule_table(MEASURED_FILE_NAME).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([f.name for f in fields(MeasuredCounts)])
        lines.writerows(row.csv_row() for row in rows)


def _scores(answers: Sequence[tuple[Case, bool, bool, str]]) -> dict[tuple[str, str], Score]:
    """Return scores by rule and part of the cases, from (case, fired, missing, part); a group has a weight of one over all
    parts."""
    size: dict[tuple[str, bool, str], int] = defaultdict(int)
    for case, *_ in answers:
        size[case.rule, case.fires, case.group] += 1
    result: dict[tuple[str, str], Score] = defaultdict(Score)
    for case, fired, missing, part in answers:
        weight = 1 / size[case.rule, case.fires, case.group]
        mine = result[case.rule, part]
        mine.not_assessed += weight * missing
        if case.fires:
            mine.positives += weight
            mine.detected += weight * fired
        else:
            mine.negatives += weight
            mine.false_alarms += weight * fired
    return dict(result)


def macro_average(rule_scores: Iterable[Score]) -> tuple[float, float]:
    """Return the mean recall and the mean false-alarm rate over rules."""
    rule_scores = list(rule_scores)
    return _mean(s.recall for s in rule_scores), _mean(s.false_alarm_rate for s in rule_scores)


def _mean(values: Iterable[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are also aligned in plain text; the first row is the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    rule = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths))
    return "\n".join(line.rstrip() + " |" if line is not rule else line + "|" for line in [lines[0], rule, *lines[1:]])


def table(answers: Sequence[Answer]) -> str:
    names = [s.name for s in SOURCES if any(a.case.source.name == s.name for a in answers)]
    by_source = {name: scores([a for a in answers if a.case.source.name == name]) for name in names}
    rows = [["rule"]]
    for name in names:
        rows[0] += [f"{name}: recall (of)", "false alarms (of)", "not assessed"]
    for rule in sorted({rule for found in by_source.values() for rule in found}):
        rows.append([f"`{rule}`"])
        for found in by_source.values():
            rows[-1] += _table_cells(found.get(rule))
    rows.append(["macro average"])
    for found in by_source.values():
        recall, alarms = macro_average(found.values())
        rows[-1] += [f"{recall:.2f}", f"{alarms:.3f}", ""]
    return markdown(rows)


def _table_cells(score: Score | None) -> list[str]:
    if score is None:
        return ["", "", ""]
    return [
        _share(score.recall, score.positives, 2),
        _share(score.false_alarm_rate, score.negatives, 3),
        f"{score.not_assessed_rate:.2f}" if score.not_assessed else "",
    ]


def _share(share: float, total: float, digits: int) -> str:
    return "" if math.isnan(share) else f"{share:.{digits}f} ({total:.0f})"


def peer_table(answers: Sequence[Answer]) -> str:
    """Return a table of our rules' recall and false alarms beside those of each other tool, on the same cases.

    These tools judge one run at a time. There are several ways to combine alarms (`peers.WAYS`); the table shows the way that
    scores best on the same cases, which favours the other tool.
    """
    rows = [["question", "cases", "rules: recall / false alarms", *(f"{name}" for name in peers.NAMES)]]
    compared = [a for a in answers if a.peers]
    means: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in peers.NAMES}
    for rule in sorted({a.case.rule for a in compared}):
        mine = [a for a in compared if a.case.rule == rule]
        ours = scores(mine)[rule]
        rows.append([f"`{rule}`", str(len(mine)), f"{ours.recall:.2f} / {ours.false_alarm_rate:.3f}"])
        for name in peers.NAMES:
            best = _best_score([a for a in mine if name in a.peers], name)
            rows[-1].append("" if best is None else f"{best.recall:.2f} / {best.false_alarm_rate:.3f}")
            if best is not None:
                means[name].append((best.recall, best.false_alarm_rate, ours.recall, ours.false_alarm_rate))
    rows.append(["mean over the questions it answers", "", ""])
    rows.append(["the rules' mean over these questions", "", ""])
    for name in peers.NAMES:
        recall, alarms, our_recall, our_alarms = (_mean(m[i] for m in means[name]) for i in range(4))
        rows[-2].append(f"{recall:.2f} / {alarms:.3f}" if means[name] else "")
        rows[-1].append(f"{our_recall:.2f} / {our_alarms:.3f}" if means[name] else "")
    return markdown(rows)


def _best_score(answers: Sequence[Answer], peer: str) -> Score | None:
    """Return the best score of the tool `peer` over all ways to combine its alarms."""
    ways = sorted({way for a in answers for way in a.peers[peer]})
    options = []
    for way in ways:
        (score,) = _scores([(a.case, a.peers[peer][way], False, "") for a in answers]).values()
        options.append(score)
    return max(options, key=lambda s: (_number(s.recall) - _number(s.false_alarm_rate), -s.false_alarms), default=None)


def _number(share: float) -> float:
    return 0.0 if math.isnan(share) else share


def misses(answers: Iterable[Answer]) -> str:
    """List the wrong answers, one per line."""
    return "\n".join(
        f"{'missed' if a.case.fires else 'FALSE '} {a.case.id} [{a.case.raw['kind']}] {a.case.raw['subject'] or ''}: {a.message}"
        for a in sorted(answers, key=lambda a: (a.case.rule, a.case.id))
        if a.wrong
    )


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    known = {r.rule_id() for r in _rules()}
    if unknown := sorted(set(options.rules or ()) - known):
        raise SystemExit(f"no such rule: {', '.join(unknown)}; `advisor rules` lists them")
    return [
        c
        for c in load_cases([s for s in SOURCES if s.name.startswith(tuple(options.sources))])
        if c.rule in known
        and c.confidence in options.confidence
        and (not options.rules or c.rule in options.rules)
        and (not options.peers or c.rule in peers.QUESTIONS)
        and (options.part == "all" or c.held_out == (options.part == "held-out"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*", metavar="RULE", help="only cases of these rules")
    parser.add_argument("--sources", nargs="*", default=["real", "recordings"], help="default: real recordings")
    parser.add_argument("--part", choices=["all", "dev", "held-out"], default="all", help="default: all")
    parser.add_argument("--confidence", nargs="*", default=["high"], help="labels to use, high or medium; default: high")
    parser.add_argument("--misses", action="store_true", help="list every wrong answer with the rule's message")
    parser.add_argument(
        "--peers", action="store_true", help=f"compare with {', '.join(peers.NAMES)} on the questions that they answer"
    )
    parser.add_argument(
        "--write", action="store_true", help="write measured.csv beside the rules, which the rules' pages quote"
    )
    parser.add_argument("--processes", type=int, default=2, help="default: 2")
    options = parser.parse_args()
    for source in SOURCES:
        if not source.exists and source.name.startswith(tuple(options.sources)):
            hint = "; set ADVISOR_BENCHMARK to their folder" if source == REAL else ""
            print(f"no {source.name} at {source.folder}{hint}", file=sys.stderr)
    if options.peers:
        for name in peers.missing_peers():
            print(f"{name} is not installed: pip install {name}", file=sys.stderr)
    if options.write and (options.rules or options.peers or options.part != "all" or not all(s.exists for s in SOURCES)):
        raise SystemExit("--write needs all rules, all parts and all sources")
    cases = chosen_cases(options)
    if not cases:
        raise SystemExit("no cases")
    started = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("labelled cases", total=len(cases))
        answers = ask_all(
            cases, processes=options.processes, with_peers=options.peers, on_view=lambda n: progress.advance(task, n)
        )
    print(peer_table(answers) if options.peers else table(answers))
    print(f"\n{len(cases)} cases ({options.part}), {time.perf_counter() - started:.0f} s")
    if options.write:
        write(measured_scores(answers))
    if options.misses:
        print(misses(answers))


if __name__ == "__main__":
    main()

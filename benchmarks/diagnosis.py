"""Scores the rules on labelled real studies: recall, false alarms, not assessed; per rule, each weight group as one.

    python benchmarks/diagnosis.py                       every rule that has cases, high-confidence labels
    python benchmarks/diagnosis.py --rules curve-overfitting --part dev --misses

A positive case counts as detected where the rule (with the labelled subject and side, if the label has them) or one of the rules
that the label accepts instead fires. A negative case counts as a false alarm where the rule fires (on the labelled subject).
`--part` splits the cases into the two thirds that thresholds may be looked at with ("dev") and a held-out third.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import DATA, Case, load_cases

from advisor.engine import judge
from advisor.finding import Verdict
from advisor.registry import load_rules
from advisor.rule import Rule


@dataclass
class Score:
    """Weighted counts of one rule."""

    positives: float = 0.0
    detected: float = 0.0
    negatives: float = 0.0
    false_alarms: float = 0.0
    not_assessed: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.detected / self.positives if self.positives else float("nan")

    @property
    def false_alarm_rate(self) -> float:
        return self.false_alarms / self.negatives if self.negatives else float("nan")


def answers(case: Case, verdicts: Sequence[Verdict]) -> tuple[bool, bool]:
    """(fired as the label means it, not assessed)."""
    by_rule = {v.rule: v for v in verdicts}
    own = by_rule.get(case.rule)
    subject, side = case.raw["subject"], case.raw["side"]
    fired = own is not None and any(
        (subject is None or f.subject in (None, subject)) and (side is None or not case.fires or f.side in (None, side))
        for f in own.findings
    )
    if case.fires and not fired:
        fired = any(by_rule[r].status == "fired" for r in case.raw["accept"] if r in by_rule)
    return fired, own is not None and own.status in ("not-assessed", "broken")


def score(cases: Iterable[Case], rules: Sequence[Rule]) -> dict[str, Score]:
    """A score for each rule that a case asks about."""
    cases = list(cases)
    size: dict[tuple[str, bool, str], int] = defaultdict(int)
    for case in cases:
        size[case.rule, case.fires, case.group] += 1
    scores: dict[str, Score] = defaultdict(Score)
    for case in cases:
        weight = 1 / size[case.rule, case.fires, case.group]
        wanted = {case.rule, *case.raw["accept"]}
        verdicts = judge(case.study(), [r for r in rules if r.rule_id() in wanted])
        fired, missing = answers(case, verdicts)
        mine = scores[case.rule]
        mine.not_assessed += weight * missing
        if case.fires:
            mine.positives += weight
            mine.detected += weight * fired
        else:
            mine.negatives += weight
            mine.false_alarms += weight * fired
        if fired != case.fires:
            own = next(v for v in verdicts if v.rule == case.rule)
            said = own.reason or "; ".join(f.message for f in own.findings) or own.status
            mine.wrong.append(
                f"{'missed' if case.fires else 'FALSE '} {case.id} [{case.raw['kind']}] {case.raw['subject'] or ''}: {said}"
            )
    return scores


def table(scores: dict[str, Score]) -> str:
    """The scores as text, a rule a line, with the macro average."""
    lines = [f"{'rule':28s} {'recall':>8s} {'of':>6s} {'false':>8s} {'of':>6s} {'not assessed':>13s}"]
    for rule in sorted(scores):
        s = scores[rule]
        lines.append(
            f"{rule:28s} {s.recall:8.2f} {s.positives:6.1f} {s.false_alarm_rate:8.3f} {s.negatives:6.1f} {s.not_assessed:13.1f}"
        )
    recalls = [s.recall for s in scores.values() if s.positives]
    alarms = [s.false_alarm_rate for s in scores.values() if s.negatives]
    if recalls and alarms:
        lines.append(
            f"{'macro average':28s} {sum(recalls) / len(recalls):8.2f} {'':6s} {sum(alarms) / len(alarms):8.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*", help="only cases of these rules")
    parser.add_argument("--part", choices=["all", "dev", "held-out"], default="all")
    parser.add_argument("--confidence", nargs="*", default=["high"], help="labels to use: high, medium")
    parser.add_argument("--misses", action="store_true", help="list every wrong answer")
    options = parser.parse_args()
    if not (DATA / "cases.jsonl").is_file():
        raise SystemExit(f"no labelled cases at {DATA}; set ADVISOR_BENCHMARK to their folder")
    rules = load_rules()
    known = {r.rule_id() for r in rules}
    cases = [
        c
        for c in load_cases()
        if c.rule in known
        and c.confidence in options.confidence
        and (not options.rules or c.rule in options.rules)
        and (options.part == "all" or c.held_out == (options.part == "held-out"))
    ]
    started = time.perf_counter()
    scores = score(cases, rules)
    print(table(scores))
    print(f"{len(cases)} cases ({options.part}), {time.perf_counter() - started:.0f} s")
    if options.misses:
        for rule in sorted(scores):
            print("\n".join(scores[rule].wrong))


if __name__ == "__main__":
    main()

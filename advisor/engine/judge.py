"""Holds a study against the rules. Deterministic: same study, same rules, same verdicts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from advisor.contract.redact import redact
from advisor.engine.explain import explain
from advisor.engine.rule import Rule
from advisor.model.finding import MissingData, Verdict
from advisor.model.study import Study
from advisor.system.workers.copies import divided

_MUCH = 200
"""Trials from which on a copy of the process, which takes hundredths of a second, pays."""


def judge(
    study: Study, rules: Iterable[Rule], *, processes: int = 1, on_rule: Callable[[str], None] | None = None
) -> tuple[Verdict, ...]:
    """One verdict per rule, in the order of the rules; `on_rule` is told each rule's id before it runs, or once a copy ran it.

    processes: how many may share the work where it is much. A rule that raises anything but MissingData is reported as broken and
    stops nobody else. A finding that follows from another one says so, see `advisor.engine.explain`.
    """
    rules = tuple(rules)
    tell = on_rule or _silent
    verdicts = (
        _alone(study, rules, tell)
        if processes == 1 or len(study.trials) < _MUCH
        else _shared(study, rules, processes, tell)
    )
    return explain(verdicts)


def _alone(study: Study, rules: Iterable[Rule], tell: Callable[[str], None]) -> list[Verdict]:
    verdicts = []
    for rule in rules:
        tell(rule.rule_id())
        verdicts.append(_judge_one(study, rule))
    return verdicts


def _shared(study: Study, rules: Sequence[Rule], processes: int, tell: Callable[[str], None]) -> list[Verdict]:
    """As `_alone`, the rules of one folder by one process, since they go by the same readings."""
    folders: dict[Path, list[Rule]] = {}
    for rule in rules:
        folders.setdefault(_folder(rule), []).append(rule)
    parts = sorted(folders.values(), key=len, reverse=True)
    this = os.getpid()
    told = set()

    def work(part: int) -> list[Verdict]:
        if os.getpid() != this:
            return _alone(study, parts[part], _silent)
        told.add(part)
        return _alone(study, parts[part], tell)

    by_rule = {}
    for part, verdicts in enumerate(divided(work, len(parts), processes=processes)):
        for verdict in verdicts:
            by_rule[verdict.rule] = verdict
            if part not in told:
                tell(verdict.rule)
    return [by_rule[rule.rule_id()] for rule in rules]


def _judge_one(study: Study, rule: Rule) -> Verdict:
    if study.probe is not None and study.probe not in rule.probes:
        return Verdict(
            rule=rule.rule_id(),
            status="not-assessed",
            reason=f"the runs are a {study.probe} probe, which cannot show it",
        )
    try:
        findings = tuple(rule.check(study))
    except MissingData as missing:
        return Verdict(rule=rule.rule_id(), status="not-assessed", reason=str(missing))
    except Exception as error:
        return Verdict(rule=rule.rule_id(), status="broken", reason=redact(f"{type(error).__name__}: {error}"))
    return Verdict(rule=rule.rule_id(), status="fired" if findings else "quiet", findings=findings)


def _folder(rule: Rule) -> Path:
    """Where the rule's file is; a rule that has none is of the working directory."""
    return Path(getattr(sys.modules.get(type(rule).__module__), "__file__", None) or "").parent


def _silent(rule: str) -> None:
    pass

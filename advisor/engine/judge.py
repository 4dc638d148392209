"""Applies the rules to a study. The result is deterministic: the same study and rules yield the same verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from advisor.contract.redact import redact
from advisor.engine.calibration import calibrated
from advisor.engine.explain import explain
from advisor.engine.rule import Rule
from advisor.model.finding import MissingData, Verdict
from advisor.model.study import Study


def judge(
    study: Study,
    rules: Iterable[Rule],
    *,
    on_rule: Callable[[str], None] | None = None,
    calibrate: bool = True,
) -> tuple[Verdict, ...]:
    """Return one verdict per rule, in the order of the rules. `on_rule` is called with each rule's id before that rule runs.

    calibrate: correct the confidences that the rules state to the probabilities that their advice is right.

    If a rule raises anything except MissingData, it is reported as broken, and the other rules still run. Findings that follow from
    other findings are marked (see `advisor.engine.explain`).
    """
    rules = tuple(rules)
    verdicts = []
    for rule in rules:
        if on_rule is not None:
            on_rule(rule.rule_id())
        verdict = _verdict(study, rule)
        if calibrate and verdict.findings:
            verdict = verdict.model_copy(update={"findings": tuple(map(calibrated, verdict.findings))})
        verdicts.append(verdict)
    return explain(verdicts, rules)


def _verdict(study: Study, rule: Rule) -> Verdict:
    if study.probe is not None and study.probe not in rule.probes:
        reason = f"the runs are a {study.probe} probe, which cannot show it"
        return Verdict(rule=rule.rule_id(), status="not-assessed", reason=reason)
    try:
        findings = tuple(rule.check(study))
    except MissingData as missing:
        return Verdict(rule=rule.rule_id(), status="not-assessed", reason=str(missing), needs=missing.needs)
    except Exception as error:
        return Verdict(rule=rule.rule_id(), status="broken", reason=redact(f"{type(error).__name__}: {error}"))
    return Verdict(rule=rule.rule_id(), status="fired" if findings else "quiet", findings=findings)

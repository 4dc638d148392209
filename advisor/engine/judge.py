"""Applies the rules to a study. Judgement is deterministic: the same study and rules yield the same verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from advisor.computed.pipeline.ties import reason_settings_tie
from advisor.contract.redact import redact
from advisor.engine.calibration import calibrate_finding
from advisor.engine.explain import explain
from advisor.engine.limit import TooLongError, run_with_limits
from advisor.engine.pages import chapter_of_rule
from advisor.engine.registry import rule_chapters
from advisor.engine.rule import Rule
from advisor.model.finding import Finding, MissingData, Verdict
from advisor.model.reading import WorkloadKind
from advisor.model.study import Study
from advisor.model.words import number

NON_NETWORK_CHAPTERS = ("space", "decision")
"""Folders of built-in rules that apply to all models, not only to neural networks."""
_WORKLOAD_MISMATCH_REASONS: Mapping[WorkloadKind, str] = {
    "reinforcement-learning": "the runs train a policy, to which this rule does not apply",
    "gan": "the runs train adversarial networks, to which this rule does not apply",
    "diffusion": "the runs train a diffusion model, to which this rule does not apply",
    "self-supervised": "the runs learn without labels, to which this rule does not apply",
    "no-network": "the runs train no network",
}


MAX_FINDINGS = 10_000
"""Maximum number of findings of one rule; a faulty rule may yield findings without end."""


def judge(
    study: Study, rules: Iterable[Rule], *, on_rule: Callable[[str], None] | None = None, calibrate: bool = True
) -> tuple[Verdict, ...]:
    """Return one verdict per rule, in the order of the rules. `on_rule` is called with the id of each rule before it runs.

    calibrate: correct each confidence by the rule's calibration table and by the finding's `doubt`. A rule that does not end or
    raises any exception except MissingData is broken; the remaining rules still run. Findings that other findings cause get
    `explained_by`.
    """
    rules = tuple(rules)
    verdicts = []
    for rule in rules:
        if on_rule is not None:
            on_rule(rule.rule_id())
        verdict = _judge_rule(study, rule)
        if calibrate and verdict.findings:
            findings = tuple(calibrate_finding(f, measured=f.subject not in rule.unmeasured) for f in verdict.findings)
            verdict = verdict.model_copy(update={"findings": findings})
        verdicts.append(verdict)
    return explain(verdicts, rules)


def _judge_rule(study: Study, rule: Rule) -> Verdict:
    if (reason := _reason_rule_does_not_apply(study, rule)) is not None:
        return Verdict(rule=rule.rule_id(), status="not-assessed", reason=reason)
    try:
        findings = run_with_limits(rule.rule_id(), lambda: _findings_of_rule(rule, study))
        if not findings and rule.needs_order and (tied := reason_settings_tie(study)) is not None:
            return Verdict(rule=rule.rule_id(), status="not-assessed", reason=f"the results tie: {tied}")
    except MissingData as missing:
        return Verdict(rule=rule.rule_id(), status="not-assessed", reason=str(missing), needs=missing.needs)
    except TooLongError as error:
        return Verdict(rule=rule.rule_id(), status="broken", reason=f"stopped: it {error}")
    except (Exception, SystemExit) as error:
        return Verdict(rule=rule.rule_id(), status="broken", reason=redact(f"{type(error).__name__}: {error}"))
    return Verdict(rule=rule.rule_id(), status="fired" if findings else "quiet", findings=findings)


def _findings_of_rule(rule: Rule, study: Study) -> tuple[Finding, ...]:
    findings = tuple(islice(rule.check(study), MAX_FINDINGS + 1))
    if len(findings) > MAX_FINDINGS:
        raise TooLongError(f"yielded more than {MAX_FINDINGS:,} findings")
    return findings


def _reason_rule_does_not_apply(study: Study, rule: Rule) -> str | None:
    chapter = chapter_of_rule(rule)
    is_about_networks = chapter not in NON_NETWORK_CHAPTERS and chapter in rule_chapters()
    if study.probe is not None and study.probe not in rule.probes:
        return f"the runs are a {study.probe} probe, which cannot show this problem"
    if study.kind in rule.not_for or (study.kind == "no-network" and is_about_networks):
        reason = _WORKLOAD_MISMATCH_REASONS.get(study.kind, f"the workload is {study.kind}")
        return f"{reason}; pass --kind if that is wrong"
    if study.target is not None and (rule.compares_results or rule.needs_order):
        return (
            f"training stopped when {study.spec.objective.metric} reached about {number(study.target)}, so results are equal by "
            "design; to compare settings, train all of them equally long"
        )
    return None

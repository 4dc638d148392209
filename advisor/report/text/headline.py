"""The headline of a report: the first thing to do, and the reason for it."""

from __future__ import annotations

import math
import re
from typing import get_args

from advisor.model import parameter_kinds
from advisor.model.change import RunPlan, SetRange
from advisor.model.finding import Finding
from advisor.model.message import Message, Name, end_with_full_stop, first_sentence, join_items, say
from advisor.model.space import RangeSide, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.words import capitalise, clean, count, spelled
from advisor.planning.closing import STOP_SEARCHING_GOAL
from advisor.planning.designs.explore import MORE_SETTINGS_GOAL
from advisor.planning.goals import goal_after_manual_fix
from advisor.planning.new_scores import NOT_COMPARABLE_NOTE, needs_new_scores
from advisor.planning.stages import MIN_FEASIBLE_TRIALS, MIN_SURE_CONFIDENCE, adopts_now, says_to_stop_tuning
from advisor.planning.states import settings_needed
from advisor.report.model import ReportData
from advisor.report.text import study_diff
from advisor.report.text.study_diff import RANGE_END_TOLERANCE, completed_spec, diff_of_changes, diff_studies

STOP_HEADLINE = "Stop searching: measure the best setting on {data}, once, and deploy it."
MIN_MENTIONED_RANGE_MOVE = 0.2
"""The headline mentions a hyperparameter if an end of its range moves by at least this share of the old range."""
_NEW_SEARCH_GOAL_PREFIXES = ("Add ", "Tune ")
"""First words of the goal of a study that adds a hyperparameter to the search. No finding asks for such a study."""


def headline(report: ReportData) -> Message:
    return join_items((part for part in headline_goal_and_reason(report) if str(part)), " ")


def headline_goal_and_reason(report: ReportData) -> tuple[Message, Message]:
    """Return (first thing to do, reason). The reason may be empty."""
    counts, nothing = report.counts, Message(())
    if counts.total == 0:
        return say("This study has no trials yet."), nothing
    if counts.total == counts.running + counts.no_data:
        none = f"None of the {counts.total:,} trials logged" if counts.total > 1 else "The only trial did not log"
        return (say("No trial has ended yet.") if counts.running else say("{none} the objective.", none=none)), nothing
    if report.stop is not None:
        return say("{stop}", stop=STOP_HEADLINE.format(data=report.spec.objective.final_data)), report.stop
    urgent_findings = _urgent_findings(report)
    if counts.feasible == 0 and not report.next_studies:
        action = say("{action}", action=end_with_full_stop(urgent_findings[0].action)) if urgent_findings else nothing
        return say("No trial produced a usable result."), action
    if report.next_studies:
        return _goal_and_reason_of_study(report, report.next_studies[0].spec)
    if urgent_findings:
        return end_with_full_stop(urgent_findings[0].action), end_with_full_stop(urgent_findings[0].message)
    checks_text = say("{text}", text=_checks_summary(report))
    if not report.heads:
        return checks_text, nothing
    action = say("{action}", action=end_with_full_stop(report.heads[0].action))
    if len(report.ranked) < MIN_FEASIBLE_TRIALS:
        return checks_text, say("Consider: {action}", action=action)
    return action, end_with_full_stop(report.heads[0].message)


def _goal_and_reason_of_study(report: ReportData, spec: StudySpec) -> tuple[Message, Message]:
    finding_behind, before = _finding_behind_study(report, spec), finding_before_study(report)
    if before is not None:
        leads_to_study = before is finding_behind and not adopts_now(before)
        reason_function = _reason_for_study if leads_to_study else _reason_for_manual_action
        return end_with_full_stop(before.action), reason_function(report, spec, before)
    goal = end_with_full_stop(say("{goal}{others}", goal=_goal_message(spec), others=_changed_ranges_clause(report, spec)))
    why = _reason_for_study(report, spec, finding_behind)
    if finding_behind is None:
        return goal, why
    if needs_new_scores(spec, [finding_behind]):
        why = join_items((why, say(NOT_COMPARABLE_NOTE)), " ")
    # If the best trials lie at the end of a range, moving this range is worthwhile even if the evidence is too weak for a warning.
    moves_range = finding_behind.goal == "boundary" and finding_behind.confidence >= MIN_SURE_CONFIDENCE
    is_optional = not moves_range and all(f.severity == "note" for f in report.heads)
    return goal, say("Optional: nothing is urgent. {why}", why=why) if is_optional else why


def leading_finding(report: ReportData) -> Finding | None:
    if report.stop is not None:
        return None
    if not report.next_studies:
        return next(iter([*_urgent_findings(report), *report.heads]), None)
    return finding_before_study(report) or _finding_behind_study(report, report.next_studies[0].spec)


def names_unrequested_study(report: ReportData) -> bool:
    """Return whether the headline names a study that no finding asks for."""
    if report.stop is not None or not report.next_studies or finding_before_study(report) is not None:
        return False
    spec = report.next_studies[0].spec
    cause = _finding_behind_study(report, spec)
    return cause is None or (spec.goal.startswith(_NEW_SEARCH_GOAL_PREFIXES) and not _goal_matches_finding(report, spec, cause))


def finding_before_study(report: ReportData) -> Finding | None:
    """Return the finding on which a person should act before running the next study, or None if the study comes first."""
    if not report.next_studies:
        return None
    spec, urgent = report.next_studies[0].spec, _urgent_findings(report)
    finding_behind = _finding_behind_study(report, spec)
    if finding_behind is not None and _needs_manual_action(spec, finding_behind):
        return finding_behind
    # A sufficiently certain problem comes first if the next study follows only a note and does not solve the problem.
    follows_note = finding_behind is None or finding_behind.severity == "note"
    earlier_findings = [f for f in urgent if _must_precede_study(report, spec, f)]
    candidate = min(earlier_findings, key=lambda f: (f.severity != "critical", not needs_new_scores(spec, [f])), default=None)
    if follows_note and candidate is not None:
        return candidate if not _study_follows_finding(report, spec, candidate) else None
    return finding_behind if finding_behind is not None and adopts_now(finding_behind) else None


def _must_precede_study(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether a person should act on the finding before running the next study. If only one setting was tried and its
    results are valid, a short sweep of the learning rate comes first, because a sweep shows more than any other action."""
    if finding.severity == "critical" or needs_new_scores(spec, [finding]):
        return True
    of_one_setting = not report.spec.searched and bool(spec.searched)
    return finding.confidence >= MIN_SURE_CONFIDENCE and not of_one_setting


def _urgent_findings(report: ReportData) -> list[Finding]:
    """Return the findings that need action now and that no other finding explains, the most important first."""
    return [f for f in report.heads if f.severity != "note" and report.deferral_reason(f) is None]


def _goal_message(spec: StudySpec) -> Message:
    """Return the study's goal with hyperparameters marked as names. If the goal states several ranges, their ends are omitted."""
    head, _, numbers = spec.goal.partition(": ")
    ranges = [part.partition(" ")[0] in map(clean, spec.parameters) for part in numbers.split("; ")]
    goal = head if len(ranges) > 1 and all(ranges) else spec.goal
    return Message(tuple(Name(word) if i % 2 else word for i, word in enumerate(_split_at_parameter_names(goal, spec)) if word))


def parameters_in_goal(spec: StudySpec) -> frozenset[str]:
    return frozenset(_split_at_parameter_names(spec.goal, spec)[1::2])


def _split_at_parameter_names(text: str, spec: StudySpec) -> list[str]:
    """Split a text at the names of the study's hyperparameters, which are at the odd indices of the result."""
    sorted_names = sorted({clean(name) for name in spec.parameters} - {""}, key=len, reverse=True)
    if not sorted_names:
        return [text]
    # Match whole names, which may contain spaces. A space or a punctuation mark must follow a name.
    return re.split(rf"(?<!\S)({'|'.join(map(re.escape, sorted_names))})(?=[\s,:;]|$)", text)


def _changed_ranges_clause(report: ReportData, spec: StudySpec) -> Message:
    """Return a clause about other ranges that the study changes. The clause is empty unless the goal states exactly one range."""
    _, _, numbers = spec.goal.partition(": ")
    if not numbers.startswith(tuple("0123456789-")) or "; " in numbers:
        return Message(())
    old = completed_spec(report).parameters
    goal_names = parameters_in_goal(spec)
    other_names = [n for n, p in spec.parameters.items() if clean(n) not in goal_names and _has_new_range(old.get(n), p)]
    if len(other_names) == 1:
        return say(", with a new range of {name}", name=Name(other_names[0]))
    return say(", with new ranges of {n} more", n=len(other_names)) if other_names else Message(())


def _has_new_range(before: Parameter | None, after: Parameter) -> bool:
    if before is None or not (before.numeric and after.numeric and after.searched):
        return False
    assert after.low is not None
    assert after.high is not None
    low, high = before.to_positions([after.low, after.high])
    return bool(max(abs(low), abs(high - 1)) > MIN_MENTIONED_RANGE_MOVE)


def _finding_behind_study(report: ReportData, spec: StudySpec) -> Finding | None:
    """Return the finding that led to the study, preferably a finding about the subject of the study's goal."""
    candidates = [f for f in report.findings if report.deferral_reason(f) is None and _study_follows_finding(report, spec, f)]
    return min(candidates, key=lambda f: not _goal_matches_finding(report, spec, f), default=None)


def _reason_for_manual_action(report: ReportData, spec: StudySpec, before: Finding) -> Message:
    goal = spec.goal.partition(":")[0]
    reason_text = "{why} Then run the next study, “{goal}”." + f" {NOT_COMPARABLE_NOTE}" * needs_new_scores(spec, [before])
    stop_reason = _reason_for_goal(report, spec) if goal.startswith(STOP_SEARCHING_GOAL) else ""
    message = say(reason_text, why=first_sentence(before.message), goal=goal)
    return join_items((message, *([end_with_full_stop(stop_reason)] if stop_reason else [])), " ")


def _reason_for_study(report: ReportData, spec: StudySpec, finding_behind: Finding | None) -> Message:
    """Return the reason for the study, from the findings that led to the study or from the change that its goal names."""
    own, adds = _reason_for_goal(report, spec), spec.goal.startswith(_NEW_SEARCH_GOAL_PREFIXES)
    if finding_behind is None:
        stop_finding = next((f for f in report.heads if says_to_stop_tuning([f])), None)
        if stop_finding is not None:
            return first_sentence(stop_finding.message)
        searches_subset = any(p.searched_in is not None for p in spec.parameters.values())
        return end_with_full_stop(own) if own and not searches_subset else say("{text}", text=_study_purpose(report, spec))
    if own and adds and not _goal_matches_finding(report, spec, finding_behind):
        return end_with_full_stop(own)
    changed_ranges = [c.parameter for c in finding_behind.changes if isinstance(c, SetRange) and c.parameter in spec.parameters]
    ranges = [name for name in changed_ranges if spec.parameters[name].numeric]
    if ranges and _extends_unproposed_range_end(report, ranges[0], spec.parameters[ranges[0]]):
        return end_with_full_stop(capitalise(spec.parameters[ranges[0]].why or ""))
    range_findings = (
        _findings_behind_range(report, finding_behind, ranges[0], spec.parameters[ranges[0]]) if ranges else [finding_behind]
    )
    if len(range_findings) == 1 and range_findings[0].severity != "note":
        return end_with_full_stop(range_findings[0].message)
    return join_items((first_sentence(f.message) for f in range_findings), " ")


def _reason_for_goal(report: ReportData, spec: StudySpec) -> str:
    """Return the reason for the first changed hyperparameter that the study's goal names, or ""."""
    reasons = (row for row in diff_studies(completed_spec(report), spec) if row.why and row.name in spec.goal.partition(":")[0])
    return next((capitalise(row.why or "") for row in reasons), "")


def _goal_matches_finding(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether the study's goal is about the same subject as the finding: the same hyperparameter or study design."""
    if spec.sampler.kind == "adaptive" != report.spec.sampler.kind:
        return any(isinstance(c, RunPlan) for c in finding.changes)
    changed_names = {row.name for row in diff_of_changes(report.spec, finding.changes)}
    return any(name in spec.goal for name in (finding.subject, *changed_names) if name)


def _needs_manual_action(spec: StudySpec, finding: Finding) -> bool:
    return spec.goal == goal_after_manual_fix(str(finding.action))


def _study_follows_finding(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether the study contains a change or design that the finding asks for, or waits for the finding's manual action."""
    if _needs_manual_action(spec, finding):
        return True
    changed_names = {row.name for row in diff_studies(completed_spec(report), spec)}
    requested_plans = {c.plan for c in finding.changes if isinstance(c, RunPlan)}
    if "clip" in requested_plans and any(map(parameter_kinds.is_clipping_threshold, changed_names)):
        return True
    if requested_plans:
        has_own_design = spec.probe is not None or spec.sampler.kind == "adaptive" or spec.settings != ()
        return has_own_design or finding.subject in changed_names
    return any(row.name in changed_names for row in diff_of_changes(report.spec, finding.changes))


def _findings_behind_range(report: ReportData, first: Finding, name: str, new: Parameter) -> list[Finding]:
    """Return the findings that proposed the new ends of a range, the lower end first, or [first] if no finding proposed them."""
    old = report.spec.parameters.get(name)
    range_findings: list[Finding] = []
    for side in get_args(RangeSide):
        end = getattr(new, side)
        if old is not None and getattr(old, side) == end:
            continue
        proposing_finding = next((f for f in (first, *report.findings) if _proposes_range_end(f, name, side, end)), None)
        if proposing_finding is not None and proposing_finding not in range_findings:
            range_findings.append(proposing_finding)
    return range_findings or [first]


def _extends_unproposed_range_end(report: ReportData, name: str, new: Parameter) -> bool:
    old = completed_spec(report).parameters.get(name)
    if old is None or not old.numeric or study_diff.are_parameters_alike(old, new):
        return False
    assert new.low is not None
    assert new.high is not None
    low, high = old.to_positions([new.low, new.high])
    sides: tuple[tuple[RangeSide, bool], ...] = (("low", low < -RANGE_END_TOLERANCE), ("high", high > 1 + RANGE_END_TOLERANCE))
    return any(
        beyond and not any(_proposes_range_end(f, name, side, getattr(new, side)) for f in report.findings)
        for side, beyond in sides
    )


def _proposes_range_end(finding: Finding, name: str, side: RangeSide, end: float) -> bool:
    ranges = (c for c in finding.changes if isinstance(c, SetRange) and c.parameter == name)
    return any(math.isclose(c.low if side == "low" else c.high, end) for c in ranges)


def _study_purpose(report: ReportData, spec: StudySpec) -> str:
    fixed_count = sum(p.searched_in is not None for p in spec.parameters.values())
    if fixed_count:
        searched_count = fixed_count + len(spec.searched)
        needed_trials = settings_needed(searched_count)
        return f"The other hyperparameters stay fixed for now: a search of all {searched_count} takes about {needed_trials} trials."
    only_repeats = not spec.searched and (spec.seeds or 1) > 1
    if only_repeats and not report.spec.searched and not any(map(is_learning_rate, report.spec.parameters)):
        missing_kind = "learning rate" if report.spec.parameters else "hyperparameter"
        return f"No {missing_kind} was logged, so a study can only measure the variation between seeds."
    if only_repeats and report.counts.feasible > 1:
        return "Too few settings were repeated to say if the best trial leads by more than chance."
    if spec.sampler.kind == "adaptive":
        return "The best settings lie inside all ranges, so this study searches more closely around these settings."
    if MORE_SETTINGS_GOAL.match(spec.goal):
        trials = capitalise(spelled(report.counts.feasible, "trial is", "trials are"))
        return f"{trials} too few to show which values are best. {_checks_summary(report)}"
    if spec.settings and spec.probe is None and (spec.max_train_steps or 0) > (report.spec.max_train_steps or math.inf):
        return "Short runs found these settings; only long runs show which setting is the best."
    return _checks_summary(report)


def _checks_summary(report: ReportData) -> str:
    passed, fired = (sum(1 for _ in report.verdicts_with_status(s)) for s in ("quiet", "fired"))
    notes, unknown = len(report.heads), len(report.verdicts) - passed - fired
    if waiting := sum(f.severity != "note" for f in report.heads):
        start = "Only one trial has a result, which is not enough to judge a search. " if report.counts.feasible == 1 else ""
        return f"{start}{capitalise(spelled(waiting, 'finding waits', 'findings wait'))} for a later study."
    if report.counts.feasible == 1 and not notes:
        return "Only one trial has a result, which is not enough to judge a search."
    if not passed and not notes:
        return "No check had enough data." if report.verdicts else "No check ran."
    summary_text = f"{'Nothing urgent' if notes else 'No problem'} found in {spelled(passed + fired, 'check')}"
    summary_text += f"; {count(unknown, 'check')} could not run." if unknown else "."
    compared_count = len(report.ranked)
    if compared_count >= MIN_FEASIBLE_TRIALS:
        return summary_text
    start = f"Only {spelled(compared_count, 'trial has', 'trials have')} a comparable result"
    return f"{start}, too few to judge the search space. {summary_text}"

"""The headline of a report, the sentences about its best value, and its key figures."""

from __future__ import annotations

import math
import re
from typing import get_args

from advisor.computed.decision.repeats import key_of
from advisor.model import parameter_kinds
from advisor.model.change import RunPlan, SetRange
from advisor.model.finding import Finding, Side
from advisor.model.message import Item, Message, Name, Objective, as_sentence, first_sentence, joined, say
from advisor.model.prediction import significant
from advisor.model.space import is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.words import capital, clean, count, number, setting, share, shorten, spelled
from advisor.planning.goals import manual_goal
from advisor.planning.new_scores import NOT_COMPARABLE, asked
from advisor.planning.stages import MIN_FEASIBLE, SURE, ends_tuning
from advisor.planning.states import settings_needed
from advisor.report.model import ReportData
from advisor.report.plot_data.model import TrialRow
from advisor.report.text.study_diff import ROUNDING, alike, as_run, diff_changes, diff_specs

_PARAMETERS = 4
"""Maximum number of hyperparameters that the sentence on the best trial mentions."""

STOP = "Stop searching: measure the best setting on {data}, once, and ship it."
"""Headline if a further search is not worth its trials and the best setting was repeated."""
MIN_LENGTH = 0.5
"""Minimum length of the best trial, as a share of the other trials' median length, for results to be of the same training."""


def headline(report: ReportData) -> Message:
    """Return the first thing to do and the reason for it, or the reason that nothing needs to be done."""
    return joined((part for part in first_step(report) if str(part)), " ")


def first_step(report: ReportData) -> tuple[Message, Message]:
    """Return the two parts of the headline: the goal of the first study, and the reason for it; the second one may be empty."""
    counts, nothing = report.counts, Message(())
    if counts.total == 0:
        return say("This study has no trials yet."), nothing
    if counts.total == counts.running + counts.no_data:
        none = f"None of the {counts.total:,} trials logged" if counts.total > 1 else "The only trial did not log"
        return (say("No trial has ended yet.") if counts.running else say("{none} the objective.", none=none)), nothing
    if report.stop is not None:
        return say("{stop}", stop=STOP.format(data=report.spec.objective.final_data)), report.stop
    urgent = _urgent(report)
    if counts.feasible == 0 and not report.next_studies:
        action = say("{action}", action=as_sentence(urgent[0].action)) if urgent else nothing
        return say("No trial produced a usable result."), action
    if report.next_studies:
        spec = report.next_studies[0].spec
        lead, before = _followed(report, spec), before_study(report)
        if before is not None:
            return as_sentence(before.action), _reason(report, spec, before) if before is lead else _then(spec, before)
        optional = lead is not None and all(f.severity == "note" for f in report.heads)
        why = _reason(report, spec, lead)
        return as_sentence(_marked(spec)), say("Optional: nothing is urgent. {why}", why=why) if optional else why
    if urgent:
        return as_sentence(urgent[0].action), as_sentence(urgent[0].message)
    text = say("{text}", text=_quiet(report))
    if not report.heads:
        return text, nothing
    action = say("{action}", action=as_sentence(report.heads[0].action))
    if len(report.ranked) < MIN_FEASIBLE:
        return text, say("Consider: {action}", action=action)
    return action, as_sentence(report.heads[0].message)


def lead(report: ReportData) -> Finding | None:
    """Return the finding that the headline states; None if it follows no finding."""
    if report.stop is not None:
        return None
    if not report.next_studies:
        return next(iter([*_urgent(report), *report.heads]), None)
    return before_study(report) or _followed(report, report.next_studies[0].spec)


def before_study(report: ReportData) -> Finding | None:
    """Return the finding whose action a person carries out before the first study; None if the study comes first."""
    if not report.next_studies:
        return None
    spec, urgent = report.next_studies[0].spec, _urgent(report)
    lead = _followed(report, spec)
    if lead is not None and _is_by_hand(spec, lead):
        return lead
    # A study that follows a note does not come before a problem that it leaves as it is, if that problem is certain enough.
    only_note = lead is None or lead.severity == "note"
    first = next((f for f in urgent if _comes_first(report, spec, f)), None)
    return first if only_note and first is not None and not _is_followed(report, spec, first) else None


def _comes_first(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether a person should act on the finding before a study that leaves it as it is.

    After a single setting, the short sweep of the learning rate shows more than anything else, unless the results mean nothing.
    """
    if finding.severity == "critical" or asked(spec, [finding]):
        return True
    of_one_setting = not report.spec.searched and bool(spec.searched)
    return finding.confidence >= SURE and not of_one_setting


def _urgent(report: ReportData) -> list[Finding]:
    """Return the causes that need action now, the most important first."""
    return [f for f in report.heads if f.severity != "note" and report.reason_deferred(f) is None]


def _marked(spec: StudySpec) -> Message:
    """Return the goal of a study with the hyperparameters in it marked as names; without the numbers if they are several's."""
    head, _, numbers = spec.goal.partition(": ")
    ranges = [part.partition(" ")[0] in map(clean, spec.parameters) for part in numbers.split("; ")]
    goal = head if len(ranges) > 1 and all(ranges) else spec.goal
    names = sorted({clean(name) for name in spec.parameters} - {""}, key=len, reverse=True)
    if not names:
        return Message((goal,))
    # Names may contain spaces; a name ends at a space or a punctuation mark.
    words = re.split(rf"(?<!\S)({'|'.join(map(re.escape, names))})(?=[\s,:;]|$)", goal)
    return Message(tuple(Name(word) if i % 2 else word for i, word in enumerate(words) if word))


def _followed(report: ReportData, spec: StudySpec) -> Finding | None:
    """Return the finding that the study follows, one about the subject of its goal first; None if no finding led to it."""
    leads = [f for f in report.findings if report.reason_deferred(f) is None and _is_followed(report, spec, f)]
    return min(leads, key=lambda f: not _is_goal(report, spec, f), default=None)


def _then(spec: StudySpec, before: Finding) -> Message:
    """Return the reason for advice that no study can follow, and what comes after it."""
    goal = spec.goal.partition(":")[0]
    text = "{why} Then run the next study, “{goal}”." + f" {NOT_COMPARABLE}" * asked(spec, [before])
    return say(text, why=first_sentence(before.message), goal=goal)


def _reason(report: ReportData, spec: StudySpec, lead: Finding | None) -> Message:
    """Return the reason for the first study: the findings that it follows."""
    if lead is None:
        done = next((f for f in report.heads if ends_tuning([f])), None)
        if done is not None:
            return first_sentence(done.message)
        changed = (
            row for row in diff_specs(as_run(report), spec) if row.why and row.name in spec.goal.partition(":")[0]
        )
        own = next((capital(row.why or "") for row in changed), "")
        return as_sentence(own) if own else say("{text}", text=_use(report, spec))
    ends = [c.parameter for c in lead.changes if isinstance(c, SetRange) and c.parameter in spec.parameters]
    ranges = [name for name in ends if spec.parameters[name].numeric]
    if ranges and _is_beyond(report, ranges[0], spec.parameters[ranges[0]]):
        return as_sentence(capital(spec.parameters[ranges[0]].why or ""))
    found = _range_findings(report, lead, ranges[0], spec.parameters[ranges[0]]) if ranges else [lead]
    return as_sentence(found[0].message) if len(found) == 1 else joined((first_sentence(f.message) for f in found), " ")


def _is_goal(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether the goal of the study is the design or the hyperparameter that the finding is about."""
    if spec.sampler.kind == "adaptive" != report.spec.sampler.kind:
        return any(isinstance(c, RunPlan) for c in finding.changes)
    changed = {row.name for row in diff_changes(report.spec, finding.changes)}
    return any(name in spec.goal for name in (finding.subject, *changed) if name)


def _is_by_hand(spec: StudySpec, finding: Finding) -> bool:
    """Return whether the study waits for the finding's action, which a person must carry out."""
    return spec.goal == manual_goal(str(finding.action))


def _is_followed(report: ReportData, spec: StudySpec, finding: Finding) -> bool:
    """Return whether the study contains a change of the finding, or the fix by hand or the design that the finding asks for."""
    if _is_by_hand(spec, finding):
        return True
    changed = {row.name for row in diff_specs(as_run(report), spec)}
    plans = {c.plan for c in finding.changes if isinstance(c, RunPlan)}
    if "clip" in plans and any(map(parameter_kinds.clips_norm, changed)):
        return True
    if plans:
        special = spec.probe is not None or spec.sampler.kind == "adaptive" or spec.settings != ()
        return special or finding.subject in changed
    return any(row.name in changed for row in diff_changes(report.spec, finding.changes))


def _range_findings(report: ReportData, first: Finding, name: str, new: Parameter) -> list[Finding]:
    """Return the findings that proposed the ends of the new range, the lower end first; `first` if there are none."""
    old = report.spec.parameters.get(name)
    found: list[Finding] = []
    for side in get_args(Side):
        end = getattr(new, side)
        if old is not None and getattr(old, side) == end:
            continue
        setter = next((f for f in (first, *report.findings) if _proposes(f, name, side, end)), None)
        if setter is not None and setter not in found:
            found.append(setter)
    return found or [first]


def _is_beyond(report: ReportData, name: str, new: Parameter) -> bool:
    """Return whether the new range goes beyond the old one at an end that no finding proposed."""
    old = as_run(report).parameters.get(name)
    if old is None or not old.numeric or alike(old, new):
        return False
    assert new.low is not None
    assert new.high is not None
    low, high = old.to_unit([new.low, new.high])
    sides: tuple[tuple[Side, bool], ...] = (("low", low < -ROUNDING), ("high", high > 1 + ROUNDING))
    return any(
        beyond and not any(_proposes(f, name, side, getattr(new, side)) for f in report.findings)
        for side, beyond in sides
    )


def _proposes(finding: Finding, name: str, side: Side, end: float) -> bool:
    ranges = (c for c in finding.changes if isinstance(c, SetRange) and c.parameter == name)
    return any(math.isclose(c.low if side == "low" else c.high, end) for c in ranges)


def _use(report: ReportData, spec: StudySpec) -> str:
    """Return what a study is for that no finding asks for."""
    fixed = sum(p.searched_in is not None for p in spec.parameters.values())
    if fixed:
        searched = fixed + len(spec.searched)
        needed = settings_needed(searched)
        return f"The others stay at the best trial's values for now: a search of all {searched} takes about {needed} trials."
    if not spec.searched and (spec.seeds or 1) > 1 and report.counts.feasible > 1:
        return "Too few settings were repeated to say if the best trial leads by more than chance."
    if spec.sampler.kind == "adaptive":
        return "The best settings lie inside all ranges, so this search looks closer around them."
    if spec.settings and spec.probe is None and (spec.max_train_steps or 0) > (report.spec.max_train_steps or math.inf):
        return "Short runs found these settings; only long ones show which is the best."
    return _quiet(report)


def _quiet(report: ReportData) -> str:
    passed, fired = (sum(1 for _ in report.with_status(s)) for s in ("quiet", "fired"))
    notes, unknown = len(report.heads), len(report.verdicts) - passed - fired
    if waiting := sum(f.severity != "note" for f in report.heads):
        few = "Only one trial has a result, which is too few to judge a search. " if report.counts.feasible == 1 else ""
        return f"{few}{capital(spelled(waiting, 'finding waits', 'findings wait'))} for a later study."
    if report.counts.feasible == 1 and not notes:
        return "Only one trial has a result, which is too few to judge a search."
    if not passed and not notes:
        return "No check had enough data." if report.verdicts else "No check ran."
    text = f"No problem found in {spelled(passed + fired, 'check')}"
    text += f"; {count(unknown, 'check')} could not run." if unknown else "."
    compared = len(report.ranked)
    if compared >= MIN_FEASIBLE:
        return text
    few = f"Only {spelled(compared, 'trial has', 'trials have')} a comparable result"
    return f"{few}, too few to judge the search space. {text}"


def best_sentence(report: ReportData) -> Message:
    """Return a sentence with the best value, its hyperparameters and the number of failed trials."""
    best, counts = report.best, report.counts
    metric, failed = Name(report.spec.objective.metric), _failed(report)
    if best is None:
        return say("No completed trial has a value of {metric}.{failed}", metric=metric, failed=failed)
    rank = "lowest" if report.minimize else "highest"
    compared = len(report.ranked)
    trials = "trials with a result" if compared >= counts.feasible else "comparable trials"
    source = f"the {rank} of {compared:,} {trials}"
    return say(
        "The best {metric} is {value}, {source}{settings}.{short}{failed}",
        metric=metric,
        value=Objective(best.value),
        source="from the only trial with a result" if compared == 1 else source,
        settings=_settings(report),
        short=_short_training(report),
        failed=failed,
    )


def _settings(report: ReportData) -> Item:
    assert report.best is not None
    params = report.best.params
    parts: list[Item] = []
    for name in _by_relevance(report)[:_PARAMETERS]:
        value_text = shorten(setting(params[name], 3), 30)
        parts.append(say("{start}{name} {value}", start=", " if parts else ", at ", name=Name(name), value=value_text))
    if len(params) > _PARAMETERS:
        parts.append(f" and {len(params) - _PARAMETERS} more")
    return Message(tuple(parts))


def _by_relevance(report: ReportData) -> list[str]:
    """Return the best trial's hyperparameters: the headline's subject, then learning rates, then by importance."""
    assert report.best is not None
    subject = report.heads[0].subject if report.heads else None
    importances = report.figures.importances
    share = {i.parameters[0]: i.share for i in importances.each} if importances is not None else {}
    return sorted(report.best.params, key=lambda n: (n != subject, not is_learning_rate(n), -share.get(n, 0.0)))


def _short_training(report: ReportData) -> Message:
    """Return a sentence if the best trial ended long before the other comparable trials."""
    best = report.best
    others = sorted(t.last_step for _, t in report.ranked[1:] if t.last_step)
    if best is None or not best.last_step or not others:
        return Message(())
    usual = others[len(others) // 2]
    if best.last_step >= MIN_LENGTH * usual:
        return Message(())
    return say(
        " {name}, the best trial, ended at step {last}; the others ended at about {usual}.",
        name=Name(best.name),
        last=f"{best.last_step:,}",
        usual=f"{round(significant(usual, 3)):,}",
    )


def _failed(report: ReportData) -> str:
    counts = report.counts
    parts = []
    # Not "failed": rules also count a trial as failed if it ended with a result but learned nothing.
    if counts.failed and counts.failed == counts.total:
        parts.append("the only trial failed" if counts.total == 1 else f"all {counts.total:,} trials failed")
    elif counts.failed:
        parts.append(f"{counts.failed:,} of {counts.total:,} trials ended without a usable result")
    if counts.running:
        parts.append(spelled(counts.running, "trial is still running", "trials are still running"))
    if counts.no_data:
        parts.append(f"{spelled(counts.no_data, 'trial')} logged no objective")
    return f" {capital(', '.join(parts))}." if parts else ""


def certainty(report: ReportData) -> Message:
    """Return the sentences on the uncertainty of the best value: between seeds, and between studies if that is known."""
    if report.again is None:
        return _between_trials(report)
    low, high = report.again
    best = math.nan if report.best is None else report.best.value
    lucky = best < low if report.minimize else best > high
    again = say(
        "If the study ran again with other random settings and seeds, its best {metric} would {be} {low} and {high} (80 % "
        "interval).",
        metric=Name(report.spec.objective.metric),
        be="probably be worse: between" if lucky else "lie between",
        low=Objective(low),
        high=Objective(high),
    )
    return joined((_between_trials(report), again), " ")


def _between_trials(report: ReportData) -> Message:
    """Return a sentence on the uncertainty of the best value, estimated from repeats or from its lead."""
    best, spread = report.best, report.spread
    if best is None:
        return Message(())
    lead = _lead(report)
    if spread is None and lead is None:
        return say("One trial cannot show how much of its result is chance.")
    if lead == 0:
        return say(
            "{ties} the same result.", ties=capital(spelled(_ties(report), "other setting has", "other settings have"))
        )
    if spread is None:
        return say(
            "It leads the next best setting by {lead}; without repeats, that may be chance.", lead=number(lead, 2)
        )
    repeats = say(
        "Repeats of a setting vary by {deviation} (standard deviation of {trials} trials in {settings}).",
        deviation=number(spread.deviation, 2),
        trials=spread.trials,
        settings=count(spread.settings, "setting"),
    )
    if lead is None:
        return repeats
    chance = ", which is less: their order may be chance" if lead < spread.deviation else ""
    return say(
        "{repeats} The best trial leads the next best setting by {lead}{chance}.",
        repeats=repeats,
        lead=number(lead, 2),
        chance=chance,
    )


def _lead(report: ReportData) -> float | None:
    """Return the distance from the best trial to the best one of another setting; None if there is no such trial."""
    other = _next_setting(report)
    best = report.best
    return None if other is None or other.best is None or best is None else abs(other.best - best.value)


def _ties(report: ReportData) -> int:
    """Return the number of other settings with the best trial's result; 1 if no setting is known to repeat."""
    rows = [t for _, t in report.ranked]
    keys = {key_of(t.params) for t in rows if t.best == rows[0].best} - {key_of(rows[0].params)}
    return max(len(keys), 1)


def _next_setting(report: ReportData) -> TrialRow | None:
    """Return the best trial whose setting differs from the best trial's; the next trial if no setting is known to repeat."""
    rows = [t for _, t in report.ranked]
    repeat = rows[1] if len(rows) > 1 and report.spread is None else None
    return next((t for t in rows[1:] if key_of(t.params) != key_of(rows[0].params)), repeat)


def key_figures(report: ReportData) -> tuple[tuple[str, str, str], ...]:
    """Return (label, value, note) of the five key figures under the headline."""
    searched = len(report.spec.searched)
    passed, fired = (sum(v.status == s for v in report.verdicts) for s in ("quiet", "fired"))
    return (
        _best_figure(report),
        _trials_figure(report),
        ("Hyperparameters searched", f"{searched}", _space_note(report, searched)),
        _best_step_figure(report),
        ("Checks run", f"{passed + fired} of {len(report.verdicts)}", f"{passed} passed, {fired} did not"),
    )


def _best_figure(report: ReportData) -> tuple[str, str, str]:
    best, other = report.best, _next_setting(report)
    if report.spread is not None:
        note = f"repeats vary by {number(report.spread.deviation, 2)}"
    elif other is not None:
        note = f"next best {number(other.best)}"
    else:
        note = "the only result" if best else "no trial with a result"
    return f"Best {shorten(report.spec.objective.metric, 36)}", number(best.value if best else None), note


def _trials_figure(report: ReportData) -> tuple[str, str, str]:
    counts = report.counts
    own = f"{counts.total - counts.earlier:,}"
    if counts.earlier:
        return "Trials", f"{own} + {counts.earlier:,}", f"{counts.earlier:,} from earlier rounds"
    failed = f"{counts.failed:,} without a result"
    compared = len(report.ranked)
    fine = f"{compared:,} comparable" if compared < counts.feasible else f"{counts.feasible:,} with a result"
    return "Trials", own, failed if counts.failed else fine


def _space_note(report: ReportData, searched: int) -> str:
    if not report.next_studies:
        return "none is varied" if searched == 0 else "in this study"
    old, new = as_run(report).parameters, report.next_studies[0].spec
    changed = sum(not alike(p, new.parameters.get(n)) for n, p in old.items())
    added = len(new.parameters.keys() - old.keys())
    parts = [f"{changed} to change" if changed else "", f"{added} to add" if added else ""]
    return ", ".join(p for p in parts if p) or "none to change"


def _best_step_figure(report: ReportData) -> tuple[str, str, str]:
    positions = best_positions(report)
    if not positions:
        return "Best step", number(None), "unknown"
    median = share(sorted(positions)[len(positions) // 2])
    return ("Best step, median trial" if len(positions) > 1 else "Best step"), median, "of its training"


def best_positions(report: ReportData) -> list[float]:
    """Return the best step of each comparable trial with several evaluations, as a position between 0 (start) and 1 (end)."""
    return [p for t in report.figures.trials if (p := _best_position(t)) is not None]


def _best_position(row: TrialRow) -> float | None:
    if not (row.feasible and row.comparable) or row.best_step is None or not row.last_step or row.evaluations < 2:
        return None
    return row.best_step / row.last_step

"""Computes the content of the HTML page in page order; the templates only arrange this content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from advisor.computed.space.promising import PROMISING_RANGE_REASON
from advisor.model.change import SetField, SetRange, SetSchedule
from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, HistogramEvidence
from advisor.model.finding import Finding, Verdict
from advisor.model.message import Message, Name, Percent, end_with_full_stop, join_items, say
from advisor.model.reading import Decision
from advisor.model.words import capitalise, clean, count, lower_first_letter, number, sentence, setting, shorten
from advisor.planning.new_scores import NOT_COMPARABLE_NOTE, makes_scores_incomparable
from advisor.report.figures import Figure, Key
from advisor.report.figures.axis import axis_plot_figure
from advisor.report.figures.curves import training_curve_figures
from advisor.report.figures.histogram import histogram_figure
from advisor.report.figures.svg import Frame
from advisor.report.model import NextStudy, ReportData
from advisor.report.plot_data import compact_curves
from advisor.report.plot_data.model import TrialRow
from advisor.report.plot_data.scale import AxisLimits
from advisor.report.text.study_diff import StudyDiffRow, completed_spec, diff_of_changes, diff_studies

MAX_TABLE_TRIALS = 500
"""Maximum number of trials in the page's table. The table also lists trials that findings name."""

MAX_NAMED_TRIALS = 10

MAX_MISSING_DATA_LINES = 3
"""Maximum number of lines about missing data in the terminal and in the visible part of the Markdown report."""

TRAINING_LENGTH_TOLERANCE = 0.1
"""Trials count as equally long if the difference between their last steps is at most this share of the largest last step."""

SEVERITY_LABELS = {"critical": "Fix first", "warning": "Worth doing", "note": "Consider"}


@dataclass(frozen=True)
class FindingCard:
    card_id: str
    finding: Finding
    diff: tuple[StudyDiffRow, ...]
    merged_changes: tuple[Message, ...]
    """See `merged_change_sentences`."""
    action: Message
    deferral: str | None
    parent_id: str | None
    """`card_id` of the finding that explains this finding, or None. The page places this card below that finding's card."""


@dataclass(frozen=True)
class PlannedStudy:
    element_id: str
    study: NextStudy
    diff: tuple[StudyDiffRow, ...]


def finding_cards(report: ReportData) -> tuple[FindingCard, ...]:
    """Return one card per finding, the most important first, each followed by the findings that it explains."""
    card_ids = iter(f"finding-{i}" for i in range(1, len(report.findings) + 1))
    cards: list[FindingCard] = []
    for head, below in report.findings_by_cause:
        parent = next(card_ids)
        cards += [_finding_card(report, head, parent, None), *(_finding_card(report, f, next(card_ids), parent) for f in below)]
    return tuple(cards)


def _finding_card(report: ReportData, finding: Finding, card_id: str, parent_id: str | None) -> FindingCard:
    return FindingCard(
        card_id,
        finding,
        diff=diff_of_changes(report.spec, finding.changes),
        merged_changes=merged_change_sentences(report, finding),
        action=join_items(action_lines(report, finding), " "),
        deferral=report.deferral_reason(finding),
        parent_id=parent_id,
    )


def threshold_text(value: Any) -> str:
    return setting(value) if isinstance(value, bool | int | float | str) else clean(value)


def evidence_rows(finding: Finding) -> tuple[tuple[str, str], ...]:
    tables = (e.rows for e in finding.evidence if isinstance(e, FigureEvidence))
    return tuple((label, str(value)) for rows in tables for label, value in rows)


def merged_change_sentences(report: ReportData, finding: Finding) -> tuple[Message, ...]:
    """Return a sentence for each value of the next study that differs from the finding's proposal, and a sentence if a change makes
    new objective values incomparable with earlier ones. A deferred finding has no such sentences."""
    if report.deferral_reason(finding) is not None:
        return ()
    makes_incomparable = any(map(makes_scores_incomparable, finding.changes))
    changed_rows = _merged_change_rows(report, finding)
    sentences = (say("The next study has {name} {after}.", name=Name(row.name), after=str(row.after)) for row in changed_rows)
    return (*(say(NOT_COMPARABLE_NOTE) for _ in range(makes_incomparable)), *sentences)


def is_overruled_finding(report: ReportData, finding: Finding) -> bool:
    """Return whether another finding explains this finding, and the next study uses other values than this finding recommends."""
    is_explained = finding.explained_by is not None and report.deferral_reason(finding) is None
    return is_explained and bool(_merged_change_rows(report, finding))


def action_lines(report: ReportData, finding: Finding) -> tuple[Message, ...]:
    """Return the finding's action and its `merged_change_sentences`. If the finding asks only for ranges and the next study
    searches other ranges, return only the next study's ranges."""
    sentences = merged_change_sentences(report, finding)
    changed_rows = _merged_change_rows(report, finding) if all(isinstance(c, SetRange) for c in finding.changes) else []
    if not sentences or not changed_rows or len(changed_rows) != len(finding.changes):
        return end_with_full_stop(finding.action), *sentences
    text = "Search {name} in {after}{reason}."
    return tuple(say(text, name=Name(row.name), after=str(row.after), reason=_model_reason_clause(row)) for row in changed_rows)


def _model_reason_clause(row: StudyDiffRow) -> str:
    """Return the reason for a range that a model chose, because it may omit good trials that the finding counts; else ""."""
    why = row.why or ""
    start = why.lower().find(PROMISING_RANGE_REASON.lower())
    return f": {PROMISING_RANGE_REASON}{why[start + len(PROMISING_RANGE_REASON) :].rstrip('.')}" if start >= 0 else ""


def _merged_change_rows(report: ReportData, finding: Finding) -> list[StudyDiffRow]:
    """Return the changed lines of the next study that set other values than the finding proposes."""
    proposed_values = {row.name: row.after for row in diff_of_changes(report.spec, finding.changes)}
    next_rows = [row for step in planned_studies(report)[:1] for row in step.diff]
    return [row for row in next_rows if row.after is not None and proposed_values.get(row.name, row.after) != row.after]


def is_in_next_study(report: ReportData, finding: Finding) -> bool:
    """Return whether the first of the next studies contains a change that the finding proposes."""
    if report.deferral_reason(finding) is not None:
        return False
    proposed_names = {row.name for row in diff_of_changes(report.spec, finding.changes)}
    return any(row.name in proposed_names for step in planned_studies(report)[:1] for row in step.diff)


def explained_study_changes(report: ReportData) -> tuple[StudyDiffRow, ...]:
    """Return the lines that the next study changes, with reasons. The last of successive lines with equal reasons states it."""
    if not report.next_studies:
        return ()
    changes = [c for f in report.findings if report.deferral_reason(f) is None for c in f.changes]
    reasons = {"trials": report.next_studies[0].trial_number_reason}
    for change in reversed(changes):
        if isinstance(change, SetField | SetSchedule):
            reasons[change.field if isinstance(change, SetField) else "schedule"] = change.why
    rows = [replace(r, why=capitalise(r.why or reasons.get(r.name) or "") or None) for r in planned_studies(report)[0].diff]
    return tuple(replace(r, why=None) if i + 1 < len(rows) and r.why == rows[i + 1].why else r for i, r in enumerate(rows))


def cards_to_act_on(made: tuple[FindingCard, ...], first: Finding | None) -> list[FindingCard]:
    """Return one card for each action to take now: the card of the headline's finding `first`, then cards that change a study
    or report a fault of the pipeline. If findings with one cause change the same values, return only the first card whose
    changes the next study contains unaltered, or else the card of the cause."""
    change_cards = [c for c in made if c.deferral is None and c.finding.changes]
    now = list({str(c.finding.action): c for c in reversed(change_cards)}.values())[::-1]
    changed_names = {c.card_id: {row.name for row in c.diff} for c in now}
    cards_by_cause: dict[str, list[str]] = {}
    for card in sorted(now, key=lambda c: bool(c.merged_changes)):
        group = cards_by_cause.setdefault(card.parent_id or card.card_id, [])
        if not card.diff or not any(changed_names[card.card_id] <= changed_names[other] for other in group):
            group.append(card.card_id)
    shown_cards = [c for c in now if c.card_id in cards_by_cause[c.parent_id or c.card_id]]
    return sorted(shown_cards, key=lambda c: (c.finding is not first, not c.diff and c.finding.goal != "pipeline"))


def explanation_sentence(finding: Finding) -> str | None:
    """Return a sentence that says why the finding follows from another finding, or None if no other finding explains this one."""
    cause = finding.explained_by
    return None if cause is None else f"Follows from {cause.rule}: {lower_first_letter(cause.because)}"


def figures_of_evidence(report: ReportData, finding: Finding) -> Iterator[Figure]:
    for evidence in finding.evidence:
        if isinstance(evidence, AxisEvidence):
            yield axis_plot_figure(report, evidence)
        elif isinstance(evidence, CurveEvidence):
            # The last part of a curve would look flat on an axis that includes the first part.
            objective = evidence.metrics == (report.spec.objective.metric,)
            zoom_on_end = objective and not evidence.marks and finding.goal in ("steps", "efficiency")
            yield from training_curve_figures(report, evidence, late=zoom_on_end)
        elif isinstance(evidence, HistogramEvidence) and (drawn := histogram_figure(evidence)) is not None:
            yield drawn


def planned_studies(report: ReportData) -> tuple[PlannedStudy, ...]:
    """Return the next studies in the order to run them, each with its differences from the study before it."""
    specs = [completed_spec(report), *(n.spec for n in report.next_studies)]
    planned = [PlannedStudy(f"next-{i}", n, diff_studies(specs[i - 1], n.spec)) for i, n in enumerate(report.next_studies, 1)]
    # If the trials so far differ in length, but the next study trains all trials equally long, list this difference as a change.
    last_steps = [t.last_step for t in report.figures.trials if t.status == "complete" and t.round is None and t.last_step]
    length, name = planned[0].study.spec.max_train_steps if planned else None, "max_train_steps"
    if length is not None and last_steps and min(last_steps) < (1 - TRAINING_LENGTH_TOLERANCE) * max(last_steps):
        why = "only trials of the same length can be compared"
        row = StudyDiffRow(name, f"{min(last_steps):,} to {max(last_steps):,}", f"{length:,}", why)
        if all(r.name != name for r in planned[0].diff):
            planned[0] = replace(planned[0], diff=(*planned[0].diff, row))
    return tuple(planned)


def ranked_trials(report: ReportData) -> list[tuple[int, TrialRow]]:
    """Return (index, trial) of all trials, the best first and trials without a result last."""
    ranked = report.ranked
    ranked_indices = {i for i, _ in ranked}
    return [*ranked, *((i, t) for i, t in enumerate(report.figures.trials) if i not in ranked_indices)]


def trials_in_table(report: ReportData) -> tuple[tuple[int, TrialRow], ...]:
    """Return (index, trial) of the trials in the page's table, the best first, including all trials that cards name."""
    ranked = ranked_trials(report)
    named_trials = {t for f in report.findings for t in f.trials[:MAX_NAMED_TRIALS]}
    return (*ranked[:MAX_TABLE_TRIALS], *(r for r in ranked[MAX_TABLE_TRIALS:] if r[1].id in named_trials))


def selected_trial_data(report: ReportData) -> dict[str, Any] | None:
    curves = report.figures.compact_curves
    if not curves:
        return None
    row_by_id = report.figures.by_id
    best_names = [clean(row_by_id[t].name) for t in report.figures.best_trials]
    notes = [f"Each of the {curves[0].columns} columns of pixels shows its minimum and maximum, so spikes stay visible."]
    if any(c.has_values_outside for c in curves):
        notes.append("Values outside the vertical axis are clipped.")
    if omitted := sum(c is None for c in curves[0].curves):
        notes.append(f"The page contains the curves of the best {len(row_by_id) - omitted:,} of {len(row_by_id):,} trials.")
    legend = [Key("k-selected", "this trial"), *(Key(f"k-crv s{i}", shorten(n, 28), n) for i, n in enumerate(best_names))]
    figures = []
    for c in curves:  # empty axes, on which the page's script draws the curves from the page's data block
        frame = Frame(height_px=220.0)
        frame.fit_y_axis(AxisLimits(c.low, c.high, c.log))
        frame.fit_x_axis(AxisLimits(float(c.first_step), float(c.last_step), c.log_steps))
        frame.add_y_axis(c.metric)
        frame.add_x_axis("step")
        figures.append(Figure(svg=frame.render_svg(f"{clean(c.metric)} of one trial and of the best trials"), caption=""))
    return {"figures": figures, "legend": legend, "notes": notes}


def page_data_block(report: ReportData) -> dict[str, Any]:
    """Return the data of selectable trials that the page's HTML lacks. Curves are encoded as in `compact_curves.py`."""
    figures, names = report.figures, list(report.spec.searched)
    listed_indices = {index for index, _ in trials_in_table(report)}
    unlisted_trials = {i: t for i, t in enumerate(figures.trials) if i not in listed_indices}
    return {
        "metric": clean(report.spec.objective.metric),
        "params": [shorten(n, 40) for n in names],
        "trials": {
            str(i): [
                shorten(t.name, 60),
                number(t.best) if t.best is not None else t.status,
                *(shorten(setting(t.params.get(n)), 40) for n in names),
            ]
            for i, t in unlisted_trials.items()
        },
        # A table that lists all trials already contains their order and links.
        "order": [i for i, _ in ranked_trials(report)] if unlisted_trials else None,
        "runs": report.runs_url,
        "ids": {str(i): t.id for i, t in unlisted_trials.items() if report.runs_url},
        "levels": compact_curves.CURVE_HEIGHT_CHARACTERS,
        "curves": [{"metric": clean(c.metric), "columns": c.columns, "of": c.curves} for c in figures.compact_curves],
        "best": [figures.index[t] for t in figures.best_trials],
    }


def reading_decisions(report: ReportData) -> tuple[Decision, ...]:
    """Return how the experiment was read as a study: inferred properties of the objective, then decisions about trials."""
    inferred_decisions = []
    for topic, value, overrule in (
        ("objective", clean(report.spec.objective.metric), "--objective METRIC"),
        ("direction", report.spec.objective.direction, "--direction minimize|maximize"),
    ):
        if topic in report.inferred:
            reason = clean(report.inferred[topic]).rstrip(".").removeprefix("inferred ")
            reason = reason if reason.startswith(("from", "because", "by", "as ")) else f"({reason})"
            decision_text = f"{topic.capitalize()}: {value}, inferred {reason}."
            inferred_decisions.append(Decision(topic="objective", text=decision_text, overrule=overrule))
    return (*inferred_decisions, *report.decisions)


def reading_decision_lines(report: ReportData, limit: int) -> tuple[str, ...]:
    """Return at most `limit` lines with one decision each, and a line with the number of omitted decisions."""
    decisions = reading_decisions(report)
    lines = [f"{sentence(d.text)}{f' Overrule: {d.overrule}' if d.overrule else ''}" for d in decisions[:limit]]
    omitted_count = len(decisions) - limit
    return (*lines, f"And {count(omitted_count, 'more decision')} in the report.") if omitted_count > 0 else tuple(lines)


def stopping_method_rows(report: ReportData) -> tuple[tuple[str, str, str, str], ...]:
    """Return (method, steps saved, best result kept or lost, best trials lost), the guard first; empty without a simulation."""
    hindsight = report.hindsight
    if hindsight is None or hindsight.guard is None:
        return ()
    outcomes = (hindsight.guard, *hindsight.others)
    return tuple((capitalise(o.name), str(Percent(o.saved)), "kept" if o.kept else "lost", str(o.lost)) for o in outcomes)


def verdicts_by_status(report: ReportData) -> dict[str, tuple[Verdict, ...]]:
    return {s: tuple(report.verdicts_with_status(s)) for s in ("quiet", "not-assessed", "broken")}


def count_inapplicable_checks(report: ReportData) -> int:
    return sum(v.needs is not None and v.needs.lack == "design" for v in report.verdicts_with_status("not-assessed"))


def checks_summary(report: ReportData) -> str:
    statuses = verdicts_by_status(report)
    status_texts = [count(len(statuses["quiet"]), "check") + " passed"]
    if missing := len(statuses["not-assessed"]):
        status_texts.append(f"{missing} could not run")
    if broken := [clean(v.rule) for v in statuses["broken"]]:
        status_texts.append(f"{len(broken)} broke ({', '.join(broken)})")
    return sentence(", ".join(status_texts))

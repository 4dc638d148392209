"""What the page shows, in the order in which it shows it: the template only lays it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, HistogramEvidence
from advisor.model.finding import Finding, Verdict
from advisor.model.message import Message, Name, say
from advisor.model.spec import StudySpec
from advisor.model.words import clean, confidence, count, number, sentence, setting, shorten
from advisor.report.figures import Figure, Key
from advisor.report.figures.axis import axis_figure
from advisor.report.figures.curves import curve_figures
from advisor.report.figures.histogram import histogram_figure
from advisor.report.figures.sketch import sketch_figure
from advisor.report.model import NextStudy, ReportData, TrialRow
from advisor.report.text.spec_diff import DiffRow, advice, describe, diff_changes, diff_specs, reasons

MOST_ROWS = 500
"""Trials listed in the table."""

NAMED = 10
"""Trials of a finding that its card names, and that the table lists in any case."""

SEVERITY_WORDS = {"critical": "Fix first", "warning": "Worth doing", "note": "Consider"}


@dataclass(frozen=True)
class Card:
    """A finding as it is shown."""

    ident: str
    finding: Finding
    severity: str
    confidence_key: str
    confidence: str
    figures: tuple[Figure, ...]
    rows: tuple[tuple[str, str], ...]
    diff: tuple[DiffRow, ...]
    together: tuple[Message, ...]
    """What the next study has instead, where other findings change the same, one sentence each."""
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    summary: str
    why: str
    thresholds: tuple[tuple[str, str], ...]
    measured: str | None
    """How often the rule was right on labelled studies."""
    put_off: str | None
    head: str | None
    """`ident` of the card of its first cause, below which it is shown; None for one that stands by itself."""


@dataclass(frozen=True)
class Step:
    """A next study as it is shown."""

    ident: str
    study: NextStudy
    diff: tuple[DiffRow, ...]


def cards(report: ReportData) -> tuple[Card, ...]:
    """The findings, the most important first, and each cause followed by what it explains."""
    idents = iter(f"finding-{i}" for i in range(1, len(report.findings) + 1))
    made: list[Card] = []
    for head, below in report.headed:
        ident = next(idents)
        made += [_card(report, head, ident, None), *(_card(report, f, next(idents), ident) for f in below)]
    return tuple(made)


def _card(report: ReportData, finding: Finding, ident: str, head: str | None) -> Card:
    key, words = confidence(finding.confidence)
    info = report.rule_by_id.get(finding.rule)
    diff, put_off = diff_changes(report.spec, finding.changes), report.reason_deferred(finding)
    tips = tuple(a for a in advice(finding.changes) if a.rstrip(".") != str(finding.action).rstrip("."))
    return Card(
        ident=ident,
        finding=finding,
        severity=SEVERITY_WORDS[finding.severity],
        confidence_key=key,
        confidence=words,
        figures=tuple(_evidence_figures(report, finding)),
        rows=evidence_rows(finding),
        diff=diff,
        together=together(report, finding),
        reasons=tuple(r for r in reasons(finding.changes) if r.rstrip(".") != clean(str(finding.action)).rstrip(".")),
        advice=tips,
        summary=info.summary if info else "",
        why=info.why if info else "",
        thresholds=tuple((k, _threshold(v)) for k, v in info.thresholds.items()) if info else (),
        measured=info.measured if info else None,
        put_off=put_off,
        head=head,
    )


def evidence_rows(finding: Finding) -> tuple[tuple[str, str], ...]:
    """(what, value) of the numbers that a finding stands on."""
    given = (e.rows for e in finding.evidence if isinstance(e, FigureEvidence))
    return tuple((what, str(value)) for rows in given for what, value in rows)


def together(report: ReportData, finding: Finding) -> tuple[Message, ...]:
    """What the next study has instead of what the finding alone asks for, one sentence each; none for one that is put off."""
    if report.reason_deferred(finding) is not None:
        return ()
    asked = {row.name: row.after for row in diff_changes(report.spec, finding.changes)}
    rows = [row for step in steps(report)[:1] for row in step.diff]
    return tuple(
        say("Together with other findings, the next study has {name} {after}.", name=Name(row.name), after=row.after)
        for row in rows
        if row.after is not None and asked.get(row.name, row.after) != row.after
    )


def todo(made: tuple[Card, ...]) -> list[Card]:
    """What is to be done now: not what is put off, nor what asks for another value of what its cause changes already."""
    now = [c for c in made if c.put_off is None]
    changed = {c.ident: {row.name for row in c.diff} for c in now}
    return [c for c in now if not (c.diff and c.head in changed and changed[c.ident] <= changed[c.head])]


def follows(finding: Finding) -> str | None:
    """Why the finding is not a matter of its own; None for a cause, and for what stands by itself."""
    said = finding.explained_by
    return None if said is None else f"Follows from {said.rule}: {said.because[0].lower()}{said.because[1:]}"


def _threshold(value: Any) -> str:
    return setting(value) if isinstance(value, bool | int | float | str) else clean(value)


def _evidence_figures(report: ReportData, finding: Finding) -> Iterator[Figure]:
    for evidence in finding.evidence:
        if isinstance(evidence, AxisEvidence):
            yield axis_figure(report, evidence)
        elif isinstance(evidence, CurveEvidence):
            yield from curve_figures(report, evidence, late=_looks_at_the_end(report, finding, evidence))
        elif isinstance(evidence, HistogramEvidence):
            drawn = histogram_figure(evidence)
            if drawn is not None:
                yield drawn


def _looks_at_the_end(report: ReportData, finding: Finding, evidence: CurveEvidence) -> bool:
    """Whether what is to be seen lies where the objective hardly changes any more: how it starts would squeeze that into a line."""
    objective = evidence.metrics == (report.spec.objective.metric,)
    return objective and not evidence.marks and finding.goal in ("steps", "efficiency")


def steps(report: ReportData) -> tuple[Step, ...]:
    """The next studies, each against the one before it."""
    specs = [_as_run(report), *(n.spec for n in report.next_studies)]
    return tuple(Step(f"next-{i}", n, diff_specs(specs[i - 1], n.spec)) for i, n in enumerate(report.next_studies, 1))


def _as_run(report: ReportData) -> StudySpec:
    """The study's spec with what it did where it did not say: the next study says it, which is no change."""
    spec, counts = report.spec, report.counts
    ended = max(counts.total - counts.running - counts.no_data, 1)
    following = report.next_studies[0].spec if report.next_studies else spec
    every = spec.evaluate_every or following.evaluate_every
    return spec.model_copy(update={"trials": spec.trials or ended, "evaluate_every": every})


# --- tables ---------------------------------------------------------------------------------------------------------------------


def ranked(report: ReportData) -> list[tuple[int, TrialRow]]:
    """(index, trial) of all trials, the best first, then those that failed."""
    sign = 1 if report.spec.objective.direction == "minimize" else -1
    return sorted(
        enumerate(report.figures.trials),
        key=lambda item: (not item[1].feasible, sign * (item[1].best or 0.0) if item[1].feasible else 0.0, item[0]),
    )


def table(report: ReportData) -> tuple[tuple[int, TrialRow], ...]:
    """(index, trial) of the trials to list, as ranked; trials that findings name are always in."""
    rows = ranked(report)
    # As many as a card names: a finding may be shown by thousands of trials.
    named = {t for f in report.findings for t in f.trials[:NAMED]}
    return (*rows[:MOST_ROWS], *(r for r in rows[MOST_ROWS:] if r[1].id in named))


def picked(report: ReportData) -> dict[str, Any] | None:
    """What the page needs to show the curves of any trial; None where no trial logged one."""
    drawn = report.figures.sketches
    if not drawn:
        return None
    rows = report.figures.by_id
    names = [clean(rows[t].name) for t in report.figures.best_trials]
    parts = f"Drawn are the least and the largest value in each of {drawn[0].columns} equal parts of the axis of steps"
    said = [f"{parts}, so that no spike is lost."]
    if any(s.beyond for s in drawn):
        said.append("Values beyond the vertical axis are cut off.")
    left_out = sum(c is None for c in drawn[0].curves)
    if left_out:
        said.append(f"The page holds the curves of the best {len(rows) - left_out:,} of {len(rows):,} trials.")
    return {
        "figures": [sketch_figure(s) for s in drawn],
        "legend": [
            Key("k-picked", "this trial"),
            *(Key(f"k-crv s{i}", shorten(n, 28), n) for i, n in enumerate(names)),
        ],
        "said": said,
    }


def sheet(report: ReportData) -> tuple[tuple[str, str], ...]:
    """The study sheet: (what, value), without what is not known."""
    spec, made = report.spec, report.provenance
    best = report.best
    said: list[tuple[str, str | None]] = [
        ("Study", clean(spec.study)),
        ("Goal", clean(spec.goal) or None),
        ("Round", str(spec.round)),
        ("Parent", clean(spec.parent) if spec.parent else None),
        ("Objective", f"{spec.objective.direction} {clean(spec.objective.metric)}"),
        ("Trials", _trial_counts(report)),
        ("Best value", f"{number(best.value)} ({clean(best.name)}{_at(report)})" if best else "none"),
        ("Training steps", f"{spec.max_train_steps:,}" if spec.max_train_steps else None),
        ("Evaluated every", f"{spec.evaluate_every:,} steps" if spec.evaluate_every else None),
        ("Run", _period(made.started, made.ended)),
        ("Logged values", f"{made.points:,}"),
        *((f"Best trial's {what}", clean(value)) for what, value in made.reproduce),
        ("Command", clean(made.command) if made.command else None),
    ]
    return tuple((what, value) for what, value in said if value is not None)


def _trial_counts(report: ReportData) -> str:
    counts = report.counts
    names = {"complete": "complete", "diverged": "diverged", "infeasible": "infeasible", "stopped": "stopped early"}
    names |= {"no_data": "without data", "running": "running"}
    parts = [f"{n:,} {word}" for status, word in names.items() if (n := getattr(counts, status))]
    return f"{counts.total:,}" + (f" ({', '.join(parts)})" if parts else "")


def _at(report: ReportData) -> str:
    best = report.best
    if best is None or best.step is None:
        return ""
    if not best.last_step:
        return f", step {best.step:,}"
    return f", step {best.step:,} of {best.last_step:,}"


def _period(started: float | None, ended: float | None) -> str | None:
    def day(seconds: float) -> str:
        try:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
        except (OverflowError, OSError, ValueError):
            return "?"

    if started is None:
        return None
    return f"{day(started)} to {day(ended)} UTC" if ended is not None else f"from {day(started)} UTC"


def space(report: ReportData) -> tuple[tuple[str, str, str, str, str], ...]:
    """(name, role, domain, best trial's value, where that is known from) of every hyperparameter, searched ones first."""
    best = report.best.params if report.best is not None else {}
    items = sorted(report.spec.parameters.items(), key=lambda item: not item[1].searched)
    return tuple(
        (n, p.role, describe(p), setting(best.get(n, p.value)), clean(report.inferred.get(n, "declared")))
        for n, p in items
    )


def inferred(report: ReportData) -> tuple[str, ...]:
    """What was not declared but inferred about the objective, one sentence each."""
    known = {
        "objective": f"Objective: {clean(report.spec.objective.metric)}",
        "direction": f"Direction: {report.spec.objective.direction}",
    }
    return tuple(
        f"{text}, inferred {_from(report.inferred[key])}." for key, text in known.items() if key in report.inferred
    )


def _from(reason: str) -> str:
    text = clean(reason).rstrip(".").removeprefix("inferred ")
    return text if text.startswith(("from", "because", "by", "as ")) else f"({text})"


def by_status(report: ReportData) -> dict[str, tuple[Verdict, ...]]:
    """The verdicts by status; a status without one is empty."""
    return {s: tuple(report.with_status(s)) for s in ("fired", "quiet", "not-assessed", "broken")}


def checks_in_words(report: ReportData) -> str:
    """What became of the checks that found nothing: `31 checks passed, 15 could not run.`"""
    statuses = by_status(report)
    parts = [count(len(statuses["quiet"]), "check") + " passed"]
    if missing := len(statuses["not-assessed"]):
        parts.append(f"{missing} could not run")
    if broken := [clean(v.rule) for v in statuses["broken"]]:
        parts.append(f"{len(broken)} broke ({', '.join(broken)})")
    return sentence(", ".join(parts))

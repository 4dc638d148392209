"""What a later report on the same study says that an earlier one did not."""

from __future__ import annotations

from advisor.model.finding import Finding
from advisor.model.words import clean, count, listed, number, sentence
from advisor.report.model import ReportData


def changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    """One sentence each: trials, the best value, findings, rules that can tell by now, and the next studies. Empty if nothing."""
    return (
        *_trials(before, after),
        *_best(before, after),
        *_findings(before, after),
        *_checks(before, after),
        *_next(before, after),
    )


def _trials(before: ReportData, after: ReportData) -> tuple[str, ...]:
    said = []
    known = {t.id: t for t in before.figures.trials}
    new = [t for t in after.figures.trials if t.id not in known]
    ended = [t for t in after.figures.trials if t.id in known and known[t.id].status == "running" != t.status]
    if new:
        said.append(
            f"{count(len(new), 'new trial')}: {after.counts.total:,} by now, {after.counts.running:,} of them running."
        )
    if ended:
        said.append(f"{count(len(ended), 'trial')} ended: {listed(f'{clean(t.name)} ({t.status})' for t in ended)}.")
    return tuple(said)


def _best(before: ReportData, after: ReportData) -> tuple[str, ...]:
    if after.best is None or (before.best is not None and before.best.value == after.best.value):
        return ()
    metric, now = clean(after.spec.objective.metric), f"{number(after.best.value)} ({clean(after.best.name)})"
    if before.best is None:
        return (f"The first result: {metric} {now}.",)
    return (f"Best {metric}: {now}, before {number(before.best.value)}.",)


_About = tuple[str, str | None, str | None]


def _about(finding: Finding) -> _About:
    """What makes two findings the same, whatever their numbers."""
    return finding.rule, finding.subject, finding.side


def _findings(before: ReportData, after: ReportData) -> tuple[str, ...]:
    old, new = ({_about(f): f for f in r.findings} for r in (before, after))
    appeared = [f"New finding: {sentence(clean(str(f.message)))}" for about, f in new.items() if about not in old]
    gone = [f"No longer found: {sentence(clean(str(f.message)))}" for about, f in old.items() if about not in new]
    return (*appeared, *gone)


def _checks(before: ReportData, after: ReportData) -> tuple[str, ...]:
    lacking = {v.rule for v in before.with_status("not-assessed")}
    told = [v.rule for v in after.verdicts if v.rule in lacking and v.status in ("fired", "quiet")]
    return (f"{count(len(told), 'check')} can tell by now: {listed(told)}.",) if told else ()


def _next(before: ReportData, after: ReportData) -> tuple[str, ...]:
    old, new = ({n.file: n.yaml for n in r.next_studies} for r in (before, after))
    changed = [f"next/{file}" for file, text in new.items() if old.get(file) != text]
    gone = [f"next/{file}" for file in old if file not in new]
    said = [f"Written anew: {listed(changed)}."] if changed else []
    return (*said, *([f"No longer there: {listed(gone)}."] if gone else []))

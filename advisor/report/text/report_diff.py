"""The differences between two reports on the same study, for `advisor watch`."""

from __future__ import annotations

from advisor.model.finding import Finding
from advisor.model.words import clean, count, listed, number, sentence
from advisor.report.model import ReportData


def describe_report_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    """Return one sentence for each difference in trials, best value, findings, checks and next studies."""
    return (
        *_trial_changes(before, after),
        *_best_value_changes(before, after),
        *_finding_changes(before, after),
        *_check_changes(before, after),
        *_next_study_changes(before, after),
    )


def _trial_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    lines = []
    known = before.figures.by_id
    new = [t for t in after.figures.trials if t.id not in known]
    ended = [t for t in after.figures.trials if t.id in known and known[t.id].status == "running" != t.status]
    if new:
        lines.append(f"{count(len(new), 'new trial')} ({after.counts.total:,} in total, {after.counts.running:,} running).")
    if ended:
        lines.append(f"{count(len(ended), 'trial')} ended: {listed(f'{clean(t.name)} ({t.status})' for t in ended)}.")
    return tuple(lines)


def _best_value_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    if after.best is None or (before.best is not None and before.best.value == after.best.value):
        return ()
    metric, now = clean(after.spec.objective.metric), f"{number(after.best.value)} ({clean(after.best.name)})"
    if before.best is None:
        return (f"First result: {metric} {now}.",)
    return (f"Best {metric}: {now}, previously {number(before.best.value)}.",)


def _finding_key(finding: Finding) -> tuple[str, str | None, str | None]:
    """Return a key that is equal for the same finding in different reports, even if its numbers differ."""
    return finding.rule, finding.subject, finding.side


def _finding_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    old, new = ({_finding_key(f): sentence(clean(str(f.message))) for f in r.findings} for r in (before, after))
    appeared = [f"New finding: {text}" for identity, text in new.items() if identity not in old]
    resolved = [f"Resolved: {text}" for identity, text in old.items() if identity not in new]
    return (*appeared, *resolved)


def _check_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    unknown = {v.rule for v in before.verdicts_with_status("not-assessed")}
    assessed = [v.rule for v in after.verdicts if v.rule in unknown and v.status in ("fired", "quiet")]
    if not assessed:
        return ()
    return (f"{count(len(assessed), 'more check has', 'more checks have')} enough data: {listed(assessed)}.",)


def _next_study_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    old, new = ({n.file: n.yaml for n in r.next_studies} for r in (before, after))
    changed = [f"next/{file}" for file, text in new.items() if old.get(file) != text]
    removed = [f"next/{file}" for file in old if file not in new]
    lines = [f"Updated: {listed(changed)}."] if changed else []
    return (*lines, *([f"Removed: {listed(removed)}."] if removed else []))

"""The differences between two reports on the same study, for `advisor watch`."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.model.words import clean, count, listed, number, sentence
from advisor.report.model import ReportData


def describe_report_changes(before: ReportData, after: ReportData) -> tuple[str, ...]:
    """Return one sentence for each difference in trials, best value, findings, checks and next studies."""
    return (*_trial_and_value_changes(before, after), *_finding_and_check_changes(before, after))


def _trial_and_value_changes(before: ReportData, after: ReportData) -> Iterator[str]:
    known, best = before.figures.by_id, after.best
    new = [t for t in after.figures.trials if t.id not in known]
    ended = [t for t in after.figures.trials if t.id in known and known[t.id].status == "running" != t.status]
    if new:
        yield f"{count(len(new), 'new trial')} ({after.counts.total:,} in total, {after.counts.running:,} running)."
    if ended:
        yield f"{count(len(ended), 'trial')} ended: {listed(f'{clean(t.name)} ({t.status})' for t in ended)}."
    if best is not None and (before.best is None or before.best.value != best.value):
        metric, now = clean(after.spec.objective.metric), f"{number(best.value)} ({clean(best.name)})"
        yield (
            f"First result: {metric} {now}."
            if before.best is None
            else (f"Best {metric}: {now}, previously {number(before.best.value)}.")
        )


def _finding_and_check_changes(before: ReportData, after: ReportData) -> Iterator[str]:
    # The key is equal for the same finding in both reports, even if its numbers differ.
    old, new = ({(f.rule, f.subject, f.side): sentence(clean(str(f.message))) for f in r.findings} for r in (before, after))
    yield from (f"New finding: {text}" for key, text in new.items() if key not in old)
    yield from (f"Resolved: {text}" for key, text in old.items() if key not in new)
    unknown = {v.rule for v in before.verdicts_with_status("not-assessed")}
    if assessed := [v.rule for v in after.verdicts if v.rule in unknown and v.status in ("fired", "quiet")]:
        yield f"{count(len(assessed), 'more check has', 'more checks have')} enough data: {listed(assessed)}."
    files, texts = ({n.file: n.yaml for n in r.next_studies} for r in (before, after))
    if changed := [f"next/{file}" for file, text in texts.items() if files.get(file) != text]:
        yield f"Updated: {listed(changed)}."
    if removed := [f"next/{file}" for file in files if file not in texts]:
        yield f"Removed: {listed(removed)}."

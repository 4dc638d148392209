"""Tables that describe the study: facts about it, and its search space."""

from __future__ import annotations

from datetime import UTC, datetime

from advisor.model.spec import SAME_IN_ALL_TRIALS
from advisor.model.words import clean, number, setting
from advisor.report.model import ReportData
from advisor.report.text.study_diff import describe_domain


def study_description_rows(report: ReportData) -> tuple[tuple[str, str], ...]:
    """Return (label, value) rows of the study's description, without unknown values."""
    spec, made = report.spec, report.provenance
    best, counts = report.best, report.counts
    by_status, at = counts.status_counts_text(), ""
    if best is not None and best.step is not None:
        at = f", step {best.step:,}" + (f" of {best.last_step:,}" if best.last_step else "")
    rows: list[tuple[str, str | None]] = [
        ("Study", clean(spec.study)),
        ("Goal", clean(spec.goal) or None),
        ("Round", str(spec.round)),
        ("Parent", clean(spec.parent) if spec.parent else None),
        ("Objective", f"{spec.objective.direction} {clean(spec.objective.metric)}"),
        ("Trials", f"{counts.total:,}" + (f" ({by_status})" if by_status else "")),
        ("Best value", f"{number(best.value)} ({clean(best.name)}{at})" if best else "none"),
        ("Training steps", f"{spec.max_train_steps:,}" if spec.max_train_steps else None),
        ("Evaluated every", f"{spec.evaluate_every:,} steps" if spec.evaluate_every else None),
        ("Period", _study_period_text(made.started, made.ended)),
        ("Logged values", f"{made.points:,}"),
        *((f"Best trial's {label}", clean(value)) for label, value in made.reproduce),
        ("Command", clean(made.command) if made.command else None),
    ]
    return tuple((label, value) for label, value in rows if value is not None)


def _study_period_text(started: float | None, ended: float | None) -> str | None:
    def day(seconds: float) -> str:
        try:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
        except (OverflowError, OSError, ValueError):
            return "?"

    if not started:  # 0 means that the store does not know the start time
        return None
    return f"{day(started)} to {day(ended)} UTC" if ended is not None else f"from {day(started)} UTC"


def search_space_rows(report: ReportData) -> tuple[tuple[str, str, str, str, str], ...]:
    """Return (name, role, domain, best trial's value, source) of every hyperparameter. Searched hyperparameters come first."""
    best_params = report.best.params if report.best is not None else {}
    sorted_parameters = sorted(report.spec.parameters.items(), key=lambda item: not item[1].searched)
    return tuple(
        (
            n,
            p.role,
            describe_domain(p),
            setting(best_params.get(n, p.value)),
            clean(report.inferred.get(n) or (SAME_IN_ALL_TRIALS if p.why == SAME_IN_ALL_TRIALS else "declared")),
        )
        for n, p in sorted_parameters
    )

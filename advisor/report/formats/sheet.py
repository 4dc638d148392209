"""Tables that describe the study: facts about it, and its search space."""

from __future__ import annotations

from datetime import UTC, datetime

from advisor.model.spec import SAME_IN_ALL_TRIALS, Parameter
from advisor.model.words import clean, number, setting
from advisor.report.model import ReportData
from advisor.report.text.study_diff import describe_domain


def study_description_rows(report: ReportData) -> tuple[tuple[str, str], ...]:
    """Return (label, value) rows of the study's description, without unknown values."""
    spec, made = report.spec, report.provenance
    best = report.best
    rows: list[tuple[str, str | None]] = [
        ("Study", clean(spec.study)),
        ("Goal", clean(spec.goal) or None),
        ("Round", str(spec.round)),
        ("Parent", clean(spec.parent) if spec.parent else None),
        ("Objective", f"{spec.objective.direction} {clean(spec.objective.metric)}"),
        ("Trials", _trial_counts_text(report)),
        ("Best value", f"{number(best.value)} ({clean(best.name)}{_best_step_text(report)})" if best else "none"),
        ("Training steps", f"{spec.max_train_steps:,}" if spec.max_train_steps else None),
        ("Evaluated every", f"{spec.evaluate_every:,} steps" if spec.evaluate_every else None),
        ("Period", _study_period_text(made.started, made.ended)),
        ("Logged values", f"{made.points:,}"),
        *((f"Best trial's {label}", clean(value)) for label, value in made.reproduce),
        ("Command", clean(made.command) if made.command else None),
    ]
    return tuple((label, value) for label, value in rows if value is not None)


def _trial_counts_text(report: ReportData) -> str:
    counts = report.counts
    parts = counts.status_counts_text()
    return f"{counts.total:,}" + (f" ({parts})" if parts else "")


def _best_step_text(report: ReportData) -> str:
    best = report.best
    if best is None or best.step is None:
        return ""
    if not best.last_step:
        return f", step {best.step:,}"
    return f", step {best.step:,} of {best.last_step:,}"


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
    best = report.best.params if report.best is not None else {}
    items = sorted(report.spec.parameters.items(), key=lambda item: not item[1].searched)
    return tuple(
        (n, p.role, describe_domain(p), setting(best.get(n, p.value)), clean(report.inferred.get(n) or _parameter_source(p)))
        for n, p in items
    )


def _parameter_source(parameter: Parameter) -> str:
    """Return the source of a hyperparameter's range if the range was not inferred."""
    return SAME_IN_ALL_TRIALS if parameter.why == SAME_IN_ALL_TRIALS else "declared"

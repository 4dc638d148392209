"""The verdict in one sentence, and what is known of the best value: true of every study, also of one without a single result."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.finding import Finding, Goal
from advisor.model.spec_yaml import share
from advisor.model.words import capital, clean, count, listed, number, setting, shorten, spelled
from advisor.report.model import ReportData
from advisor.report.text.spec_diff import describe

_ABOUT: dict[Goal, str] = {
    "pipeline": "the training pipeline",
    "stability": "unstable training",
    "infeasible": "settings that cannot be trained",
    "boundary": "the searched ranges",
    "sampling": "how the space is sampled",
    "steps": "the length of training",
    "regularisation": "overfitting",
    "efficiency": "how much each trial tells",
    "exploitation": "how to use the result",
}


def headline(report: ReportData) -> str:
    """The verdict on the study, one sentence."""
    counts = report.counts
    if counts.total == 0:
        return "This study has no trials yet."
    if counts.total == counts.running + counts.no_data:
        if counts.running == 0:
            return f"{capital(_of_all(counts.total, 'logged a value of the objective', none=True))}."
        return "No trial has ended yet, so there is nothing to judge."
    critical = [f for f in report.heads if f.severity == "critical"]
    if counts.feasible == 0:
        return "No trial gave a result to judge" + (f": {_topics(critical)} must be mended first." if critical else ".")
    if critical:
        verb = "Fix" if len(critical) > 1 else "Fix one problem"
        what = f" {spelled(len(critical), 'problem')}" if len(critical) > 1 else ""
        return f"{verb}{what} before running more trials: {_topics(critical)}."
    warnings = [f for f in report.heads if f.severity == "warning"]
    if warnings:
        words = spelled(len(warnings), "finding is", "findings are")
        return f"Nothing has to be fixed first, and {words} worth acting on: {_topics(warnings)}."
    return _quiet(report)


def _quiet(report: ReportData) -> str:
    passed = sum(1 for _ in report.with_status("quiet"))
    ran = passed + sum(1 for _ in report.with_status("fired"))
    unknown = len(report.verdicts) - ran
    notes = len(report.heads)
    if report.counts.feasible == 1 and not notes:
        return "One trial has a result: too few to judge a search by."
    by = f"No problem was found by the {spelled(ran, 'check')} that could run"
    if notes:
        worth = f"{spelled(notes, 'remark is', 'remarks are')} worth a look: {_topics(report.heads)}"
        return f"{by}, and {worth}" + (f"; {count(unknown, 'check')} could not run." if unknown else ".")
    if passed == 0:
        return "Nothing could be checked with what this study logged." if report.verdicts else "Nothing was checked."
    return by + (f"; {unknown} could not." if unknown else ".")


def _of_all(total: int, did: str, *, none: bool) -> str:
    return f"none of the {total} trials {did}" if total > 1 and none else f"the one trial has not {did}"


def _topics(findings: Sequence[Finding]) -> str:
    """What findings are about, the most important first: `unstable training and the range of learning_rate`."""
    topics: list[str] = []
    for goal in dict.fromkeys(f.goal for f in findings):
        subjects = list(dict.fromkeys(f.subject for f in findings if f.goal == goal and f.subject))
        named = goal == "boundary" and bool(subjects)
        names = listed([shorten(clean(s), 30) for s in subjects], 2)
        topics.append(f"the {'range' if len(subjects) == 1 else 'ranges'} of {names}" if named else _ABOUT[goal])
    return listed(topics)


def best_sentence(report: ReportData) -> str:
    """The best value and where it was found; what failed."""
    best, counts = report.best, report.counts
    metric = shorten(clean(report.spec.objective.metric), 60)
    failed = _failed(report)
    if best is None:
        return f"There is no value of {metric} to compare. {failed}".strip()
    where = ", ".join(f"{shorten(clean(n), 30)} {shorten(setting(v, 3), 30)}" for n, v in list(best.params.items())[:4])
    where += f" and {len(best.params) - 4} more" if len(best.params) > 4 else ""
    of = "the only trial with a result" if counts.feasible == 1 else f"{count(counts.feasible, 'trial')} with a result"
    start = f"The best {metric} is {number(best.value)}"
    start += f", in {of}" if counts.feasible == 1 else f", the {_extreme(report)} of {of}"
    return f"{start}{', at ' + where if where else ''}. {failed}".strip()


def _extreme(report: ReportData) -> str:
    return "lowest" if report.spec.objective.direction == "minimize" else "highest"


def _failed(report: ReportData) -> str:
    counts = report.counts
    parts = []
    # Not "failed": a rule may count trials among the failed that did end with a result, which learned nothing.
    if counts.failed and counts.failed == counts.total:
        parts.append("the one trial failed" if counts.total == 1 else f"all {counts.total:,} trials failed")
    elif counts.failed:
        parts.append(f"{counts.failed:,} of {counts.total:,} trials ended without a usable result")
    if counts.running:
        parts.append(f"{spelled(counts.running, 'trial is', 'trials are')} still running")
    if counts.no_data:
        parts.append(f"{spelled(counts.no_data, 'trial')} logged no objective")
    return capital(", ".join(parts)) + "." if parts else ""


def certainty(report: ReportData) -> str:
    """How sure the best value is: what repeats say, else how close the next trials come."""
    best, spread = report.best, report.spread
    if best is None:
        return ""
    values = _ranked_values(report)
    lead = abs(values[1] - values[0]) if len(values) > 1 else None
    if spread is not None:
        noise = (
            f"Repeating a setting moves the result by {number(spread.deviation, 2)} "
            f"(standard deviation, {spread.trials} trials in {count(spread.settings, 'setting')})"
        )
        if lead is None:
            return noise + "."
        luck = ", less than that: which of them is better may be luck" if lead < spread.deviation else ""
        return f"{noise}; the best trial leads the next by {number(lead, 2)}{luck}."
    if lead is None:
        return "One trial says nothing about how much of its result is luck."
    return (
        f"It leads the next trial by {number(lead, 2)}; no setting was repeated with another seed, "
        "so how much of that is luck is not known."
    )


def _ranked_values(report: ReportData) -> list[float]:
    values = [t.best for t in report.figures.trials if t.feasible and t.best is not None]
    return sorted(values, reverse=report.spec.objective.direction == "maximize")


def key_figures(report: ReportData) -> tuple[tuple[str, str, str], ...]:
    """(what, value, note) of the five figures under the verdict."""
    counts, best = report.counts, report.best
    values = _ranked_values(report)
    if report.spread is not None:
        note = f"repeats vary by {number(report.spread.deviation, 2)}"
    elif len(values) > 1:
        note = f"next best {number(values[1])}"
    else:
        note = "nothing to compare with" if best else "no trial with a result"
    searched = len(report.spec.searched)
    checks = len(report.verdicts)
    passed, found = (sum(v.status == s for v in report.verdicts) for s in ("quiet", "fired"))
    return (
        (f"Best {shorten(clean(report.spec.objective.metric), 36)}", number(best.value if best else None), note),
        (
            "Trials",
            f"{counts.total - counts.earlier:,}" + (f" + {counts.earlier:,}" if counts.earlier else ""),
            f"{counts.earlier:,} of earlier rounds"
            if counts.earlier
            else f"{counts.failed:,} without a result"
            if counts.failed
            else f"{counts.feasible:,} with a result",
        ),
        ("Hyperparameters searched", f"{searched}", _space_note(report, searched)),
        _best_step_figure(report),
        ("Checks run", f"{passed + found} of {checks}", f"{passed} passed, {found} did not"),
    )


def _space_note(report: ReportData, searched: int) -> str:
    if not report.next_studies:
        return "none is varied" if searched == 0 else "in this study"
    old, new = report.spec.parameters, report.next_studies[0].spec
    changed = sum(n not in new.parameters or describe(p) != describe(new.parameters[n]) for n, p in old.items())
    added = len(new.parameters.keys() - old.keys())
    parts = [f"{changed} to change" if changed else "", f"{added} to add" if added else ""]
    return ", ".join(p for p in parts if p) or "none to change"


def _best_step_figure(report: ReportData) -> tuple[str, str, str]:
    positions = best_positions(report)
    if not positions:
        return ("Best step", number(None), "unknown")
    middle = sorted(positions)[len(positions) // 2]
    if len(positions) > 1:
        return ("Best step, median trial", share(middle), "of its training")
    return ("Best step", share(middle), "of the training")


def best_positions(report: ReportData) -> list[float]:
    """Where in their training the usable trials are best, 0 to 1; trials with one evaluation say nothing."""
    rows = [t for t in report.figures.trials if t.feasible and t.best_step is not None and t.last_step]
    several = [t for t in rows if t.evaluations > 1]
    return [t.best_step / t.last_step for t in several if t.best_step is not None and t.last_step]

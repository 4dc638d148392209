"""All plots by heading, whether or not a rule had something to say, and which ones there are not."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.evidence import AxisEvidence, CurveEvidence, HistogramEvidence, Line
from advisor.model.spec_yaml import share
from advisor.model.words import clean, count, number, setting
from advisor.report.figures import Figure
from advisor.report.figures.axis import MOST_AXES, axis_figure
from advisor.report.figures.batch import speed_figure, target_figures
from advisor.report.figures.best_of import best_of_figure
from advisor.report.figures.closeup import close_up_figure
from advisor.report.figures.curves import curve_figures
from advisor.report.figures.histogram import best_step_figure, histogram_figure
from advisor.report.figures.importance import importance_figures
from advisor.report.figures.isolation import isolation_figure
from advisor.report.figures.parallel import parallel_figure
from advisor.report.model import NormHistogram, ReportData
from advisor.report.text.headline import best_positions
from advisor.report.text.spec_diff import describe


@dataclass(frozen=True)
class Group:
    """Plots under one heading."""

    title: str
    figures: tuple[Figure, ...]
    open: bool = False
    note: str | None = None


def groups(report: ReportData) -> tuple[Group, ...]:
    """All plots by heading; headings without a plot are left out, and what is missing is among `gaps`."""
    made = (
        _axes(report),
        _isolations(report),
        _importance(report),
        _parallel(report),
        _training(report),
        _just_above(report),
        _gradients(report),
        _close_ups(report),
        _best_steps(report),
        _best_of(report),
        _batch_size(report),
    )
    return tuple(g for g in made if g.figures)


def gaps(report: ReportData) -> tuple[str, ...]:
    """Which plots there are not, and why, one sentence each."""
    shown = report.figures
    said = []
    if not report.spec.searched:
        said.append("No hyperparameter is varied, so there is no plot of the objective against one.")
    elif shown.importances is None:
        said.append("Too few settings ended to tell how much each hyperparameter matters.")
    if not shown.curves:
        said.append("No trial with a result logged a curve.")
    if shown.grad_norm is None:
        said.append("No gradient norm was logged, so it cannot be drawn; `TuningLogger` logs it.")
    if not best_positions(report):
        said.append("No trial has more than one evaluation, so the best step is not known.")
    if shown.best_of is None:
        said.append("Too few trials ended to tell what fewer of them would have found.")
    if not shown.speeds:
        said.append("Throughput is not drawn against the batch size: fewer than two sizes have one that is known.")
    if shown.to_target is None:
        said.append(
            "Time to a target is not drawn: no two batch sizes, each with a tuned learning rate, can be compared."
        )
    return tuple(said)


# --- the objective against hyperparameters ----------------------------------------------------------------------------------------


def _axes(report: ReportData) -> Group:
    names = list(report.spec.searched)
    shown = names[:MOST_AXES]
    figures = tuple(axis_figure(report, _axis_evidence(report, n), own=True) for n in shown)
    note = f"The first {MOST_AXES} of {len(names)} hyperparameters are drawn." if len(names) > MOST_AXES else None
    return Group("Objective against each hyperparameter", figures, open=True, note=note)


def _axis_evidence(report: ReportData, name: str) -> AxisEvidence:
    old = report.spec.parameters[name]
    new = report.next_studies[0].spec.parameters.get(name) if report.next_studies else None
    low = high = None
    lines: tuple[Line, ...] = ()
    if new is not None and new.numeric and (new.low, new.high) != (old.low, old.high):
        low, high = new.low, new.high
    elif new is not None and new.role == "fixed" and isinstance(new.value, int | float):
        lines = (Line(value=new.value, label=f"next: fixed at {setting(new.value)}"),)
    best = report.best
    at = f"; the best trial has {setting(best.params[name])}" if best is not None and name in best.params else ""
    caption = f"{clean(name)}: {describe(old)}{at}."
    return AxisEvidence(parameter=name, caption=caption, next_low=low, next_high=high, lines=lines)


def _isolations(report: ReportData) -> Group:
    shown = report.figures.isolations[:MOST_AXES]
    figures = tuple(isolation_figure(report, s) for s in shown)
    note = "The best trial for each value, all other hyperparameters tuned: what is left is what the value itself does."
    return Group("Best trial for each value (isolation plots)", figures, note=note)


def _importance(report: ReportData) -> Group:
    found = report.figures.importances
    return Group("What matters", tuple(importance_figures(found)) if found is not None else ())


def _parallel(report: ReportData) -> Group:
    drawn = parallel_figure(report)
    return Group("All trials in parallel coordinates", (drawn,) if drawn is not None else ())


# --- curves -----------------------------------------------------------------------------------------------------------------------


def _training(report: ReportData) -> Group:
    figures: list[Figure] = []
    chosen = [s for s in report.figures.curves if s.signal not in (None, "grad_norm")]
    for s in chosen:
        caption = f"{clean(s.metric)} of the best {count(len(report.figures.best_trials), 'trial')}."
        # The best trials differ at their end; how all of them start would squeeze that into a line.
        figures += _curves_of_best(report, s.metric, caption, late=s.signal == "objective")
    return Group("Training curves of the best trials", tuple(figures))


def _curves_of_best(
    report: ReportData, metric: str, caption: str, lines: tuple[Line, ...] = (), *, late: bool = False
) -> list[Figure]:
    evidence = CurveEvidence(metrics=(metric,), caption=caption, trials=report.figures.best_trials, lines=lines)
    return curve_figures(report, evidence, late=late)


def _just_above(report: ReportData) -> Group:
    above = report.figures.just_above
    if above is None:
        return Group("Curves just above the best learning rate", ())
    ends = setting(above.rates[0], 3), setting(above.rates[-1], 3)
    fate = f"{above.failed} of them failed" if above.failed else "all of them have a result"
    rates = f"({ends[0]} to {ends[1]})" if ends[0] != ends[1] else f"({ends[0]})"
    trials = count(len(above.trials), "trial")
    caption = f"The {trials} with {clean(above.parameter)} next above the best trial's {setting(above.best, 3)} {rates}: {fate}."
    evidence = CurveEvidence(metrics=(above.metric,), caption=caption, trials=above.trials)
    return Group("Curves just above the best learning rate", tuple(curve_figures(report, evidence)))


def _gradients(report: ReportData) -> Group:
    histogram = report.figures.grad_norm
    if histogram is None:
        return Group("Gradient norm", ())
    figures: list[Figure] = []
    marks = [Line(value=histogram.p90, label=f"90th percentile {number(histogram.p90, 3)}")]
    if histogram.clip is not None:
        marks.append(Line(value=histogram.clip, label=f"clipped from {number(histogram.clip, 3)}"))
    for s in report.figures.curves:
        if s.signal == "grad_norm":
            caption = f"Gradient norm of the best {count(histogram.trials, 'trial')}.{_clipped(histogram)}"
            figures += _curves_of_best(report, s.metric, caption, tuple(marks))
    caption = f"Nine of ten gradient norms of the best {count(histogram.trials, 'trial')} are below {number(histogram.p90, 3)}."
    if histogram.left_out:
        caption += f" {histogram.left_out:,} that were zero or not finite are left out."
    evidence = HistogramEvidence(
        quantity="gradient norm",
        caption=caption + _clipped(histogram),
        edges=histogram.edges,
        counts=histogram.counts,
        lines=tuple(marks),
        log=histogram.log,
    )
    drawn = histogram_figure(evidence)
    return Group("Gradient norm", (*figures, *((drawn,) if drawn else ())))


def _clipped(histogram: NormHistogram) -> str:
    if histogram.clip is None:
        return ""
    part = "" if histogram.clipped is None else f", which changes {share(histogram.clipped)} of their updates"
    return f" They clip at {number(histogram.clip, 3)}{part}."


def _close_ups(report: ReportData) -> Group:
    figures = tuple(close_up_figure(report, c) for c in report.figures.close_ups)
    note = "Every logged point around the steps that findings about stability point at."
    return Group("Close-ups of spikes", figures, note=note)


# --- the study as a whole ---------------------------------------------------------------------------------------------------------


def _best_steps(report: ReportData) -> Group:
    positions = best_positions(report)
    figures = (best_step_figure(positions),) if positions else ()
    return Group("Best step", figures)


def _best_of(report: ReportData) -> Group:
    found = report.figures.best_of
    return Group("More or fewer trials", (best_of_figure(report, found),) if found is not None else ())


def _batch_size(report: ReportData) -> Group:
    figures = [speed_figure(report.figures.speeds)] if report.figures.speeds else []
    race = report.figures.to_target
    if race is not None and len(race.sizes) > 1:
        figures += target_figures(race, report.spec.objective.metric)
    return Group("Batch size", tuple(figures))

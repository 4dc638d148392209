"""All plots of a report, grouped under headings, and the reasons for missing plots."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.evidence import AxisEvidence, CurveEvidence, HistogramEvidence, Line
from advisor.model.message import Count, Message, Name, Number, Percent, Setting, say
from advisor.model.words import best_trials_phrase, number, setting
from advisor.report.figures import Figure
from advisor.report.figures.axis import MAX_AXIS_PLOTS, axis_plot_figure
from advisor.report.figures.curves import curve_close_up_figure, training_curve_figures
from advisor.report.figures.histogram import best_step_histogram, histogram_figure
from advisor.report.figures.isolation import isolation_plot_figure
from advisor.report.figures.overview import best_of_n_figure, importance_figures, throughput_figure, training_to_target_figures
from advisor.report.figures.parallel import parallel_coordinates_figure
from advisor.report.model import ReportData
from advisor.report.plot_data.model import GradientNormHistogram
from advisor.report.text.best_value import best_step_positions
from advisor.report.text.study_diff import describe_domain


@dataclass(frozen=True)
class PlotGroup:
    title: str
    figures: tuple[Figure, ...]
    starts_open: bool = False
    note: str | None = None


def plot_groups(report: ReportData) -> tuple[PlotGroup, ...]:
    figures, positions = report.figures, best_step_positions(report)
    parallel = parallel_coordinates_figure(report)
    groups = (
        _axis_plot_group(report),
        PlotGroup(
            "Best trial for each value (isolation plots)",
            tuple(isolation_plot_figure(report, s) for s in figures.isolations[:MAX_AXIS_PLOTS]),
            note="The best trial for each value. The more trials a value has, the better its best trial shows the value's effect.",
        ),
        PlotGroup("Importance", tuple(importance_figures(figures.importances)) if figures.importances else ()),
        PlotGroup("All trials in parallel coordinates", (parallel,) if parallel else ()),
        _training_curve_group(report),
        PlotGroup("Curves just above the best learning rate", _higher_rate_figures(report)),
        PlotGroup("Gradient norm", _gradient_norm_figures(report)),
        PlotGroup(
            "Close-ups of spikes",
            tuple(curve_close_up_figure(report, c) for c in figures.close_ups),
            note="Every logged point near the steps at which training was unstable.",
        ),
        PlotGroup("Best step", (best_step_histogram(positions),) if positions else ()),
        PlotGroup("More or fewer trials", (best_of_n_figure(report, figures.best_of_n),) if figures.best_of_n else ()),
        PlotGroup("Batch size", _batch_size_figures(report)),
    )
    return tuple(g for g in groups if g.figures)


def missing_plot_sentences(report: ReportData) -> tuple[str, ...]:
    figures = report.figures
    importance = (
        "No importance is shown: too few settings ended."
        if report.spec.searched
        else "No hyperparameter is varied, so there is no plot of the objective against a hyperparameter."
    )
    reasons = {
        importance: figures.importances,
        "No curve is shown: no trial with a result logged a curve.": figures.curves,
        "No gradient norm is shown: none was logged. `TuningLogger` logs this metric.": figures.gradient_norms,
        "No best step is shown: no trial has more than one evaluation.": best_step_positions(report),
        "The gain from more trials is not shown: too few settings ended.": figures.best_of_n,
        "Throughput is not shown: its value is known for fewer than two batch sizes.": figures.throughputs,
        "Training to a target is not shown: fewer than two batch sizes have a tuned learning rate.": figures.training_to_target,
    }
    return tuple(reason for reason, data in reasons.items() if not data)


def _axis_plot_group(report: ReportData) -> PlotGroup:
    names = list(report.spec.searched)
    figures = tuple(axis_plot_figure(report, _axis_evidence(report, n), own=True) for n in names[:MAX_AXIS_PLOTS])
    note = f"The first {MAX_AXIS_PLOTS} of {len(names)} hyperparameters are drawn." if len(names) > MAX_AXIS_PLOTS else None
    return PlotGroup("Objective against each hyperparameter", figures, starts_open=True, note=note)


def _axis_evidence(report: ReportData, name: str) -> AxisEvidence:
    old = report.spec.parameters[name]
    new = report.next_studies[0].spec.parameters.get(name) if report.next_studies else None
    next_low = next_high = None
    lines: tuple[Line, ...] = ()
    if new is not None and new.numeric and (new.low, new.high) != (old.low, old.high):
        next_low, next_high = new.low, new.high
    elif new is not None and new.role == "fixed" and isinstance(new.value, int | float):
        lines = (Line(value=new.value, label=f"next: fixed at {setting(new.value)}"),)
    params = report.best.params if report.best is not None else {}
    at = say("; the best trial has {value}", value=Setting(params[name])) if name in params else ""
    caption = say("{name}: {domain}{at}.", name=Name(name), domain=describe_domain(old), at=at)
    return AxisEvidence(parameter=name, caption=caption, next_low=next_low, next_high=next_high, lines=lines)


def _training_curve_group(report: ReportData) -> PlotGroup:
    figures: list[Figure] = []
    trials = best_trials_phrase(len(report.figures.best_trials))
    for s in report.figures.curves:
        if s.signal not in (None, "grad_norm"):
            caption = say("{metric} of the {trials}.", metric=Name(s.metric), trials=trials)
            # The training curves of the best trials differ only near their end. An axis that includes the first values would
            # flatten these differences.
            figures += _best_trial_curve_figures(report, s.metric, caption, late=s.signal == "objective")
    return PlotGroup("Training curves of the best trials", tuple(figures))


def _best_trial_curve_figures(
    report: ReportData, metric: str, caption: Message, lines: tuple[Line, ...] = (), *, late: bool = False
) -> list[Figure]:
    evidence = CurveEvidence(metrics=(metric,), caption=caption, trials=report.figures.best_trials, lines=lines)
    return training_curve_figures(report, evidence, late=late)


def _higher_rate_figures(report: ReportData) -> tuple[Figure, ...]:
    higher = report.figures.higher_rate_trials
    if higher is None:
        return ()
    low, high = setting(higher.rates[0], 3), setting(higher.rates[-1], 3)
    caption = say(
        "The next {settings} with {name} above the best trial's {best} ({rates}): {outcome}.",
        settings=Count(len(higher.trials), "setting") if len(higher.trials) > 1 else "setting",
        name=Name(higher.parameter),
        best=Number(higher.best),
        rates=f"{low} to {high}" if low != high else low,
        outcome=_failure_count_clause(higher.failed_count, len(higher.trials)),
    )
    return tuple(training_curve_figures(report, CurveEvidence(metrics=(higher.metric,), caption=caption, trials=higher.trials)))


def _failure_count_clause(failed: int, total: int) -> str:
    if total == 1:
        return "it failed" if failed else "it has a result"
    if 0 < failed < total:
        return f"{failed} of {total} failed"
    subject = "both" if total == 2 else "all"
    return f"{subject} failed" if failed else f"{subject} have a result"


def _gradient_norm_figures(report: ReportData) -> tuple[Figure, ...]:
    histogram = report.figures.gradient_norms
    if histogram is None:
        return ()
    p90, trials = number(histogram.p90, 3), best_trials_phrase(histogram.trials)
    lines = [Line(value=histogram.p90, label=f"90th percentile {p90}")]
    if histogram.clipping_threshold is not None:
        lines.append(Line(value=histogram.clipping_threshold, label=f"clipped above {number(histogram.clipping_threshold, 3)}"))
    figures: list[Figure] = []
    clipping = _gradient_clipping_sentence(histogram)
    for s in report.figures.curves:
        if s.signal == "grad_norm":
            caption = say("Gradient norm of the {trials}.{clipping}", trials=trials, clipping=clipping)
            figures += _best_trial_curve_figures(report, s.metric, caption, tuple(lines))
    omitted = f" {histogram.omitted_count:,} values that are zero or not finite are omitted." if histogram.omitted_count else ""
    evidence = HistogramEvidence(
        quantity="gradient norm",
        caption=say(
            "Over all steps, 90 % of the gradient norms of the {trials} are below {p90}.{omitted}{clipping}",
            trials=trials,
            p90=p90,
            omitted=omitted,
            clipping=clipping,
        ),
        edges=histogram.edges,
        counts=histogram.counts,
        lines=tuple(lines),
        log=histogram.log,
    )
    figure = histogram_figure(evidence)
    return (*figures, *((figure,) if figure else ()))


def _gradient_clipping_sentence(histogram: GradientNormHistogram) -> str:
    if histogram.clipping_threshold is None:
        return ""
    share = "" if histogram.clipped_share is None else f", which changes {Percent(histogram.clipped_share)} of their updates"
    return f" The trials clip at a norm of {number(histogram.clipping_threshold, 3)}{share}."


def _batch_size_figures(report: ReportData) -> tuple[Figure, ...]:
    speeds, result = report.figures.throughputs, report.figures.training_to_target
    figures = [throughput_figure(speeds)] if speeds else []
    if result is not None and len(result.sizes) > 1:
        figures += training_to_target_figures(result, report.spec.objective.metric)
    return tuple(figures)

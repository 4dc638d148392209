"""Builds a report from a study, the verdicts of the rules, and the proposed next studies."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import scipy

from advisor import __version__
from advisor.computed.decision import repeats
from advisor.computed.pipeline import checkpoints, validation
from advisor.computed.pipeline.reproduction import reproduction_facts
from advisor.computed.space import rerun, settings
from advisor.engine.guard.hindsight import hindsight
from advisor.engine.measured import describe_measured_rates, measured_counts
from advisor.engine.rule import Rule
from advisor.history.model import History
from advisor.model.evidence import CurveEvidence
from advisor.model.finding import Verdict
from advisor.model.message import say
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import format_study_file
from advisor.model.study import Signal, Study, Trial
from advisor.model.words import replace_surrogates
from advisor.planning import Deferred, budget, file_names, price
from advisor.report.model import Best, NextStudy, Provenance, RepeatSpread, RuleInfo, SettingMean, TrialCounts
from advisor.report.plot_data import isolations, overview
from advisor.report.plot_data.compact_curves import encode_trial_curves
from advisor.report.plot_data.curves import gradient_norm_histogram, make_curve_set, signals_to_show
from advisor.report.plot_data.model import FigureData, HigherRateTrials, MetricCurveSet, TrialRow
from advisor.report.report import Report
from advisor.report.running import running_trials, stopped_trials
from advisor.report.text.run_command import has_recorded_command, options_without_precedent, training_command
from advisor.report.text.unlocks import missing_data_actions

SHOWN_BEST_TRIALS = 5

MAX_CURVES_PER_FIGURE = 10


def build_report(
    study: Study,
    verdicts: Sequence[Verdict],
    specs: Sequence[StudySpec],
    deferred: Sequence[Deferred],
    *,
    rules: Sequence[Rule],
    stop: str = "",
    command: str | None = None,
    history: History | None = None,
) -> Report:
    """specs: the next studies in order. stop: reason for proposing none although findings ask for one. command: command line of
    the analysis."""
    ranked, spread = study.ranked(), _repeat_spread(study)
    decisions = (*study.decisions, *settings.search_space_decisions(study))
    status_counts: Counter[str] = Counter(t.status for t in study.trials)
    earlier_count = sum(t.round is not None for t in study.trials)
    return Report(
        spec=study.spec,
        counts=TrialCounts(total=len(study.trials), feasible=int(study.feasible.sum()), earlier=earlier_count, **status_counts),
        best=_best_trial_summary(study, ranked, spread),
        spread=spread,
        rerun_interval=_best_value_interval(study),
        inferred={replace_surrogates(k): replace_surrogates(v) for k, v in study.inferred.items()},
        warnings=tuple(replace_surrogates(w) for w in study.warnings),
        decisions=tuple(d.model_copy(update={"text": replace_surrogates(d.text)}) for d in decisions),
        verdicts=tuple(verdicts),
        unlocks=missing_data_actions(study, verdicts),
        rules=tuple(make_rule_info(rule) for rule in rules),
        next_studies=tuple(_make_next_studies(study, specs)),
        deferred=tuple(deferred),
        stop=say("{stop}", stop=stop) if stop else None,
        figures=_figure_data(study, ranked, verdicts),
        provenance=_report_provenance(study, command),
        history=history,
        running=running_trials(study, rules),
        stopped=stopped_trials(study),
        hindsight=hindsight(study),
    )


def _figure_data(study: Study, ranked: Sequence[Trial], verdicts: Sequence[Verdict]) -> FigureData:
    higher_rates = overview.higher_rate_trials(study)
    curves = _curves_to_draw(study, ranked, verdicts, higher_rates)
    rank_of_trial: dict[int, int] = {}
    for _, tied in groupby(ranked, key=study.rank_key):
        rank_of_trial |= dict.fromkeys([t.index for t in tied], len(rank_of_trial))
    return FigureData(
        trials=tuple(_trial_row(study, t, rank_of_trial.get(t.index)) for t in study.trials),
        curves=curves,
        best_trials=tuple(replace_surrogates(t.id) for t in ranked[:SHOWN_BEST_TRIALS]),
        gradient_norms=gradient_norm_histogram(study, list(ranked[:SHOWN_BEST_TRIALS])),
        isolations=isolations.isolation_plots(study),
        best_of_n=overview.best_of_n_trials(study),
        throughputs=overview.throughput_by_batch_size(study),
        training_to_target=overview.training_to_target(study),
        importances=overview.parameter_importances(study),
        close_ups=overview.curve_close_ups(study, verdicts),
        higher_rate_trials=higher_rates,
        compact_curves=encode_trial_curves(study, curves),
    )


def make_rule_info(rule: Rule) -> RuleInfo:
    why = re.search(r"^## Why it matters\s*\n(.*?)(?=^## |\Z)", rule.page(), re.MULTILINE | re.DOTALL)
    return RuleInfo(
        id=rule.rule_id(),
        summary=rule.summary(),
        why=" ".join(why.group(1).split()) if why else "",
        playbook=rule.playbook,
        goal=rule.goal,
        thresholds=rule.model_dump(mode="json"),
        accuracy=describe_measured_rates(measured_counts(rule.rule_id())),
    )


def _best_trial_summary(study: Study, ranked: Sequence[Trial], spread: RepeatSpread | None) -> Best | None:
    if not ranked:
        return None
    row = _trial_row(study, ranked[0], 0)
    assert row.best is not None
    best_checkpoint = checkpoints.best_checkpoint(study, ranked[0])
    if best_checkpoint is not None and not checkpoints.is_worse_than_best(study, ranked[0], best_checkpoint[0]):
        best_checkpoint = None
    mean, next_mean = _best_setting_means(study, ranked[0]) if spread is not None else (None, None)
    return Best(
        trial=row.id,
        name=row.name,
        value=row.best,
        step=row.best_step,
        last_step=row.last_step,
        params=row.params,
        mean=mean,
        next_mean=next_mean,
        kept_step=best_checkpoint[0] if best_checkpoint is not None else None,
        kept_value=study.objective_value(best_checkpoint[1]) if best_checkpoint is not None else None,
    )


def _best_setting_means(study: Study, best: Trial) -> tuple[SettingMean | None, SettingMean | None]:
    """Return the means of the best trial's setting and of the best other setting, or (None, None) if the former has no repeats."""
    sorted_settings = sorted(repeats.full_length_settings(study), key=lambda s: s.mean)
    own = next((s for s in sorted_settings if repeats.key(s.trials[0]) == repeats.key(best)), None)
    if own is None or len(own.costs_after_selection) < 2:
        return None, None
    other_setting = next((s for s in sorted_settings if s is not own), None)
    return _setting_mean(study, own), None if other_setting is None else _setting_mean(study, other_setting)


def _setting_mean(study: Study, setting: repeats.Setting) -> SettingMean:
    return SettingMean(value=study.objective_value(setting.mean), trials=len(setting.costs_after_selection))


def _trial_row(study: Study, trial: Trial, place: int | None) -> TrialRow:
    cost = float(study.costs[trial.index])
    curve = study.cost_curve(trial)
    finite_curve = curve.finite
    searched = ((n, trial.params[n]) for n in study.searched if n in trial.params)
    return TrialRow(
        id=replace_surrogates(trial.id),
        name=replace_surrogates(trial.name),
        status=trial.status,
        feasible=bool(study.feasible[trial.index]),
        comparable=bool(study.comparable[trial.index]),
        params={replace_surrogates(n): replace_surrogates(v) if isinstance(v, str) else v for n, v in searched},
        best=study.objective_value(cost) if math.isfinite(cost) else None,
        place=place,
        best_step=int(finite_curve.steps[finite_curve.values == finite_curve.values.min()][-1]) if len(finite_curve) else None,
        last_step=int(curve.steps[-1]) if len(curve) else None,
        evaluations=len(curve),
        round=trial.round,
    )


def _repeat_spread(study: Study) -> RepeatSpread | None:
    tried_settings = repeats.full_length_settings(study)
    repeated, variance = repeats.settings_of_equal_variance(tried_settings), repeats.variance_between_seeds(tried_settings)
    if variance is None or not any(t.params or t.commit for t in study.trials):
        return None
    return RepeatSpread(deviation=variance[0], settings=len(repeated), trials=sum(len(s.trials) for s in repeated))


def _best_value_interval(study: Study) -> tuple[float, float] | None:
    costs = rerun.best_result_interval(study)
    if costs is None or validation.perfect_trials(study):  # perfect results have no variation to estimate
        return None
    low, high = sorted(study.objective_value(cost) for cost in costs)
    return low, high


def _curves_to_draw(
    study: Study, ranked: Sequence[Trial], verdicts: Sequence[Verdict], above: HigherRateTrials | None
) -> tuple[MetricCurveSet, ...]:
    best_trials = list(ranked[:SHOWN_BEST_TRIALS])
    trials_by_metric: dict[str, dict[str, Trial]] = {study.spec.objective.metric: {t.id: t for t in best_trials}}
    signals: dict[str, Signal] = {}
    for signal in signals_to_show(study):
        if (metric := study.signals.get(signal)) is not None:
            signals[metric] = signal
            trials_by_metric.setdefault(metric, {t.id: t for t in best_trials})
    by_id = {t.id: t for t in study.trials}
    for evidence in (e for v in verdicts for f in v.findings for e in f.evidence):
        if isinstance(evidence, CurveEvidence):
            evidence_trials = [by_id[i] for i in evidence.trials if i in by_id][:MAX_CURVES_PER_FIGURE]
            for metric in evidence.metrics:
                trials_by_metric.setdefault(metric, {}).update({t.id: t for t in evidence_trials})
    if above is not None:
        trials_by_metric.setdefault(above.metric, {}).update({t: by_id[t] for t in above.trials})
    curve_sets = [make_curve_set(study, m, signals.get(m), list(trials.values())) for m, trials in trials_by_metric.items()]
    return tuple(s for s in curve_sets if s is not None)


def _make_next_studies(study: Study, specs: Sequence[StudySpec]) -> Iterator[NextStudy]:
    by_name, known = {spec.study: spec for spec in (*specs, study.spec)}, has_recorded_command(study)
    for file, spec in zip(file_names(specs), specs, strict=True):
        parent, command = by_name.get(spec.parent or "", study.spec), training_command(study, spec)
        yield NextStudy(
            file=file,
            spec=spec,
            yaml=format_study_file(spec, parent=parent, inferred=study.inferred if parent is study.spec else ()),
            cost=price.cost_and_gain_text(study, spec),
            trial_number_reason=budget.trial_number_reason(study, spec),
            training_command=replace_surrogates(command),
            new_options=tuple(map(replace_surrogates, options_without_precedent(study, command))),
            has_recorded_command=known,
        )


def _report_provenance(study: Study, command: str | None) -> Provenance:
    digest = hashlib.sha256()
    for trial in study.trials:
        trial_facts = [trial.id, trial.name, trial.status, sorted((k, repr(v)) for k, v in trial.params.items())]
        digest.update(json.dumps(trial_facts).encode())
    for name, block in sorted(study.metrics.items()):
        digest.update(json.dumps(name).encode())
        for array in (block.offsets, block.steps, block.values):
            digest.update(np.ascontiguousarray(array).tobytes())
    return Provenance(
        data=digest.hexdigest(),
        points=sum(len(block.steps) for block in study.metrics.values()),
        started=min((t.started for t in study.trials if t.started is not None), default=None),
        ended=max((t.ended for t in study.trials if t.ended is not None), default=None),
        command=None if command is None else replace_surrogates(command),
        reproduce=tuple((what, replace_surrogates(value)) for t in study.ranked()[:1] for what, value in reproduction_facts(t)),
        versions={"tuning-advisor": __version__, "numpy": np.__version__, "scipy": scipy.__version__},
    )

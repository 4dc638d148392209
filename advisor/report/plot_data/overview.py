"""The data of figures that describe the study as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from scipy import stats

from advisor.computed.batch import targets, throughput
from advisor.computed.decision import repeats
from advisor.computed.space import importance, settings
from advisor.model.evidence import CurveEvidence
from advisor.model.finding import MissingData, Verdict
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.model.words import replace_surrogates
from advisor.report.plot_data import model
from advisor.report.plot_data.curves import curve_with_extremes
from advisor.stats.best_of import quantiles_of_best
from advisor.stats.importance import NULL_HYPOTHESIS_DRAWS, interaction_p_values

MIN_ENDED_SETTINGS = 8
"""Minimum number of settings with ended trials for the figure of the best of n trials. All repeats of a setting count as one."""

TARGET_IMPROVEMENT_SHARE = 0.95
"""The common target of all batch sizes, as a share of the improvement that the worst batch size reaches."""

MIN_IMPORTANCE_FOR_INTERACTIONS = 0.02
"""Minimum importance (share of the objective's variation between trials) at which a hyperparameter's interactions are tested."""
MAX_INTERACTION_PAIRS = 5
MAX_INTERACTING_PARAMETERS = 12
"""Maximum number of hyperparameters, the most important ones, whose pairs are tested; the time grows with its square."""

MAX_CLOSE_UPS = 8
CLOSE_UP_POINTS_PER_SIDE = 40
"""Number of logged points in a close-up on each side of the marked step."""

MAX_HIGHER_RATE_TRIALS = 3
"""Maximum number of trials with learning rates just above the best trial's learning rate, one trial per setting."""

_QUANTILE_LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def best_of_n_trials(study: Study) -> model.BestOfNTrials | None:
    """Return the distribution of the best of n settings for n = 1, 2, 4, … and for all, or None if too few ended."""
    costs = settings.median_cost_per_setting(study)
    if len(costs) < MIN_ENDED_SETTINGS or not np.isfinite(costs).any():
        return None
    sizes = [2**k for k in range(len(costs).bit_length()) if 2**k <= 0.75 * len(costs)] + [len(costs)]
    rows = [quantiles_of_best(costs, n, _QUANTILE_LEVELS) for n in sizes]
    quantiles = tuple(tuple(study.objective_value(float(c)) if math.isfinite(c) else None for c in row) for row in rows)
    has_repeats = any(len(group) > 1 for group in settings.read_settings(study).trials)
    return model.BestOfNTrials(sizes=tuple(sizes), quantiles=quantiles, repeats=has_repeats)


def throughput_by_batch_size(study: Study) -> tuple[model.BatchSizeThroughput, ...]:
    rows = []
    for s in throughput.throughput_by_batch_size(study):
        rate = s.mean_log_rate
        half_width = float(stats.t.ppf(0.95, rate.freedom)) * rate.error if rate.freedom > 0 else math.nan
        low, high = (math.exp(rate.value + side * half_width) if math.isfinite(half_width) else None for side in (-1, 1))
        size, speed = s.batch_size, s.examples_per_s
        rows.append(model.BatchSizeThroughput(batch_size=size, examples_per_s=speed, low=low, high=high))
    return tuple(rows) if len(rows) > 1 else ()


def training_to_target(study: Study) -> model.TrainingComparison | None:
    try:
        comparison = targets.compare_batch_sizes(study, TARGET_IMPROVEMENT_SHARE)
    except MissingData:
        return None
    statistic = np.median if comparison.statistic == "median" else np.min
    sizes = [(g, float(statistic(g.lengths_to_target))) for g in comparison.groups]
    return model.TrainingComparison(
        unit=comparison.unit,
        target=study.objective_value(comparison.target_value) if math.isfinite(comparison.target_value) else None,
        repeats=comparison.statistic == "median",
        sizes=tuple(
            model.BatchSizeTraining(
                batch_size=g.batch_size, amount=amount, seconds=g.seconds_to_target if g.seconds_to_target > 0 else None
            )
            for g, amount in sizes
            if math.isfinite(amount)
        ),
    )


def parameter_importances(study: Study) -> model.StudyImportances | None:
    try:
        estimate = importance.compute_importances(study)
    except MissingData:
        return None
    names = estimate.names
    ranking = sorted((_make_importance((n,), estimate.total_shares[:, i]) for i, n in enumerate(names)), key=lambda s: -s.share)
    mean_shares = estimate.total_shares.mean(axis=0)
    by_importance = np.argsort(-mean_shares, kind="stable")[:MAX_INTERACTING_PARAMETERS]
    candidates = sorted(int(i) for i in by_importance if mean_shares[i] >= MIN_IMPORTANCE_FOR_INTERACTIONS)
    pairs: list[model.ParameterImportance] = []
    if len(candidates) > 1:
        effects = estimate.response.interaction_effects(candidates)
        tests = len(names) * (len(names) - 1) // 2
        can_test = tests <= NULL_HYPOTHESIS_DRAWS  # with more tests, the correction raises even the smallest p-value to 1
        p_values = interaction_p_values(estimate.response, list(effects)) if can_test else dict.fromkeys(effects, 1.0)
        pairs = [_make_importance((names[a], names[b]), effects[a, b], min(p * tests, 1.0)) for (a, b), p in p_values.items()]
        pairs.sort(key=lambda s: (s.p, -s.share))
    count, shown_pairs = len(estimate.tried_settings), tuple(pairs[:MAX_INTERACTION_PAIRS])
    return model.StudyImportances(settings=count, p=estimate.p_value, of_parameters=tuple(ranking), of_pairs=shown_pairs)


def _make_importance(names: tuple[str, ...], draws: FloatArray, p: float | None = None) -> model.ParameterImportance:
    low, high = np.quantile(draws, [0.05, 0.95])
    shares = {k: min(float(v), 1.0) for k, v in {"share": draws.mean(), "low": low, "high": high}.items()}
    return model.ParameterImportance(parameters=tuple(map(replace_surrogates, names)), p=p, **shares)


def curve_close_ups(study: Study, verdicts: Sequence[Verdict]) -> tuple[model.CurveCloseUp, ...]:
    """Return close-ups around steps that findings about stability mark. Steps at which a lasting change begins are skipped."""
    return tuple(islice(_iterate_close_ups(study, verdicts), MAX_CLOSE_UPS))


def _iterate_close_ups(study: Study, verdicts: Sequence[Verdict]) -> Iterator[model.CurveCloseUp]:
    by_id = {t.id: t for t in study.trials}
    seen_marks: set[tuple[str, str, int]] = set()
    for finding in (f for v in verdicts for f in v.findings if f.goal == "stability"):
        for evidence in (e for e in finding.evidence if isinstance(e, CurveEvidence)):
            for mark in (m for m in evidence.marks if not m.lasting):
                trial, metric = by_id.get(mark.trial), evidence.metrics[0]
                if trial is None or (mark.trial, metric, mark.step) in seen_marks:
                    continue
                seen_marks.add((mark.trial, metric, mark.step))
                steps, values = curve_with_extremes(study, trial, metric)
                at = int(np.searchsorted(steps, mark.step))
                window = slice(max(at - CLOSE_UP_POINTS_PER_SIDE, 0), at + CLOSE_UP_POINTS_PER_SIDE + 1)
                if len(steps[window]) > 1:
                    yield model.CurveCloseUp(
                        trial=replace_surrogates(trial.id),
                        metric=replace_surrogates(metric),
                        step=mark.step,
                        label=mark.label,
                        steps=tuple(steps[window].tolist()),
                        values=tuple(v if math.isfinite(v) else None for v in values[window].tolist()),
                    )


def higher_rate_trials(study: Study) -> model.HigherRateTrials | None:
    searched, best = searched_learning_rates(study), study.ranked()[:1]
    if searched is None or not best:
        return None
    name, rates = searched
    # For a policy, plot the objective, because the loss of a policy does not show how good the policy is.
    loss = None if study.has("policy_reward") else study.signals.get("train_loss")
    metric = loss or study.spec.objective.metric
    at = float(rates[best[0].index])
    trials_above = [t for t in study.trials if study.ended[t.index] and rates[t.index] > at and len(study.metric(t, metric))]
    trials_above.sort(key=lambda t: (rates[t.index], t.index))
    nearest_trials = repeats.first_trial_per_setting(trials_above)[:MAX_HIGHER_RATE_TRIALS]
    if not nearest_trials or not math.isfinite(at):
        return None
    return model.HigherRateTrials(
        parameter=replace_surrogates(name),
        metric=metric,
        best=at,
        trials=tuple(t.id for t in nearest_trials),
        rates=tuple(float(rates[t.index]) for t in nearest_trials),
        failed_count=sum(not study.feasible[t.index] for t in nearest_trials),
    )

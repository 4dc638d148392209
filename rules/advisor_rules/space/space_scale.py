from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from advisor.computed.space import sampler, settings
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import SetRange
from advisor.model.evidence import axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Percent, Probability, say
from advisor.model.space import Domain, FloatArray, as_number, is_learning_rate, is_training_length, natural_limits_of_name
from advisor.model.study import Study
from advisor.stats import surface
from advisor.stats.importance import axis_coordinates, squared_distances
from advisor.stats.ranks import choose_evenly_by_rank
from advisor_rules.space import _rows

SEED = 0
MIN_DISTINCT_VALUES = 5
MAX_FITTED_POINTS = 80
"""Maximum number of points to which the models are fitted; the points are evenly spaced in rank."""
MIN_POINTS = 8
N_SIMULATIONS = 399
COMPARED_RESULTS_SHARE = 0.8
"""Share of the results whose values are compared, best first; all worse results count as equal, so that a few huge losses have
no effect."""
_INVERSE_LENGTH_SCALES = np.exp(np.linspace(-2.5, 8.5, 12))
"""Inverse squared length scales of an axis: from several range widths down to a hundredth of a range width."""
_NOISE_VARIANCES = (0.01, 0.05, 0.2, 1.0)
"""Noise variances, relative to the variance of the response."""


class SpaceScale(Rule):
    """A hyperparameter is searched on a linear scale although results follow its logarithm, or vice versa.

    ## What it looks at
    The rule examines every searched number whose range spans a decade or more. Failed trials are left out. A finding needs two
    conditions. First, the best trials lie in a small part of the range on the scale used, and in a part of the range at least
    twice as large on the other scale. Second, given the other hyperparameters, a smooth function fits the results better on the
    other scale, by more than chance explains if the scale used is right. The worst fifth of the trials count as equally bad.
    For a learning rate, a log scale is always right; if results follow the learning rate itself, all tried learning rates are
    too low.

    ## Why it matters
    On the wrong scale, most trials lie where results change little. In a linear range from 0.0001 to 0.1, for example, nine of
    ten trials lie in the last of its three decades.

    ## What to do
    Search the same range on the other scale. If a linear range starts at 0, the log range starts at the decade of the smallest
    value that was tried.

    ## How sure
    The difference between the two fits is compared with the differences for simulated results that are smooth on the scale
    used; the p-value is corrected for the number of ranges. Confidence is one minus the p-value, times 0.9 if the range was not
    declared, and lower if the sampler used earlier results. In simulated studies of 12 to 60 settings and a range of three
    decades, the rule fired in 0 to 2 % if the scale was right, and in 1 to 11 % if results dropped abruptly at the low end of a
    linear range. The rule found a linear range that should be logarithmic in 0 to 9 % of studies with 12 settings, 16 to 46 %
    with 24 and 51 to 85 % with 60. The rule found a logarithmic range that should be linear in 11 to 23 % of studies with 12
    settings, 49 to 83 % with 24 and 93 to 99 % with 60.
    """

    playbook = "Identifying bad search space boundaries"
    goal = "boundary"
    needs_order = True
    needs_learning = True
    explains = Relation(
        rules=("space-boundary", "space-shrink", "space-insensitive"),
        shares="subject",
        because="On the scale that was searched, all good values are crowded at one end of the range.",
    )

    span: Factor = 10.0
    """Minimum ratio of the ends of a range at which the scale matters."""
    cramped: Share = 0.3
    """Maximum share of the range, on the scale used, that the best eighth of the settings (at least 4) spans."""
    wider: Factor = 2.0
    """Minimum ratio of the share of the range that the best settings span on the other scale to the share that they span on the
    scale used."""
    fewest: Count = 12
    """Minimum number of distinct settings with a result; in simulations, fewer settings hardly ever showed a wrong scale."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which results that are smooth on the scale used raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        tried = settings.read_settings(study)
        others = find_other_scales(study, tried, self.span)
        indices = np.flatnonzero(~tried.failed)
        reason = f"{len(indices)} distinct settings ended with a result; at least {self.fewest} are needed to compare scales"
        too_few = MissingData(reason, needs="trials", at_least=self.fewest)
        if not others:
            if len(tried) < self.fewest and any(p.numeric for p in study.searched.values()):
                raise too_few
            reason = f"no searched number spans a factor of {self.span:g}, so the scale hardly matters"
            raise MissingData(reason, needs="design")
        others = [o for o in others if not (o.domain.scale == "linear" and is_learning_rate(o.name))]
        if not others:
            return
        if len(indices) < self.fewest:
            raise too_few
        costs = tried.costs[indices]
        axes = {n: axis_coordinates(u[indices], True) for n, u in tried.numeric.items()}
        axes |= {n: axis_coordinates(u[indices], False) for n, u in tried.choices.items()}
        on_wrong_scale: list[tuple[float, str, tuple[float, float], Domain]] = []
        for other in others:
            used, new = tried.numeric[other.name][indices], other.positions[indices]
            spans = spans_of_best_values(used, new, costs)
            if spans[0] <= self.cramped and spans[1] >= self.wider * spans[0]:
                other_axes = [block for n, block in axes.items() if n != other.name]
                p = min(p_value_of_scale(used, new, other_axes, costs) * len(others), 1.0)
                if p <= tried.corrected_level(self.false_alarms):
                    on_wrong_scale.append((p, other.name, spans, other.domain))
        for p, name, spans, domain in sorted(on_wrong_scale, key=lambda w: w[:2]):
            yield sampler.weaken_if_adaptive(study, self._build_finding(study, name, domain, spans, p, len(costs)))

    def _build_finding(self, study: Study, name: str, new: Domain, spans: tuple[float, float], p: float, count: int) -> Finding:
        low, high = as_number(new.low), as_number(new.high)
        old, best = study.spec.parameters[name].scale, study.ranked()[: max(4, count // 8)]
        cause_text = "its logarithm" if new.scale == "log" else "the value of the hyperparameter, not its logarithm"
        why = f"Results follow {cause_text}; on a {old} scale the best trials are crowded together"
        text = (
            f"{{name}} is searched on a {old} scale from {{span}}, but results follow {cause_text}. The best {{number}} "
            f"of {{count}} settings take up {{used}} of the range, and {{other}} on a {new.scale} scale."
        )
        numbers = {"number": max(4, count // 8), "count": count}
        used, other = map(Percent, spans)
        caption = say(f"The best trials are crowded together on the {old} scale of {{name}}.", name=Name(name))
        return self.finding(
            say(text, name=Name(name), span=_rows.range_text(study, name), used=used, other=other, **numbers),
            action=_rows.range_advice(f"Search {{name}} on a {new.scale} scale", name, low, high),
            severity="warning",
            confidence=(1 - p) * (0.9 if name in study.inferred else 1),
            subject=name,
            trials=best,
            evidence=(
                axis_plot(name, caption, best, span=(low, high)),
                table(
                    ("probability of such a fit if the scale were right", Probability(p), self.false_alarms),
                    (f"share of the range with the best settings, {old} scale", Percent(spans[0]), self.cramped),
                    (f"share of the range with the best settings, {new.scale} scale", Percent(spans[1]), self.wider * spans[0]),
                    _rows.range_row(study, name),
                ),
            ),
            changes=(SetRange(parameter=name, low=low, high=high, scale=new.scale, why=why),),
        )


class ParameterOnOtherScale(NamedTuple):
    """A searched numeric hyperparameter and its range on the scale (log or linear) that was not used."""

    name: str
    domain: Domain
    positions: FloatArray
    """Positions of the settings in the range on the other scale, shape (settings,): NaN for a setting without the
    hyperparameter, negative for a value below the range."""


def find_other_scales(study: Study, tried: settings.Settings, span: float) -> list[ParameterOnOtherScale]:
    """Return the searched numeric hyperparameters whose range ends have at least the ratio `span`, except the length of
    training.

    If the range of a positive hyperparameter starts at 0, its log range starts at the power of ten at or below the smallest
    tried value.
    """
    parameters = []
    for name, used in tried.numeric.items():
        if is_training_length(name) or len(np.unique(used[np.isfinite(used)])) < MIN_DISTINCT_VALUES:
            continue
        values = np.array([as_number(group[0].params.get(name)) for group in tried.trials])
        domain = study.spec.parameters[name]
        if domain.scale == "reverse-log":  # On a reverse-log scale, only the distance from 1 matters.
            continue
        low, high = domain.low or 0.0, domain.high or 0.0
        positive_values = values[values > 0]
        if low == 0 and natural_limits_of_name(name, domain.type)[0] == 0 and len(positive_values):
            low = 10.0 ** math.floor(math.log10(positive_values.min()))
        if low > 0 and high >= span * low:
            other_domain = Domain(type=domain.type, low=low, high=high, scale="linear" if domain.scale == "log" else "log")
            parameters.append(ParameterOnOtherScale(name, other_domain, other_domain.to_positions(values)))
    return parameters


def spans_of_best_values(used: FloatArray, other: FloatArray, values: FloatArray) -> tuple[float, float]:
    """Return the shares of the range, on both scales, that the best eighth (at least 4) of the values (n,) span."""
    finite = np.flatnonzero(np.isfinite(used) & np.isfinite(other))
    best = finite[np.argsort(values[finite], kind="stable")[: max(4, len(values) // 8)]]
    return (float(np.ptp(used[best])), float(np.ptp(other[best]))) if len(best) else (1.0, 1.0)


def p_value_of_scale(used: FloatArray, other: FloatArray, blocks: list[FloatArray], values: FloatArray) -> float:
    """Return the p-value of the hypothesis that the response is smooth on the scale used; 1 if the other scale fits no better.

    A Gaussian process model of the response that is smooth along the axis on the scale used is compared with one that is smooth
    on the other scale. The difference between their likelihoods is compared with the difference for data simulated from the
    first model. For the other axes, both models use the length scales that were fitted on the scale used.

    used, other: positions (n,) on both scales, NaN if missing; blocks: coordinates (n, c) of the other axes; values: (n,),
    finite, lower is better.
    """
    keep = choose_evenly_by_rank(values, MAX_FITTED_POINTS)
    n = len(keep)
    y = _standardise_columns(values[keep][:, None])
    if n < MIN_POINTS or not y.any():
        return 1.0
    other_distances = [squared_distances(b[keep], b[keep]) for b in blocks]
    axes = [squared_distances(c, c) for c in (axis_coordinates(u[keep], True) for u in (used, other))]
    log_scales = surface.fit_parameters(
        y[:, 0], np.array([*other_distances, axes[0]]), np.array([*np.zeros(len(other_distances) + 1), 0.0, -2.0])
    )
    distances = sum((r * d for r, d in zip(np.exp(log_scales[:-3]), other_distances, strict=True)), np.zeros((n, n)))
    models = [
        [_factor_correlation(distances + r * axis, noise) for r, noise in product(_INVERSE_LENGTH_SCALES, _NOISE_VARIANCES)]
        for axis in axes
    ]
    if max(_log_likelihoods(m, y)[0] for m in models[1]) <= max(_log_likelihoods(m, y)[0] for m in models[0]):
        return 1.0
    best_model = max(models[0], key=lambda m: float(_log_likelihoods(m, y)[0]))
    draws = best_model[0] @ np.random.default_rng(SEED).standard_normal((n, N_SIMULATIONS))
    rows = np.hstack([y, _standardise_columns(draws)])
    first, second = (np.max([_log_likelihoods(m, rows) for m in grid], axis=0) for grid in models)
    gain = second - first
    return float(np.mean(gain >= gain[0] - 1e-9))


def _standardise_columns(columns: FloatArray) -> FloatArray:
    """Return columns (n, m) with mean 0 and variance 1, after the worst values are set to one common value; zeros if all values
    are equal."""
    cut = np.minimum(columns, np.quantile(columns, COMPARED_RESULTS_SHARE, axis=0))
    cut = cut - cut.mean(0)
    spread = cut.std(0)
    return np.asarray(cut / np.where(spread > 0, spread, np.inf), dtype=np.float64)


_CorrelationFactors = tuple[FloatArray, FloatArray, float]
"""A correlation matrix, as (square root of the matrix, inverse of this root, log determinant of the matrix)."""


def _factor_correlation(apart: FloatArray, noise: float) -> _CorrelationFactors:
    root = np.asarray(np.linalg.cholesky(np.exp(-0.5 * apart) + (noise + 1e-6) * np.eye(len(apart))), dtype=np.float64)
    return root, np.asarray(np.linalg.inv(root), dtype=np.float64), 2 * float(np.log(np.diag(root)).sum())


def _log_likelihoods(model: _CorrelationFactors, rows: FloatArray) -> FloatArray:
    """Return the log-likelihood of each column of rows (n, m) at the most likely variance."""
    _, inverse, determinant = model
    size = ((inverse @ rows) ** 2).mean(0)
    return np.asarray(-0.5 * len(rows) * np.log(size) - 0.5 * determinant, dtype=np.float64)

"""Draws trials based on earlier results, by Bayesian optimisation with a Gaussian process. The playbook recommends this method
for exploitation.

Playbook: "Exploration vs exploitation". A suggestion depends only on the study's seed and earlier trials, so any launcher can
compute the same suggestion at any time. The model also uses trials outside the search space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import log_ndtr

from advisor.model.space import BoolArray, FloatArray, HyperparameterValue, RangeSide, equal_values
from advisor.model.spec import StudySpec
from advisor.planning.sampling import halton as quasirandom
from advisor.stats.surface import ResponseSurface, compress_costs
from advisor.stats.widening import widen_range

MIN_RESULTS_FOR_MODEL = 10
"""Minimum number of trials with a result for adaptive suggestions; with fewer results, trials continue the Halton sequence."""
RANGE_EDGE_SHARE = 0.1
"""Share of a range, on its linear or logarithmic scale, that counts as near each end."""
RANGE_GROWTH_SHARE = 0.5
"""Length by which a range grows at each extension, as a share of the range's width."""
_UNIFORM_CANDIDATES = 1000
_CANDIDATES_PER_BEST_POINT = 60
"""Number of candidate points near each of the `_BEST_POINTS_REFINED` best points."""
_BEST_POINTS_REFINED = 5
_PERTURBATION_SCALES = (0.5, 0.2, 0.05)
"""Standard deviations of the random steps from a point to candidates near it, as shares of the ranges. The candidate points are
refined once with each of these standard deviations."""

_ABSENT_POSITION = 0.5
"""Position of a trial on the axis of a hyperparameter that the trial lacks."""
_OUTSIDE_STEP_SD = 0.2
"""Standard deviation, in ranges, of the random steps along the other axes if a point lies outside the range of one axis."""
_PREDICTED_FAILURE_THRESHOLD = 0.5
"""Minimum value of the predicted failure indicator (0 for a result, 1 for a failure) at which a trial is predicted to fail."""
_MIN_FAILURE_SD = 0.05
"""Minimum standard deviation of the predicted failure indicator. A few successes prove nothing."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A trial that has started, with its latest result."""

    params: Mapping[str, HyperparameterValue]
    value: float | None = None
    """Value of the objective. If the trial has ended and the value is None or not finite, the trial has failed."""
    running: bool = False
    """Whether the trial is still running; if so, `value` is ignored."""

    @property
    def feasible(self) -> bool:
        """Whether the trial ended with a finite result."""
        return not self.running and self.value is not None and math.isfinite(self.value)


def suggest_trial(
    spec: StudySpec, history: Sequence[Observation], *, number: int | None = None
) -> dict[str, HyperparameterValue]:
    """Return the next trial of a study as {parameter: value}, like `halton.draw_trials`.

    history: earlier trials, from any sampler, inside or outside the search space. From failed trials, the model learns the
    regions of the search space in which trials fail (Gelbart et al., "Bayesian Optimization with Unknown Constraints", 2014).
    For running trials, the model's prediction replaces the missing result. number: index of the trial in the Halton sequence,
    from 0; used only while trials still continue this sequence. By default, number is the length of the history. The same study,
    history (in the same order) and number give the same trials."""
    number = len(history) if number is None else number
    axes = SearchAxes(spec)
    if (model := _fitted_response_model(spec, axes, history)) is None:
        return _next_allowed_point(spec, number)
    points, _ = _candidate_points(axes, model, _suggestion_rng(spec, history))
    known = [dict(p.params) for p in history]
    repeat: dict[str, HyperparameterValue] | None = None
    for trial in map(axes.trial, points):
        if spec.forbidden_region_of(trial) is not None:
            continue
        if trial not in known:
            return trial
        repeat = repeat or trial
    # If every allowed setting was tried, repeat the most promising one.
    return repeat or _next_allowed_point(spec, number)


def with_wider_ranges(spec: StudySpec, history: Sequence[Observation]) -> StudySpec:
    """Return the study. If the leading trial lies near an end of a range, and the model expects more improvement beyond this
    end than anywhere inside, extend the range by half of its width, or further if `widening.widen_range` requires it."""
    axes = SearchAxes(spec)
    if (model := _fitted_response_model(spec, axes, history)) is None:
        return spec
    rng = _suggestion_rng(spec, history)
    points, merits = _candidate_points(axes, model, rng)
    ranges = {}
    for name, side in axes.range_ends_near(model.leaders(1)[0], RANGE_EDGE_SHARE):
        wider_range = widen_range(name, spec.parameters[name], side, RANGE_GROWTH_SHARE)
        if wider_range is None:
            continue
        best = np.vstack([model.leaders(_BEST_POINTS_REFINED), points[:_BEST_POINTS_REFINED]])
        beyond = axes.points_beyond_ranges(best, name, side, wider_range, _CANDIDATES_PER_BEST_POINT, rng)
        if model.log_acquisition(beyond).max() > merits[0]:
            ranges[name] = wider_range
    for name, (low, high) in ranges.items():
        spec = spec.with_parameter(name, spec.parameters[name].model_copy(update={"low": low, "high": high}))
    return spec


def _next_allowed_point(spec: StudySpec, number: int) -> dict[str, HyperparameterValue]:
    """Return a point of the quasi-random sequence that is not forbidden. Raises AdvisorError if all points tried are forbidden."""
    halton_sampler = spec.sampler.model_copy(update={"kind": "halton"})
    return next(quasirandom.draw_trials(spec.model_copy(update={"sampler": halton_sampler}), 1, skip=number))


def _suggestion_rng(spec: StudySpec, history: Sequence[Observation]) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((spec.sampler.seed, len(history))))


def _fitted_response_model(spec: StudySpec, axes: SearchAxes, history: Sequence[Observation]) -> ResponseModel | None:
    sign = 1.0 if spec.objective.direction == "minimize" else -1.0
    trials = [p for p in history if axes.has_same_fixed_values(p.params)]
    costs = np.array([sign * p.value if p.feasible and p.value is not None else math.nan for p in trials])
    if not axes.names or np.isfinite(costs).sum() < MIN_RESULTS_FOR_MODEL:
        return None
    is_running = np.array([p.running for p in trials], dtype=np.bool_)
    return ResponseModel(axes, axes.positions([p.params for p in trials]), costs, is_running)


def _candidate_points(axes: SearchAxes, model: ResponseModel, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return (points, logarithms of the expected improvement at each point), best first."""
    uniform = axes.uniform_points(_UNIFORM_CANDIDATES, rng)
    leaders = model.leaders(_BEST_POINTS_REFINED)
    points = np.vstack([uniform, axes.points_near(leaders, _CANDIDATES_PER_BEST_POINT, _PERTURBATION_SCALES[0], rng)])
    merits = model.log_acquisition(points)
    for scale in _PERTURBATION_SCALES[1:]:
        leaders = points[np.argsort(-merits, kind="stable")[:_BEST_POINTS_REFINED]]
        added = axes.points_near(leaders, _CANDIDATES_PER_BEST_POINT, scale, rng)
        points, merits = (np.vstack([points, added]), np.concatenate([merits, model.log_acquisition(added)]))
    order = np.argsort(-merits, kind="stable")
    return points[order], merits[order]


class SearchAxes:
    """The search space of a study, with one axis per searched hyperparameter. Numeric axes come first, with positions from 0 to
    1 on their scale; choices are represented by their index."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.numeric = [n for n in sorted(spec.searched) if spec.parameters[n].numeric]
        self.names = [*self.numeric, *(n for n in sorted(spec.searched) if not spec.parameters[n].numeric)]
        self._counts = np.array([len(spec.parameters[n].options) for n in self.names])
        self._is_number = self._counts == 0

    def has_same_fixed_values(self, params: Mapping[str, HyperparameterValue]) -> bool:
        """Return whether the trial has this study's values of all fixed hyperparameters."""
        return all(n not in params or equal_values(params[n], v) for n, v in self.spec.fixed_values.items())

    def positions(self, trials: Sequence[Mapping[str, HyperparameterValue]]) -> FloatArray:
        """Return the positions of trials, shape (trials, axes)."""
        out = np.full((len(trials), len(self.names)), _ABSENT_POSITION)
        for j, name in enumerate(self.names):
            parameter = self.spec.parameters[name]
            for i, trial in enumerate(trials):
                if name in trial and parameter.numeric:
                    out[i, j] = np.nan_to_num(parameter.to_positions([trial[name]])[0], nan=_ABSENT_POSITION)
                elif name in trial:
                    out[i, j] = next((k for k, o in enumerate(parameter.options) if equal_values(o, trial[name])), -1)
        return out

    def uniform_points(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Return random points of the space, shape (count, axes)."""
        uniform = rng.random((count, len(self.names)))
        return self._with_rounded_integers(np.where(self._is_number, uniform, np.floor(uniform * self._counts)))

    def points_near(self, points: FloatArray, count: int, scale: float, rng: np.random.Generator) -> FloatArray:
        """Return `count` random points near each given point. Each random point is moved on some axes only."""
        repeated = np.repeat(points, count, axis=0)
        is_moved = rng.random(repeated.shape) < 0.5
        is_moved[np.arange(len(repeated)), rng.integers(len(self.names), size=len(repeated))] = True
        step_length = scale * np.exp(rng.uniform(-2, 0, (len(repeated), 1)))
        moved = repeated + step_length * rng.standard_normal(repeated.shape)
        redrawn = np.floor(rng.random(repeated.shape) * self._counts)
        new_positions = np.where(is_moved, np.where(self._is_number, moved, redrawn), repeated)
        return self._with_rounded_integers(np.clip(new_positions, 0, np.where(self._is_number, 1, self._counts - 1)))

    def range_ends_near(self, point: FloatArray, max_distance: float) -> list[tuple[str, RangeSide]]:
        """Return the ends of ranges that are at most `max_distance` from the point, or beyond which the point lies."""
        near_ends: list[tuple[str, RangeSide]] = []
        for name, u in zip(self.numeric, point[: len(self.numeric)], strict=True):
            if u <= max_distance:
                near_ends.append((name, "low"))
            if u >= 1 - max_distance:
                near_ends.append((name, "high"))
        return near_ends

    def points_beyond_ranges(
        self, points: FloatArray, name: str, side: RangeSide, wider: tuple[float, float], count: int, rng: np.random.Generator
    ) -> FloatArray:
        """Return `count` random points near each given point, beyond an end of one range but inside the range `wider`."""
        new_points = self.points_near(points, count, _OUTSIDE_STEP_SD, rng)
        low, high = self.spec.parameters[name].to_positions(list(wider))
        added_range = (1.0, float(high)) if side == "high" else (float(low), 0.0)
        new_points[:, self.names.index(name)] = rng.uniform(*added_range, len(new_points))
        return new_points

    def trial(self, point: FloatArray) -> dict[str, HyperparameterValue]:
        """Return the trial that a point of the space represents."""
        at = dict(zip(self.names, np.where(self._is_number, point, (point + 0.5) / np.maximum(self._counts, 1)), strict=True))
        return quasirandom.trial_at_position(self.spec, [min(max(float(at[n]), 0.0), 1 - 1e-12) for n in sorted(at)])

    def axis_columns(self, points: FloatArray) -> list[FloatArray]:
        """Return one column of positions for each axis. If its condition is not met, the position is `_ABSENT_POSITION`."""
        columns: dict[str, FloatArray] = {}
        for name, column in zip(self.names, points.T, strict=True):
            is_absent = np.zeros(len(column), dtype=np.bool_)
            for parent, wanted in (self.spec.parameters[name].when or {}).items():
                options = self.spec.parameters[parent].options if parent in self.names else ()
                if options:
                    is_absent |= points[:, self.names.index(parent)] != [*options, wanted].index(wanted)
            columns[name] = np.where(is_absent, _ABSENT_POSITION, column)
        return list(columns.values())

    def _with_rounded_integers(self, points: FloatArray) -> FloatArray:
        points = points.copy()
        for j, name in enumerate(self.names):
            parameter = self.spec.parameters[name]
            if parameter.numeric and parameter.type == "int":
                values = [parameter.draw(u) for u in np.clip(points[:, j], 0, 1 - 1e-12)]
                points[:, j] = parameter.to_positions(values)
        return points


class ResponseModel:
    """Predicts compressed costs and failures from earlier trials, by Gaussian processes (`advisor.stats.surface`)."""

    def __init__(self, axes: SearchAxes, positions: FloatArray, costs: FloatArray, running: BoolArray) -> None:
        """positions: (n, axes); costs: (n,), NaN for trials that failed or are running; running: (n,)."""
        self._axes, self._split = axes, len(axes.numeric)
        has_cost = np.isfinite(costs)
        self._points, self._scale = positions[has_cost], compress_costs(costs[has_cost])
        self._cost = self._fit_surface(self._points, self._scale)
        failed = 1.0 - has_cost[~running]
        self._failure = self._fit_surface(positions[~running], failed) if failed.any() else None
        if running.any():
            expected_costs = self._cost.predict(list(positions[running].T))[0]
            self._points = np.vstack([self._points, positions[running]])
            self._cost = self._fit_surface(self._points, np.concatenate([self._scale, expected_costs]))
        self._expected = self._cost.predict(list(self._points.T))[0]

    def leaders(self, count: int) -> FloatArray:
        """Return the points of the trials with the lowest expected costs, shape (at most count, axes)."""
        return np.asarray(self._points[np.argsort(self._expected, kind="stable")[:count]])

    def log_acquisition(self, points: FloatArray) -> FloatArray:
        """Return the logarithm of (expected improvement on the best expected cost times probability of a result) at each point."""
        columns = self._axes.axis_columns(points)
        log_improvements = _log_improvement(*self._cost.predict(columns), float(self._expected.min()))
        return log_improvements + self._log_success_probability(columns)

    def _log_success_probability(self, columns: list[FloatArray]) -> FloatArray:
        if self._failure is None:
            return np.zeros(len(columns[0]))
        indicator, indicator_sd = self._failure.predict(columns)
        return np.asarray(log_ndtr((_PREDICTED_FAILURE_THRESHOLD - indicator) / np.hypot(indicator_sd, _MIN_FAILURE_SD)))

    def _fit_surface(self, points: FloatArray, values: FloatArray) -> ResponseSurface:
        columns = list(points.T)
        return ResponseSurface(columns[: self._split], columns[self._split :], values)


def _log_improvement(mean: FloatArray, sd: FloatArray, best: float) -> FloatArray:
    """Return the logarithm of the expected improvement. Far above `best`, only the asymptotic form is accurate."""
    z = (best - mean) / sd
    with np.errstate(divide="ignore", invalid="ignore"):
        exact_logarithm = np.log(stats.norm.pdf(z) + z * stats.norm.cdf(z))
        asymptotic_logarithm = stats.norm.logpdf(z) - 2 * np.log(np.abs(z))
    return np.asarray(np.log(sd) + np.where(z > -5, exact_logarithm, asymptotic_logarithm), dtype=np.float64)

"""Draws trials based on earlier results, by Bayesian optimisation with a Gaussian process. The playbook recommends this method
for exploitation.

Playbook: "Exploration vs exploitation". A suggestion depends only on the study's seed and earlier trials, so any launcher can
compute the same suggestion at any time. Trials outside the current search space also inform the model, so no result is lost
when a range moves."""

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
"""Share of a range, on its scale, that counts as near each end."""
RANGE_GROWTH_SHARE = 0.5
"""Amount by which a range grows each time, as a share of the width of the range."""
_UNIFORM_CANDIDATES = 1000
"""Number of candidates spread over the whole space."""
_CANDIDATES_PER_BEST_POINT = 60
"""Number of candidates near each of the `_BEST_POINTS_REFINED` best points."""
_BEST_POINTS_REFINED = 5
_PERTURBATION_SCALES = (0.5, 0.2, 0.05)
"""Standard deviations of the random steps from a point to candidates near it, as shares of the ranges. The candidates are
refined once with each of these values."""


_ABSENT_POSITION = 0.5
"""Position of a trial on an axis if the trial lacks the hyperparameter of this axis."""
_OUTSIDE_STEP_SD = 0.2
"""Standard deviation, as a share of the ranges, of the random steps along the other axes if a point lies outside its range on
one axis."""
_PREDICTED_FAILURE_THRESHOLD = 0.5
"""A trial is predicted to fail if its predicted failure indicator (0 for a result, 1 for a failure) is above this level."""
_MIN_FAILURE_SD = 0.05
"""Minimum standard deviation of the predicted failure indicator. A few trials without failures never prove that a setting
cannot fail."""


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

    history: earlier trials, from any sampler, inside or outside the search space. The model learns from failed trials in which
    regions of the search space trials fail (Gelbart et al., "Bayesian Optimization with Unknown Constraints", 2014). For
    running trials, the model's prediction replaces the result. number: 0-based index of the trial in the Halton sequence, as
    long as trials continue this sequence; by default, the length of the history. The same study, history (in the same order)
    and number give the same trials."""
    number = len(history) if number is None else number
    axes = SearchAxes(spec)
    if (model := _fitted_response_model(spec, axes, history)) is None:
        return _next_allowed_point(spec, number)
    points, _ = _candidates(axes, model, _suggestion_rng(spec, history))
    known = [dict(p.params) for p in history]
    first: dict[str, HyperparameterValue] | None = None
    for trial in map(axes.trial, points):
        if spec.forbidden_region_of(trial) is not None:
            continue
        if trial not in known:
            return trial
        first = first or trial
    if first is not None:
        return first  # every allowed setting was tried, so repeat the most promising one
    return _next_allowed_point(spec, number)


def with_wider_ranges(spec: StudySpec, history: Sequence[Observation]) -> StudySpec:
    """Return the study, with each range extended beyond an end near a leading trial if the model expects more improvement beyond
    this end than anywhere inside. A range grows by half of its width, and at least as `widening.widen_range` would."""
    axes = SearchAxes(spec)
    if (model := _fitted_response_model(spec, axes, history)) is None:
        return spec
    rng = _suggestion_rng(spec, history)
    points, merits = _candidates(axes, model, rng)
    ranges = {}
    for name, side in axes.range_ends_near(model.leaders(1)[0], RANGE_EDGE_SHARE):
        wider = widen_range(name, spec.parameters[name], side, RANGE_GROWTH_SHARE)
        if wider is None:
            continue
        beyond = axes.points_beyond_ranges(
            np.vstack([model.leaders(_BEST_POINTS_REFINED), points[:_BEST_POINTS_REFINED]]),
            name,
            side,
            wider,
            _CANDIDATES_PER_BEST_POINT,
            rng,
        )
        if model.log_merits(beyond).max() > merits[0]:
            ranges[name] = wider
    parameters = {
        n: p.model_copy(update=dict(zip(("low", "high"), ranges[n], strict=True))) if n in ranges else p
        for n, p in spec.parameters.items()
    }
    return spec.model_copy(update={"parameters": parameters}) if ranges else spec


def _next_allowed_point(spec: StudySpec, number: int) -> dict[str, HyperparameterValue]:
    """Return a point of the quasi-random sequence that is not forbidden. Raises AdvisorError if all points tried are forbidden."""
    halton = spec.sampler.model_copy(update={"kind": "halton"})
    return next(quasirandom.draw_trials(spec.model_copy(update={"sampler": halton}), 1, skip=number))


def _suggestion_rng(spec: StudySpec, history: Sequence[Observation]) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((spec.sampler.seed, len(history))))


def _fitted_response_model(spec: StudySpec, axes: SearchAxes, history: Sequence[Observation]) -> ResponseModel | None:
    sign = 1.0 if spec.objective.direction == "minimize" else -1.0
    known = [p for p in history if axes.comparable(p.params)]
    costs = np.array([sign * p.value if p.feasible and p.value is not None else math.nan for p in known])
    if not axes.names or np.isfinite(costs).sum() < MIN_RESULTS_FOR_MODEL:
        return None
    running = np.array([p.running for p in known], dtype=np.bool_)
    return ResponseModel(axes, axes.positions([p.params for p in known]), costs, running)


def _candidates(axes: SearchAxes, model: ResponseModel, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return (points, logarithms of the expected improvement at each point), best first."""
    points = np.vstack(
        [
            axes.uniform_points(_UNIFORM_CANDIDATES, rng),
            axes.points_near(model.leaders(_BEST_POINTS_REFINED), _CANDIDATES_PER_BEST_POINT, _PERTURBATION_SCALES[0], rng),
        ]
    )
    merits = model.log_merits(points)
    for scale in _PERTURBATION_SCALES[1:]:
        leaders = points[np.argsort(-merits, kind="stable")[:_BEST_POINTS_REFINED]]
        more = axes.points_near(leaders, _CANDIDATES_PER_BEST_POINT, scale, rng)
        points, merits = np.vstack([points, more]), np.concatenate([merits, model.log_merits(more)])
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

    def comparable(self, params: Mapping[str, HyperparameterValue]) -> bool:
        """Return whether the trial's values of all fixed hyperparameters are those of this study."""
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
        drawn = rng.random((count, len(self.names)))
        return self._with_rounded_integers(np.where(self._is_number, drawn, np.floor(drawn * self._counts)))

    def points_near(self, points: FloatArray, count: int, scale: float, rng: np.random.Generator) -> FloatArray:
        """Return `count` random points near each given point, moved on some of the axes only."""
        base = np.repeat(points, count, axis=0)
        moves = rng.random(base.shape) < 0.5
        moves[np.arange(len(base)), rng.integers(len(self.names), size=len(base))] = True
        length = scale * np.exp(rng.uniform(-2, 0, (len(base), 1)))
        moved = base + length * rng.standard_normal(base.shape)
        redrawn = np.floor(rng.random(base.shape) * self._counts)
        other = np.where(moves, np.where(self._is_number, moved, redrawn), base)
        return self._with_rounded_integers(np.clip(other, 0, np.where(self._is_number, 1, self._counts - 1)))

    def range_ends_near(self, point: FloatArray, edge: float) -> list[tuple[str, RangeSide]]:
        """Return the ends of ranges to which the point is at most `edge` away, or beyond which it lies."""
        ends: list[tuple[str, RangeSide]] = []
        for name, u in zip(self.numeric, point[: len(self.numeric)], strict=True):
            if u <= edge:
                ends.append((name, "low"))
            if u >= 1 - edge:
                ends.append((name, "high"))
        return ends

    def points_beyond_ranges(
        self, points: FloatArray, name: str, side: RangeSide, wider: tuple[float, float], count: int, rng: np.random.Generator
    ) -> FloatArray:
        """Return `count` random points near each given point, beyond an end of one range but inside the range `wider`."""
        out = self.points_near(points, count, _OUTSIDE_STEP_SD, rng)
        low, high = self.spec.parameters[name].to_positions(list(wider))
        ends = (1.0, float(high)) if side == "high" else (float(low), 0.0)
        out[:, self.names.index(name)] = rng.uniform(*ends, len(out))
        return out

    def trial(self, point: FloatArray) -> dict[str, HyperparameterValue]:
        """Return the trial that a point of the space represents."""
        at = dict(zip(self.names, np.where(self._is_number, point, (point + 0.5) / np.maximum(self._counts, 1)), strict=True))
        return quasirandom.trial_at_position(self.spec, [min(max(float(at[n]), 0.0), 1 - 1e-12) for n in sorted(at)])

    def axis_columns(self, points: FloatArray) -> list[FloatArray]:
        """Return one column for each axis, with `_ABSENT_POSITION` if the hyperparameter's condition is not met."""
        out: dict[str, FloatArray] = {}
        for name, column in zip(self.names, points.T, strict=True):
            absent = np.zeros(len(column), dtype=np.bool_)
            for parent, wanted in (self.spec.parameters[name].when or {}).items():
                options = self.spec.parameters[parent].options if parent in self.names else ()
                if options:
                    absent |= points[:, self.names.index(parent)] != [*options, wanted].index(wanted)
            out[name] = np.where(absent, _ABSENT_POSITION, column)
        return list(out.values())

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
        done = np.isfinite(costs)
        self._points, self._scale = positions[done], compress_costs(costs[done])
        self._cost = self._fit_surface(self._points, self._scale)
        ended = ~running
        self._failure = None if done[ended].all() else self._fit_surface(positions[ended], 1.0 - done[ended])
        if running.any():
            expected = self._cost.predict(list(positions[running].T))[0]
            self._points = np.vstack([self._points, positions[running]])
            self._cost = self._fit_surface(self._points, np.concatenate([self._scale, expected]))
        self._expected = self._cost.predict(list(self._points.T))[0]

    def leaders(self, count: int) -> FloatArray:
        """Return the points of the trials with the lowest expected costs, shape (at most count, axes)."""
        return np.asarray(self._points[np.argsort(self._expected, kind="stable")[:count]])

    def log_merits(self, points: FloatArray) -> FloatArray:
        """Return the logarithm of (expected improvement on the best expected cost times probability of a result) at each point."""
        columns = self._axes.axis_columns(points)
        merits = _log_improvement(*self._cost.predict(columns), float(self._expected.min()))
        return merits + self._log_success_probability(columns)

    def _log_success_probability(self, columns: list[FloatArray]) -> FloatArray:
        if self._failure is None:
            return np.zeros(len(columns[0]))
        indicator, spread = self._failure.predict(columns)
        return np.asarray(log_ndtr((_PREDICTED_FAILURE_THRESHOLD - indicator) / np.hypot(spread, _MIN_FAILURE_SD)))

    def _fit_surface(self, points: FloatArray, values: FloatArray) -> ResponseSurface:
        columns = list(points.T)
        return ResponseSurface(columns[: self._split], columns[self._split :], values)


def _log_improvement(mean: FloatArray, spread: FloatArray, best: float) -> FloatArray:
    """If a mean is far above `best`, use the asymptotic form of the logarithm of the expected improvement."""
    z = (best - mean) / spread
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = np.log(stats.norm.pdf(z) + z * stats.norm.cdf(z))
        far = stats.norm.logpdf(z) - 2 * np.log(np.abs(z))
    return np.asarray(np.log(spread) + np.where(z > -5, direct, far), dtype=np.float64)

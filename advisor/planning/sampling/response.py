"""The adaptive sampler's model of a study: the expected improvement and the probability of a failure at any setting.

The model is the Gaussian process of `advisor.stats.surface`, fitted to compressed costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from scipy.special import log_ndtr

from advisor.model.space import BoolArray, FloatArray, HyperparameterValue, RangeSide, equal_values
from advisor.model.spec import StudySpec
from advisor.planning.sampling import halton as quasirandom
from advisor.stats.surface import ResponseSurface, compress_costs

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
        """Return `count` random points near each of the given points. Each new point differs from its original point on some of
        the axes only."""
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
        """Return `count` random points near each of the given points. In each new point, one hyperparameter lies outside its
        current range but inside its range in `wider`."""
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
    """Predicts costs and failures from the results of earlier trials."""

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
        """Return the merit of each point: the logarithm of the product of the expected improvement on the best expected cost so
        far and the probability of a result."""
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

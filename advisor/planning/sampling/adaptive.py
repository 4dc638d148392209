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

from advisor.model.space import FloatArray, HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.planning.sampling import halton as quasirandom
from advisor.planning.sampling.response import ResponseModel, SearchAxes
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
    """Return the study, with each range extended beyond an end if the model expects more improvement beyond this end than
    anywhere inside the range.

    Only ends of ranges near a leading trial are considered. A range grows by half of its width, and at least as far as
    `widening.widen_range` would move its end, within the declared limits. If no range grows, return the given study."""
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

"""The part of each range where the best setting of the next study lies, by a model of all hyperparameters together.

*Model.* A Gaussian process fitted to all settings (`surface.Surface`); failed settings count as bad as the worst. In each draw from
its posterior, the best of many points in the space of the next study is found. The range that holds 90 % of them is kept, with the
best setting so far and some room: near the best, results hardly differ, and the next change may move it.

*Unequal trials.* If many trials were pruned, all are compared at a step that nine in ten of them reached.

*How good it is.* `benchmarks/quality/ranges.py` counts how often a range leaves out settings that are better beyond noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from advisor.computed import computed
from advisor.computed.space import settings
from advisor.computed.space.inside import trials_inside
from advisor.model import parameter_kinds
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, counts_training, to_scale
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.stats import importance
from advisor.stats.surface import Surface, compressed
from advisor.stats.widening import tidy

MIN_RESULTS = 5
"""Minimum number of trials with a result for a model."""
WITHIN = 0.9
"""Probability with which the best setting lies in the part of one range."""
BEYOND = 0.25
"""Maximum probability that the best setting lies beyond all trials for the range to end there. Our choice."""
ROOM = (0.25, 0.1)
"""Room on each side, in decades on a log scale, or as a share of a range on a linear scale. Our choice."""
MORE_ROOM = (0.5, 0.25)
"""The same if the best values may have moved: the next study trains otherwise, or early results of pruned trials were compared."""
MIN_CUT = 0.1
"""Minimum share of a range that is cut off at one end. Our choice: less is not worth a change."""
MAX_P = 0.05
"""Maximum p-value of the hypothesis that results depend on no hyperparameter."""
MAX_POINTS = 150
"""Maximum number of trials to fit, evenly spaced in rank; the time grows with its cube."""
MAX_NAMES = 20
"""Maximum number of hyperparameters of a model. With more, the trials of a study hardly rule anything out."""
MAX_CASES = 8
"""Maximum number of combinations of scientific values: each of them needs a good range."""
REACHED = 0.1
"""Quantile of the last steps of pruned and complete trials at which they are compared."""
SEED = 0
_UNIFORM = 300
"""Number of points that are spread over the whole space."""
_NEAR = 40
"""Number of points near each of the `_LEADERS` best trials."""
_LEADERS = 5
_SCALES = (0.3, 0.1)
"""Standard deviations of the distances to these trials, in lengths of the ranges."""
_LEVELS = (0.0, 0.5, 1.0)
"""Positions on a scientific range that stand for all its values."""


class Results(NamedTuple):
    """Trials that are compared with each other, and the model fitted to them."""

    trials: Sequence[Trial]
    """The trials, best first."""
    step: float | None
    """The step at which they are compared; None for full length."""
    surface: Surface
    names: tuple[str, ...]
    """The hyperparameters of the model, numbers first."""


def ranges(study: Study, spec: StudySpec) -> dict[str, tuple[float, float]]:
    """Return by name the range (low, high) that is worth searching of each number that `spec` tunes, if a part can be cut off.

    spec: a study that searches some of the hyperparameters of `study`. Scientific ranges, conditional ones, and those of training
    length, batch size and architecture stay. The result is empty if there are too few trials or too many hyperparameters for a
    model, if the trials show no effect, or if there are too many combinations of scientific values.
    """
    parts, results = _parts(study, spec), read(study)
    early = results is not None and results.step is not None
    room = MORE_ROOM if early or trains_otherwise(study, spec) else ROOM
    ends = {name: _ends(spec.parameters[name], part, room) for name, part in parts.items()}
    return {name: found for name, found in ends.items() if found is not None}


def trains_otherwise(study: Study, spec: StudySpec) -> bool:
    """Return whether `spec` has another length or schedule of training, or searches what `study` did not vary."""
    same = (spec.max_train_steps, spec.schedule) == (study.spec.max_train_steps, study.spec.schedule)
    return not same or not spec.searched.keys() <= study.spec.searched.keys()


def _ends(parameter: Parameter, part: tuple[float, float], room: tuple[float, float]) -> tuple[float, float] | None:
    """Return the range (low, high) that is left if `part`, as positions, and this room are kept; None if nothing is cut off."""
    assert parameter.low is not None
    assert parameter.high is not None
    more = room[1]
    if parameter.scale != "linear":
        ends = to_scale(np.array([parameter.low, parameter.high]), parameter.scale)
        more = room[0] * math.log(10) / float(ends[1] - ends[0])
    low, high = part[0] - more, part[1] + more
    least = parameter.low if low < MIN_CUT else tidy(float(parameter.from_unit(low)), parameter)
    most = parameter.high if high > 1 - MIN_CUT else tidy(float(parameter.from_unit(high)), parameter)
    return (least, most) if least < most and (least, most) != (parameter.low, parameter.high) else None


def _parts(study: Study, spec: StudySpec) -> dict[str, tuple[float, float]]:
    """Return by name the part of each tuned range, as positions, that holds the best setting and the best trials."""
    results = read(study)
    tuned = [n for n in results.names if _is_tuned(study, spec, n)] if results is not None else []
    cases = list(itertools.islice(_cases(spec, results), MAX_CASES + 1)) if results is not None and tuned else []
    if results is None or not 0 < len(cases) <= MAX_CASES:
        return {}
    tried = {n: _of(spec.parameters[n], n, trials_inside(spec, results.trials)) for n in tuned}
    best: dict[str, list[FloatArray]] = {n: [] for n in tuned}
    rng = np.random.default_rng(SEED)
    for case in cases:
        points = _points(study, spec, results, case, rng)
        lowest = results.surface.lowest([_on_scale_of(study, spec, n, points[n]) for n in results.names])
        for name in tuned:
            best[name].append(points[name][lowest])
    return {n: _part(draws, tried[n][np.isfinite(tried[n])]) for n, draws in best.items()}


def _part(draws: Sequence[FloatArray], tried: FloatArray) -> tuple[float, float]:
    """Return the part (low, high) that holds the best setting of each case, and the best trial.

    draws: draws of its position, by case; tried: positions of the trials in the space, best first. The part does not go beyond all
    trials unless the best setting may well lie there: the next round can extend it.
    """
    ends = np.array([np.quantile(u, [(1 - WITHIN) / 2, (1 + WITHIN) / 2]) for u in draws])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    if not len(tried):
        return low, high
    if max(float(np.mean(u < tried.min())) for u in draws) <= BEYOND:
        low = max(low, float(tried.min()))
    if max(float(np.mean(u > tried.max())) for u in draws) <= BEYOND:
        high = min(high, float(tried.max()))
    first = min(max(float(tried[0]), 0.0), 1.0)
    return min(low, first), max(high, first)


def _is_tuned(study: Study, spec: StudySpec, name: str) -> bool:
    parameter = spec.parameters.get(name)
    if parameter is None or not parameter.numeric or parameter.role != "nuisance" or parameter.when:
        return False
    special = counts_training(name) or parameter_kinds.is_batch_size(name)
    return not special and not parameter_kinds.searches_architecture(study, name)


@computed
def read(study: Study) -> Results | None:
    """Return the trials that are compared, and their model; None if they are too few, or show no effect."""
    tried = settings.read(study)
    try:
        settings.require_unpruned(study)
        trials, costs, step = [group[0] for group in tried.trials], tried.costs, None
    except MissingData:
        trials, costs, step = _at_common_step(study)
    names = tuple(n for names in (tried.numeric, tried.choices) for n in names)
    if len(names) > MAX_NAMES or np.isfinite(costs).sum() < MIN_RESULTS or not np.nanmax(costs) > np.nanmin(costs):
        return None
    fine = np.isfinite(costs)
    values = np.full(len(costs), np.nan)
    with np.errstate(over="ignore"):
        values[fine] = np.minimum(compressed(costs[fine]), np.finfo(np.float32).max)
    values[~fine] = np.nanmax(values)
    chosen = importance.evenly_by_rank(values, MAX_POINTS)
    columns = [study.positions(n, trials)[chosen] for n in names]
    numeric, choices = columns[: len(tried.numeric)], columns[len(tried.numeric) :]
    if _p_of_no_effect(numeric, choices, values[chosen]) > MAX_P:
        return None
    surface = Surface(numeric, choices, values[chosen])
    return Results([trials[i] for i in np.argsort(values, kind="stable")], step, surface, names)


def _p_of_no_effect(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray) -> float:
    """Return the p-value that values (n,) depend on no hyperparameter, neither alone nor with others."""
    blocks = [importance.coordinates(u, True) for u in numeric] + [importance.coordinates(u, False) for u in choices]
    together = [np.hstack(blocks)] if len(blocks) > 1 else []
    scores = importance.normal_scores(values)
    return importance.p_of_blocks([*blocks, *together], scores, np.random.default_rng(SEED)) if blocks else 1.0


def _at_common_step(study: Study) -> tuple[list[Trial], FloatArray, float]:
    """Return (trials, their best costs until a common step, that step); failed trials have the cost NaN."""
    ended = [t for t in study.trials if study.ended[t.index]]
    curves = {t.index: study.cost_curve(t).finite for t in ended if study.feasible[t.index]}
    step = float(np.quantile([c.steps[-1] for c in curves.values()], REACHED, method="lower"))
    compared = [t for t in ended if t.index not in curves or curves[t.index].steps[-1] >= step]
    early = {i: c.values[c.steps <= step] for i, c in curves.items()}
    return (
        compared,
        np.array([early[t.index].min() if len(early.get(t.index, ())) else math.nan for t in compared]),
        step,
    )


def _cases(spec: StudySpec, results: Results) -> itertools.product[tuple[float, ...]]:
    """Return every combination of the positions that stand for the scientific values, in the order of their names."""
    asked = [spec.parameters[n] for n in _scientific(spec, results)]
    return itertools.product(*(_LEVELS if p.numeric else tuple(p.to_unit(p.options)) for p in asked))


def _scientific(spec: StudySpec, results: Results) -> list[str]:
    return [n for n in results.names if n in spec.searched and spec.searched[n].role == "scientific"]


def _points(
    study: Study, spec: StudySpec, results: Results, case: Sequence[float], rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the positions in the ranges of `spec` of points in its space, each (m,), by the hyperparameters of the model.

    Hyperparameters that `spec` fixes stand at their values, on the scale of `study`; those with a condition are missing.
    """
    leaders = results.trials[:_LEADERS]
    given = dict(zip(_scientific(spec, results), case, strict=True))
    total = _UNIFORM + _NEAR * len(leaders)
    scales = np.resize(np.repeat(_SCALES, _NEAR // len(_SCALES)), total - _UNIFORM)
    out: dict[str, FloatArray] = {}
    for name in results.names:
        parameter = spec.parameters.get(name)
        if parameter is None or parameter.when or not parameter.searched:
            value = None if parameter is None or parameter.when else parameter.value
            out[name] = np.full(total, study.spec.parameters[name].to_unit(["" if value is None else value])[0])
        elif name in given:
            out[name] = np.full(total, given[name])
        else:
            centres = np.repeat(np.clip(np.nan_to_num(_of(parameter, name, leaders), nan=0.5), 0, 1), _NEAR)
            near = np.clip(centres + scales * rng.standard_normal(len(centres)), 0, 1)
            drawn = np.concatenate([rng.random(_UNIFORM), near])
            last = max(len(parameter.options) - 1, 1)
            out[name] = drawn if parameter.numeric else np.round(drawn * last) / last
    return out


def _of(parameter: Parameter, name: str, trials: Sequence[Trial]) -> FloatArray:
    return parameter.to_unit([t.params.get(name, "") for t in trials])


def _on_scale_of(study: Study, spec: StudySpec, name: str, positions: FloatArray) -> FloatArray:
    """Return positions in the range of `spec` as positions in that of `study`."""
    new, old = spec.parameters.get(name), study.spec.parameters[name]
    if new is None or not new.searched or new.when or new.domain == old.domain:
        return positions
    last = max(len(new.options) - 1, 1)
    values = [new.from_unit(u) if new.numeric else new.options[round(u * last)] for u in positions]
    return old.to_unit(values)

"""Computes the data of the pictures that look at a study as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from scipy import stats

from advisor.computed.batch import targets, throughput
from advisor.computed.space import importance
from advisor.computed.stability import instability
from advisor.model.evidence import CurveEvidence
from advisor.model.finding import MissingData, Verdict
from advisor.model.space import FloatArray, IntArray
from advisor.model.spec import Parameter
from advisor.model.study import Study, Trial
from advisor.model.words import encodable, setting
from advisor.report.plot_data.plotted import (
    BestOf,
    CloseUp,
    Importance,
    Importances,
    Isolation,
    JustAbove,
    Needed,
    Slice,
    Speed,
    ToTarget,
)
from advisor.report.plot_data.reduce import with_extremes
from advisor.stats import interaction
from advisor.stats.best_of import chance_of_an_empty_part, quantiles_of_best

FEWEST = 8
"""Trials from which the best of n says something."""

TENTHS = 10
FEWEST_IN_SLICE = 4
"""Slices of a range hold at least so many trials; of numbers with no more values than slices, each value is one."""

TARGET = 0.95
"""Share of what the least good batch size gained that makes the target; as in the rule `batch-steps`."""

MATERIAL = 0.02
"""Hyperparameters with a smaller share of the differences are not asked for interactions."""
MOST_PAIRS = 5

MOST_CLOSE_UPS = 8
AROUND = 40
"""Logged points before and after the step of a close-up."""

JUST_ABOVE = 3
"""Trials with learning rates above the best one's."""

_BOX = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def _values(study: Study, costs: FloatArray) -> tuple[float | None, ...]:
    return tuple(study.objective_value(float(c)) if math.isfinite(c) else None for c in costs)


def _costs(study: Study) -> FloatArray:
    """Costs (number of trials,) with NaN for what failed."""
    return np.where(study.feasible, study.costs, np.nan)


def best_of(study: Study) -> BestOf | None:
    """What the best of 1, 2, 4, ... and all trials reaches; None with too few trials."""
    costs = _costs(study)[study.ended]
    if len(costs) < FEWEST or not np.isfinite(costs).any():
        return None
    sizes = [2**k for k in range(len(costs).bit_length()) if 2**k <= 0.75 * len(costs)] + [len(costs)]
    found = tuple(_values(study, quantiles_of_best(costs, n, _BOX)) for n in sizes)
    return BestOf(sizes=tuple(sizes), quantiles=found)


# --- the best for each value of a hyperparameter --------------------------------------------------------------------------------


def isolations(study: Study) -> tuple[Isolation, ...]:
    """The isolation of every searched hyperparameter that enough trials vary, scientific ones first."""
    names = sorted(study.searched, key=lambda n: study.searched[n].role != "scientific")
    found = (_isolation(study, name, study.searched[name]) for name in names)
    known = [i for i in found if i is not None]
    return tuple(i.model_copy(update={"p": min(i.p * len(known), 1.0)}) for i in known)


def _isolation(study: Study, name: str, parameter: Parameter) -> Isolation | None:
    trials = [t for t in study.trials if study.ended[t.index] and name in t.params]
    groups = _tenths(study, name, trials) if parameter.numeric else _choices(name, trials)
    if len(groups) < 2:
        return None
    costs = _costs(study)
    drawn = min(len(g) for g in groups)
    return Isolation(
        parameter=encodable(name),
        drawn=drawn,
        slices=tuple(_slice(study, costs, name, g, drawn) for g in groups),
        p=_p(costs, groups),
    )


def _p(costs: FloatArray, groups: Sequence[Sequence[Trial]]) -> float:
    """How often luck alone would put some slice's best result as far down the ranks as the worst slice's best lies."""
    parts = [np.nan_to_num(costs[[t.index for t in g]], nan=np.inf) for g in groups]
    worst = max(part.min() for part in parts)
    return chance_of_an_empty_part([len(p) for p in parts], sum(int((p < worst).sum()) for p in parts))


def _tenths(study: Study, name: str, trials: list[Trial]) -> list[list[Trial]]:
    """Slices of the range with equally many trials; of a number with few values one a value."""
    positions = study.positions(name, trials)
    known = [i for i in np.argsort(positions, kind="stable").tolist() if math.isfinite(positions[i])]
    values, starts = np.unique(positions[known], return_index=True)
    if len(values) <= TENTHS:
        parts = np.split(np.array(known, dtype=np.int64), starts[1:])
    else:
        parts = np.array_split(np.array(known, dtype=np.int64), min(TENTHS, len(known) // FEWEST_IN_SLICE) or 1)
    return [[trials[i] for i in part] for part in parts if len(part)]


def _choices(name: str, trials: list[Trial]) -> list[list[Trial]]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(setting(trial.params[name]), []).append(trial)
    return [groups[label] for label in sorted(groups)]


def _slice(study: Study, costs: FloatArray, name: str, trials: Sequence[Trial], drawn: int) -> Slice:
    index = np.array([t.index for t in trials])
    mine, values = costs[index], [t.params[name] for t in trials]
    best = trials[int(np.nanargmin(mine))] if np.isfinite(mine).any() else None
    ends = [values[0], values[-1]] if study.searched[name].numeric else []
    low, high = (float(v) for v in ends) if ends else (None, None)
    five, half, most = _values(study, quantiles_of_best(mine, drawn, _BOX[[0, 2, 4]]))
    return Slice(
        label=encodable(setting(values[0]) if low == high else f"{setting(low, 3)} to {setting(high, 3)}"),
        low=low,
        high=high,
        trials=len(trials),
        best=None if best is None else encodable(best.id),
        value=None if best is None else study.objective_value(float(costs[best.index])),
        quantiles=(five, half, most),
    )


# --- batch size -----------------------------------------------------------------------------------------------------------------


def speeds(study: Study) -> tuple[Speed, ...]:
    """The throughput at each batch size; empty with fewer than two."""
    found = throughput.speeds(study)
    made = []
    for speed in found if len(found) > 1 else ():
        reach = float(stats.t.ppf(0.95, speed.rate.freedom)) * speed.rate.error if speed.rate.freedom > 0 else math.nan
        ends = [math.exp(speed.rate.value + s * reach) if math.isfinite(reach) else None for s in (-1, 1)]
        ids = tuple(encodable(t.id) for t in speed.trials)
        made.append(
            Speed(batch_size=speed.size, examples_per_s=speed.examples_per_s, low=ends[0], high=ends[1], trials=ids)
        )
    return tuple(made)


def to_target(study: Study) -> ToTarget | None:
    """How much training each batch size took to a target that all reach; None where there is none."""
    try:
        race = targets.race(study, TARGET)
    except MissingData:
        return None
    stands = np.median if race.statistic == "median" else np.min
    sizes = [(g, float(stands(g.needed))) for g in race.groups]
    return ToTarget(
        unit=race.unit,
        target=study.objective_value(race.target) if math.isfinite(race.target) else None,
        repeats=race.statistic == "median",
        sizes=tuple(
            Needed(
                batch_size=g.size,
                typical=typical,
                seconds=g.seconds if g.seconds > 0 else None,
                trials=tuple(encodable(t.id) for t in g.trials),
            )
            for g, typical in sizes
            if math.isfinite(typical)
        ),
    )


# --- what matters ---------------------------------------------------------------------------------------------------------------


def importances(study: Study) -> Importances | None:
    """How much each hyperparameter matters and which act together; None where too few trials tell."""
    try:
        found = importance.read(study)
    except MissingData:
        return None
    each = sorted((_share((n,), found.total[:, i]) for i, n in enumerate(found.names)), key=lambda s: -s.share)
    some = [i for i, share in enumerate(found.total.mean(axis=0)) if share >= MATERIAL]
    pairs: list[Importance] = []
    if len(some) > 1:
        shares = found.response.pairs(some)
        number = len(found.names) * (len(found.names) - 1) // 2
        p_values = interaction.p_values(found.response, list(shares))
        pairs = [
            _share((found.names[a], found.names[b]), shares[a, b], min(p * number, 1.0))
            for (a, b), p in p_values.items()
        ]
        pairs.sort(key=lambda s: (s.p, -s.share))
    return Importances(settings=len(found.tried), p=found.p, each=tuple(each), pairs=tuple(pairs[:MOST_PAIRS]))


def _share(names: tuple[str, ...], draws: FloatArray, p: float | None = None) -> Importance:
    low, high = np.quantile(draws, [0.05, 0.95])
    parts = {"share": draws.mean(), "low": low, "high": high}
    return Importance(
        parameters=tuple(encodable(n) for n in names), p=p, **{k: min(float(v), 1.0) for k, v in parts.items()}
    )


# --- curves ---------------------------------------------------------------------------------------------------------------------


def close_ups(study: Study, verdicts: Sequence[Verdict]) -> tuple[CloseUp, ...]:
    """Every logged point around each step that a finding about stability points at, the first ones of them."""
    return tuple(islice(_close_ups(study, verdicts), MOST_CLOSE_UPS))


def _close_ups(study: Study, verdicts: Sequence[Verdict]) -> Iterator[CloseUp]:
    by_id = {t.id: t for t in study.trials}
    seen: set[tuple[str, str, int]] = set()
    for finding in (f for v in verdicts for f in v.findings if f.goal == "stability"):
        for evidence in (e for e in finding.evidence if isinstance(e, CurveEvidence)):
            for mark in evidence.marks:
                trial, metric = by_id.get(mark.trial), evidence.metrics[0]
                if trial is None or (mark.trial, metric, mark.step) in seen:
                    continue
                seen.add((mark.trial, metric, mark.step))
                steps, values = _around(*with_extremes(study, trial, metric), mark.step)
                if len(steps) > 1:
                    yield CloseUp(
                        rule=finding.rule,
                        trial=encodable(trial.id),
                        metric=encodable(metric),
                        step=mark.step,
                        label=mark.label,
                        steps=tuple(steps.tolist()),
                        values=tuple(v if math.isfinite(v) else None for v in values.tolist()),
                    )


def _around(steps: IntArray, values: FloatArray, step: int) -> tuple[IntArray, FloatArray]:
    at = int(np.searchsorted(steps, step))
    part = slice(max(at - AROUND, 0), at + AROUND + 1)
    return steps[part], values[part]


def just_above(study: Study) -> JustAbove | None:
    """The trials with learning rates right above the best one's; None where none is, or none was varied."""
    found = instability.learning_rates(study)
    best = study.ranked()[:1]
    if found is None or not best:
        return None
    name, rates = found
    metric = study.signals.get("train_loss") or study.spec.objective.metric
    at = float(rates[best[0].index])
    above = [t for t in study.trials if study.ended[t.index] and rates[t.index] > at and len(study.metric(t, metric))]
    above.sort(key=lambda t: (rates[t.index], t.index))
    chosen = above[:JUST_ABOVE]
    if not chosen or not math.isfinite(at):
        return None
    return JustAbove(
        parameter=encodable(name),
        metric=metric,
        best=at,
        trials=tuple(t.id for t in chosen),
        rates=tuple(float(rates[t.index]) for t in chosen),
        failed=sum(not study.feasible[t.index] for t in chosen),
    )

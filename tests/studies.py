"""Assembles studies for tests from runs and points, as for any experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.engine.rule import Rule
from advisor.model.finding import Verdict
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.study import Study
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble


def make_study(
    params: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Sequence[Any]],
    *,
    objective: str = "val/loss",
    direction: str = "minimize",
    space: Mapping[str, Parameter] | None = None,
    steps: Mapping[str, Sequence[Any]] | Sequence[int] | None = None,
    status: Sequence[str] | None = None,
    tags: Sequence[Mapping[str, str]] | None = None,
    seeds: Sequence[int] | None = None,
    every: int = 100,
    times: Mapping[str, Sequence[Any]] | None = None,
) -> Study:
    """Return a study with len(params) trials.

    `curves[metric][i]` are the values of trial i: an array, a number for a curve of one point, or None if it was not logged.
    `steps` is one list for all metrics, or a list for each metric and trial; the default is `every`, 2 * `every`, …
    `times[metric][i]` are the seconds since the start of trial i for each value; the default is one second a step.
    """
    count = len(params)
    runs = []
    for i in range(count):
        mine = {f"advisor.{k}": v for k, v in (tags[i] if tags else {}).items()}
        if status:
            mine["advisor.status"] = status[i]
        if seeds:
            mine["advisor.seed"] = str(seeds[i])
        logged = {k: repr(v) if isinstance(v, float) else str(v) for k, v in params[i].items()}
        runs.append(Run(id=f"run{i}", name=f"trial-{i}", status="FINISHED", params=logged, tags=mine, started=0.0))
    points = {metric: _points(metric, values, steps, every, (times or {}).get(metric)) for metric, values in curves.items()}
    spec = None
    if space is not None:
        aim = Objective(metric=objective, direction=direction)  # type: ignore[arg-type]
        spec = StudySpec(study="test", objective=aim, parameters=space)
    experiment = Experiment(name="test", runs=tuple(runs), points=points)
    return assemble(experiment, spec=spec, objective=objective, direction=direction)  # type: ignore[arg-type]


def uniform_study(rng: np.random.Generator, count: int, names: int, cost: Any, **more: Any) -> Study:
    """A study of `count` uniform trials of `names` hyperparameters x0, x1, … in 0..1; `cost` of a point is the objective."""
    points = rng.random((count, names))
    params = [{f"x{j}": float(u) for j, u in enumerate(row)} for row in points]
    space = {f"x{j}": Parameter(role="nuisance", low=0.0, high=1.0) for j in range(names)}
    return make_study(params, {"val/loss": [float(cost(row)) for row in points]}, space=space, **more)


def _points(metric: str, values: Sequence[Any], steps: Any, every: int, times: Sequence[Any] | None) -> Points:
    columns: list[tuple[Any, Any, Any, Any]] = []
    for i, curve in enumerate(values):
        if curve is None:
            continue
        ys = np.atleast_1d(np.asarray(curve, dtype=float))
        if steps is None:
            xs = every * np.arange(1, len(ys) + 1)
        elif isinstance(steps, Mapping):
            xs = np.asarray(steps[metric][i]) if metric in steps else every * np.arange(1, len(ys) + 1)
        else:
            xs = np.asarray(steps)[: len(ys)]
        columns.append((np.full(len(ys), i), xs, ys, xs if times is None else np.asarray(times[i])))
    runs, at, ys, clock = (np.concatenate([c[k] for c in columns]) for k in range(4))
    return Points(runs.astype(np.int64), at.astype(np.int64), ys, clock.astype(float))


@lru_cache
def _rule(rule_id: str, thresholds: tuple[tuple[str, Any], ...]) -> Rule:
    """Return the rule with these thresholds; loading all rules takes longer than most judgements."""
    rules = load_rules(settings={rule_id: dict(thresholds)} if thresholds else None)
    return next(r for r in rules if r.rule_id() == rule_id)


def verdict(rule_id: str, study: Study, **thresholds: Any) -> Verdict:
    """Return the verdict of the rule on the study, with the confidence that it states itself; fail if the rule is broken."""
    (result,) = judge(study, [_rule(rule_id, tuple(thresholds.items()))], calibrate=False)
    assert result.status != "broken", result.reason
    return result


def lacking(rule_id: str, study: Study, **thresholds: Any) -> str:
    """Return the reason why the rule cannot judge the study; fail if it can."""
    result = verdict(rule_id, study, **thresholds)
    assert (result.status, bool(result.reason)) == ("not-assessed", True)
    return str(result.reason)

"""Counts how often 90 % forecast intervals contain the result: the second half of each curve is forecast from the first.

    python benchmarks/quality/forecasts.py               real curves (`ADVISOR_BENCHMARK`), and simulated ones
    python benchmarks/quality/forecasts.py --studies 50  fewer simulated studies

Only curves whose first half still improves, by the test of the rule `curve-still-improving`, get a forecast: the best value after
twice the steps. Prints one line for each source: the number of curves, the share of intervals that contain the result, the shares
of results better and worse than the interval, the median width as a share of the gain so far, and the number of bounds outside the
metric's possible values. Curves whose rate decays after the cut have separate lines, because the advisor makes no forecast for a
known decay.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.parquet as pq
from cases import REAL
from worlds import length

from advisor.computed.curves import curve_tails
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Study, Trial
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.study.assemble import assemble

CONSTANT = ("deepobs", "deepobs_svhn", "taskset")
DECAYING = ("algoperf", "algoperf_generalized_adam")
MIN_POINTS = 16
"""Minimum number of evaluations that a curve must have for its first half to be used."""


@dataclass(frozen=True)
class HalfCurve:
    """The first half of a curve of the objective, and the best value of the whole curve."""

    study: Study
    trial: Trial
    best: float


def _half_curve(steps: IntArray, values: FloatArray, metric: str, maximize: bool) -> HalfCurve | None:
    if len(steps) < MIN_POINTS or not np.isfinite(values).all():
        return None
    half = steps <= steps[-1] / 2
    points = Points(np.zeros(int(half.sum()), dtype=np.int64), steps[half], values[half], np.full(int(half.sum()), np.nan))
    run = Run("0", "run", "FINISHED", {"learning_rate": "0.1", "scheduler": "constant"}, {}, 0.0, 1.0)
    experiment = Experiment("half", (run,), {metric: points}, {})
    study = assemble(experiment, objective=metric, direction="maximize" if maximize else "minimize")
    return HalfCurve(study, study.trials[0], float(values.max() if maximize else values.min()))


def halves_of_real_curves(source: str) -> Iterator[HalfCurve]:
    """Yield the first halves of the objective's curves in a source."""
    table = pq.read_table(REAL.folder / source / "curves.parquet", columns=["study", "trial", "metric", "step", "value"])
    curves = dict(tuple(table.to_pandas().groupby(["study", "trial", "metric"], observed=True)))
    for trial in pq.read_table(REAL.folder / source / "trials.parquet").to_pylist():
        curve = curves.get((trial["study"], trial["trial"], trial["objective"]))
        if curve is None:
            continue
        steps, order = np.unique(curve["step"].to_numpy(), return_index=True)
        values = curve["value"].to_numpy().astype(np.float64)[order]
        half = _half_curve(steps.astype(np.int64), values, trial["objective"], trial["direction"] == "max")
        if half is not None:
            yield half


def halves_of_simulated_curves(studies: int) -> Iterator[HalfCurve]:
    """Yield the first halves of curves at a constant learning rate, simulated by the laws of `worlds.length`."""
    draw = partial(length.make, kind="constant", low=-1.0, high=10.0, known="logged")
    for seed in range(1000, 1000 + studies):
        made = draw(np.random.default_rng(seed))
        study = assemble(made.experiment, **made.arguments)
        for trial in study.trials:
            curve = study.metric(trial, study.spec.objective.metric)
            half = _half_curve(curve.steps, curve.values, study.spec.objective.metric, not study.minimize)
            if half is not None:
                yield half


def forecast_outcome(half: HalfCurve) -> tuple[float, float, float, float] | None:
    """Return (result below the interval, above it, width of the interval, bounds outside the possible values) for a forecast; None
    if the advisor would make no forecast."""
    try:
        (ending,) = curve_tails.best_curve_endings(half.study, 1, 1.0)
    except MissingData:
        return None
    if not ending.end.is_improving(curve_tails.MIN_WORTHWHILE_GAIN, 0.05):
        return None
    made = curve_tails.forecast_longer_training(half.study, ending)
    floor = curve_tails.lowest_possible_cost(half.study, half.study.cost_curve(half.trial).values)
    costs = sorted(half.study.objective_value(v) for v in (made.low, made.high))
    beyond = costs[0] < floor - 1e-12
    best = half.best if half.study.minimize else -half.best
    curve = half.study.cost_curve(half.trial).values
    gained = float(curve.max() - curve.min()) or 1.0
    return float(best < costs[0] - 1e-12), float(best > costs[1] + 1e-12), (costs[1] - costs[0]) / gained, float(beyond)


def line(name: str, halves: Iterator[HalfCurve]) -> str:
    found = np.array([o for half in halves if (o := forecast_outcome(half)) is not None])
    if not len(found):
        return f"{name:32} none"
    better, worse, width, beyond = found.T
    held = 1 - better.mean() - worse.mean()
    shares = f"{held:7.0%} {better.mean():9.0%} {worse.mean():9.0%}"
    return f"{name:32} {len(found):6} {shares} {np.median(width):8.2f} {beyond.sum():7.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=100, help="number of simulated studies; default: 100")
    options = parser.parse_args()
    print(f"{'source':32} {'curves':>6} {'hold':>7} {'better':>9} {'worse':>9} {'width':>8} {'beyond':>7}")
    print(line("simulated, constant rate", halves_of_simulated_curves(options.studies)), flush=True)
    for source in (*CONSTANT, *DECAYING):
        if (REAL.folder / source).is_dir():
            print(
                line(f"{source}, {'constant' if source in CONSTANT else 'decays'}", halves_of_real_curves(source)), flush=True
            )


if __name__ == "__main__":
    main()

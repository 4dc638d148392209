"""Measures how evenly our trials cover a space, beside AlgoPerf's Halton sequences and random points.

    ADVISOR_BENCHMARK=... python benchmarks/quality/halton.py

The measure is the centred discrepancy (0 is perfectly even) of the whole space and its mean over single axes and over pairs of
axes, because only a few hyperparameters matter. AlgoPerf's sequences come from `halton_reference/sequences.json` in the folder
`ADVISOR_BENCHMARK`. Our sequences of the same sizes come from `advisor.planning.sampling.halton`, with many seeds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import qmc

from advisor.model.space import FloatArray
from advisor.model.spec import Objective, Parameter, Sampler, StudySpec
from advisor.planning.sampling.halton import sample

FOLDER = Path(os.environ.get("ADVISOR_BENCHMARK", Path(__file__).resolve().parents[3] / "shared" / "benchmark"))
SEEDS = 100
VIEWS = ("all axes", "pairs", "single axes")


@dataclass(frozen=True)
class DiscrepancyRow:
    """Discrepancies for one number of points and dimensions, by view."""

    points: int
    dimensions: int
    reference: FloatArray
    """Shape (sequences, views)."""
    ours: FloatArray
    """Shape (seeds, views)."""
    random: FloatArray
    """Shape (seeds, views)."""

    @property
    def name(self) -> str:
        return f"{self.points} points, {self.dimensions} axes"


def reference_sequences() -> dict[tuple[int, int], list[FloatArray]]:
    """Return AlgoPerf's sequences by (points, dimensions). Sequences with the same points in another order count once."""
    stored = json.loads((FOLDER / "halton_reference" / "sequences.json").read_text())["sequences"]
    sequences: dict[tuple[int, int], list[FloatArray]] = defaultdict(list)
    for sequence in stored:
        points = np.array(sequence["points"], dtype=np.float64)
        points = points[np.lexsort(points.T)]
        unique = sequences[points.shape[0], points.shape[1]]
        if not any(np.array_equal(points, other) for other in unique):
            unique.append(points)
    return sequences


def trial_positions(points: int, dimensions: int, seed: int, kind: str = "halton", skip: int = 0) -> FloatArray:
    """Return the trials of a study as positions in its space, shape (points, dimensions)."""
    spec = StudySpec(
        study="s",
        objective=Objective(metric="m", direction="minimize"),
        parameters={f"p{i:02}": Parameter(low=0.0, high=1.0) for i in range(dimensions)},
        sampler=Sampler.model_validate({"kind": kind, "seed": seed}),
    )
    return np.array([list(trial.values()) for trial in sample(spec, points, skip=skip)], dtype=np.float64)


def discrepancies(points: FloatArray) -> FloatArray:
    """Return the centred discrepancy by view, shape (views,)."""
    axes = range(points.shape[1])
    pairs = [qmc.discrepancy(points[:, pair], method="CD") for pair in combinations(axes, 2)]
    single = [qmc.discrepancy(points[:, [i]], method="CD") for i in axes]
    whole = qmc.discrepancy(points, method="CD")
    return np.array([whole, float(np.mean(pairs)) if pairs else whole, float(np.mean(single))])


def rows(seeds: int = SEEDS) -> Iterator[DiscrepancyRow]:
    """Yield a row for each size in the reference."""
    for (points, dimensions), sequences in sorted(reference_sequences().items()):
        yield DiscrepancyRow(
            points,
            dimensions,
            np.array([discrepancies(s) for s in sequences]),
            np.array([discrepancies(trial_positions(points, dimensions, seed)) for seed in range(seeds)]),
            np.array([discrepancies(trial_positions(points, dimensions, seed, "random")) for seed in range(seeds)]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    print("median (and best) of AlgoPerf's sequences; median (10 % to 90 %) of ours and of random points;")
    print("seeds of ours that are at least as even as the median, and as the best, of AlgoPerf's\n")
    print(f"{'':24}{'AlgoPerf':>22}{'ours':>30}{'random':>12}{'seeds':>14}")
    for row in rows(seeds):
        for i, view in enumerate(VIEWS[: 3 if row.dimensions > 1 else 1]):
            theirs, ours = row.reference[:, i], row.ours[:, i]
            low, middle, high = np.quantile(ours, [0.1, 0.5, 0.9])
            shares = f"{np.mean(ours <= np.median(theirs)):.0%} {np.mean(ours <= theirs.min()):.0%}"
            print(
                f"{row.name if i == 0 else '':24}{view:12}{np.median(theirs):9.4f} ({theirs.min():.4f})"
                f"{middle:9.4f} ({low:.4f}-{high:.4f}){np.median(row.random[:, i]):9.4f}{shares:>14}"
            )


if __name__ == "__main__":
    main()

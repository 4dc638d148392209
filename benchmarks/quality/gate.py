"""Measures `advisor gate` in loops of proposals: false keeps, kept gains, and the number of runs needed.

`python benchmarks/quality/gate.py` simulates loops of 100 proposals: one in ten has a true gain of 1.5 seed deviations, the others
have no gain. It makes such loops from recorded repeats, too. The gate is asked after each run. For comparison, the same loops keep
each better single run. Develop on `--first-seed 0`; the default seeds are for the report.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cases import REAL

from advisor.history.answer import MAX_RUNS_PER_SETTING
from advisor.history.gate import DEFAULT_WORTHWHILE_GAIN, MAX_MISS_PROBABILITY, MAX_WRONGLY_KEPT_SHARE
from advisor.model.space import FloatArray
from advisor.stats import difference
from advisor.stats.sequential import NoiseFloor, RunSample, SequentialTest, SignificanceLevels

FIRST_SEED = 5_000
LOOPS = 200
PROPOSALS = 100
GAIN = 1.5
SHARE = 0.1

Draw = Callable[[np.random.Generator, float], float]
"""Function that draws the deviation of a run's cost from its setting's mean cost, with mean 0, given the setting's standard
deviation."""


@dataclass
class SimulatedSetting:
    """A setting in a simulated loop: its true mean cost, the standard deviation of its runs' costs, and the costs of its runs."""

    mean: float
    deviation: float
    costs: list[float] = field(default_factory=list)

    def run(self, draw: Draw, rng: np.random.Generator) -> None:
        self.costs.append(self.mean + draw(rng, self.deviation))

    @property
    def sample(self) -> RunSample:
        return RunSample.from_costs(np.array(self.costs))


@dataclass
class LoopResults:
    """Summed results of one or more loops."""

    loops: int = 0
    loops_with_false: int = 0
    false_shares: float = 0.0
    """Sum over the loops of the share of kept proposals that have no true gain."""
    gains: int = 0
    gains_kept: int = 0
    extra: list[int] = field(default_factory=list)
    """Number of runs of each proposal beyond its first run."""
    extra_of_gains: list[int] = field(default_factory=list)


HEAD = (
    "| runs vary | loops | false share of keeps | loops with a false keep | gains kept | further runs per proposal (median) "
    "| for a gain | better single run: false share of keeps | gains kept |\n|---|---|---|---|---|---|---|---|---|"
)


def table_row(name: str, gate: LoopResults, single: LoopResults) -> str:
    """Return a row of the table: the results of the same loops decided by the gate and by the better single run."""
    cells = (
        f"{gate.loops}",
        f"{gate.false_shares / gate.loops:.1%}",
        f"{gate.loops_with_false / gate.loops:.1%}",
        f"{gate.gains_kept / max(gate.gains, 1):.0%}",
        f"{np.median(gate.extra):.0f}",
        f"{np.median(gate.extra_of_gains or [0]):.0f}",
        f"{single.false_shares / single.loops:.1%}",
        f"{single.gains_kept / max(single.gains, 1):.0%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def _gamma_shape(rng: np.random.Generator, sign: float) -> float:
    return sign * (float(rng.gamma(1.0)) - 1)


WORLDS: dict[str, Draw] = {
    "normal": lambda rng, _: float(rng.standard_normal()),
    "heavy tails (t, 3 degrees of freedom)": lambda rng, _: float(rng.standard_t(3)) / math.sqrt(3),
    "unequal deviations": lambda rng, deviation: deviation * float(rng.standard_normal()),
    "bad runs now and then (skewed)": lambda rng, _: _gamma_shape(rng, 1.0),
    "lucky runs now and then (skewed)": lambda rng, _: _gamma_shape(rng, -1.0),
}


def _standard_deviation(world: str, rng: np.random.Generator) -> float:
    """Return the standard deviation of a setting's costs; in the world "unequal deviations" it is log-normal with a root mean
    square of 1."""
    return math.exp(0.5 * float(rng.standard_normal()) - 0.5) if world == "unequal deviations" else 1.0


def run_simulated_loop(
    world: str, seed: int, tally: LoopResults, *, baseline: int, proposals: int = PROPOSALS, single: bool = False
) -> None:
    """Run one simulated loop and add its results to the tally. baseline: runs of the first setting; single: take the better single
    run."""
    rng = np.random.default_rng([seed, *world.encode()])
    draw = WORLDS[world]
    first = SimulatedSetting(0.0, _standard_deviation(world, rng))
    for _ in range(baseline):
        first.run(draw, rng)

    def propose(incumbent: SimulatedSetting) -> tuple[SimulatedSetting, bool]:
        gain = GAIN if rng.random() < SHARE else 0.0
        return SimulatedSetting(incumbent.mean - gain, _standard_deviation(world, rng)), gain > 0

    run_loop(first, propose, lambda s: s.run(draw, rng), proposals, tally, single=single)


def run_loop(
    first: SimulatedSetting,
    propose: Callable[[SimulatedSetting], tuple[SimulatedSetting, bool]],
    run: Callable[[SimulatedSetting], None],
    proposals: int,
    tally: LoopResults,
    *,
    single: bool,
) -> None:
    """Run a loop of proposals. propose: returns the next setting and whether it is truly better than the incumbent."""
    incumbent, settings, repeated = first, [first], 1  # the baseline counts as the first setting
    keeps = wrong = 0
    for number in range(1, proposals + 1):
        candidate, better = propose(incumbent)
        settings.append(candidate)
        run(candidate)
        if single:
            kept, runs = candidate.costs[0] < incumbent.costs[0], 0
        else:
            kept, runs = _judge(candidate, incumbent, settings, number, repeated + 1, keeps, run)
        repeated += len(candidate.costs) > 1
        tally.extra.append(runs)
        if better:
            tally.gains += 1
            tally.gains_kept += kept
            tally.extra_of_gains.append(runs)
        if kept:
            incumbent = candidate
            keeps, wrong = keeps + 1, wrong + (not better)
    tally.loops += 1
    tally.loops_with_false += wrong > 0
    tally.false_shares += wrong / max(keeps, 1)


def _judge(
    candidate: SimulatedSetting,
    incumbent: SimulatedSetting,
    settings: Sequence[SimulatedSetting],
    number: int,
    repeat: int,
    keeps: int,
    run: Callable[[SimulatedSetting], None],
) -> tuple[bool, int]:
    """Ask the gate after each run until it decides. Return (whether the proposal is kept, number of further runs)."""
    levels = SignificanceLevels.in_loop_levels(
        number + 1, repeat, keeps, error=MAX_WRONGLY_KEPT_SHARE, miss=MAX_MISS_PROBABILITY
    )
    others = difference.pooled_deviation([np.array(s.costs) for s in settings if s is not candidate and s is not incumbent])
    runs = 0
    while True:
        pair = candidate.sample, incumbent.sample
        freedom = sum(s.size - 1 for s in pair) + (others[1] if others else 0)
        if freedom == 0:
            for setting in (incumbent, incumbent, candidate):
                run(setting)
                runs += 1
            continue
        squares = sum(s.sum_of_squares for s in pair) + (others[0] ** 2 * others[1] if others else 0)
        floor = NoiseFloor(math.sqrt(squares / freedom), freedom)
        fresh = RunSample.from_costs(np.array(candidate.costs[1:])) if len(candidate.costs) > 1 else None
        test = SequentialTest(pair[0], fresh, pair[1], floor, DEFAULT_WORTHWHILE_GAIN * floor.sd, levels)
        if test.decision != "not decided":
            return test.decision == "keep", runs
        more = test.next_run(MAX_RUNS_PER_SETTING)
        if more == (0, 0):
            return False, runs
        run(candidate if more[0] else incumbent)
        runs += 1


# --- recorded repeats -----------------------------------------------------------------------------------------------------------


def run_recorded_loop(
    group: FloatArray, seed: int, tally: LoopResults, *, baseline: int, proposals: int = PROPOSALS, single: bool = False
) -> None:
    """Run a loop whose runs are drawn from the recorded repeats of one setting. For a proposal with a gain, the gain is subtracted
    from the recorded values."""
    rng = np.random.default_rng(seed)
    deviation = float(np.std(group, ddof=1))
    centred = group - np.mean(group)

    def run(setting: SimulatedSetting) -> None:
        setting.costs.append(setting.mean + float(rng.choice(centred)))

    def propose(incumbent: SimulatedSetting) -> tuple[SimulatedSetting, bool]:
        gain = GAIN * deviation if rng.random() < SHARE else 0.0
        return SimulatedSetting(incumbent.mean - gain, 1.0), gain > 0

    first = SimulatedSetting(0.0, 1.0)
    for _ in range(baseline):
        run(first)
    run_loop(first, propose, run, proposals, tally, single=single)


def recorded_groups(folder: Path, minimum: int = 15) -> dict[str, FloatArray]:
    """Return, as costs, the best objective values of the settings with at least `minimum` recorded repeats."""
    settings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in pq.read_table(folder / "trials.parquet").to_pylist():
        if row["status"] == "complete":
            settings.setdefault((row["study"], row["params"]), []).append(row)
    curves = pq.read_table(folder / "curves.parquet", columns=["study", "trial", "metric", "value"])
    groups = {}
    for (study, _), members in settings.items():
        if len(members) >= minimum:
            own = curves.filter((pc.field("study") == study) & (pc.field("metric") == members[0]["objective"])).to_pylist()
            sign = 1 if members[0]["direction"] == "min" else -1
            best = {m["trial"]: min(sign * p["value"] for p in own if p["trial"] == m["trial"]) for m in members}
            groups[study] = np.unique(list(best.values()))  # some logs exist twice, so equal values count once
    return {name: values for name, values in groups.items() if len(values) >= minimum}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--loops", type=int, default=LOOPS)
    parser.add_argument("--baseline", type=int, default=5, help="runs of the first setting")
    parser.add_argument("--world", choices=tuple(WORLDS))
    parser.add_argument("--only", choices=("simulated", "recorded"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.loops)
    print(HEAD)
    for world in WORLDS if options.only != "recorded" else ():
        if options.world not in (None, world):
            continue
        both = LoopResults(), LoopResults()
        for seed, single in itertools.product(seeds, (False, True)):
            run_simulated_loop(world, seed, both[single], baseline=options.baseline, single=single)
        print(table_row(world, *both), flush=True)
    folder = REAL.folder / "nanogpt"
    if options.only == "simulated" or not folder.is_dir():
        return
    for name, group in recorded_groups(folder).items():
        both = LoopResults(), LoopResults()
        for seed, single in itertools.product(seeds[: max(options.loops // 4, 1)], (False, True)):
            run_recorded_loop(group, seed, both[single], baseline=options.baseline, single=single)
        print(table_row(f"{name} ({len(group)} repeats)", *both), flush=True)


if __name__ == "__main__":
    main()

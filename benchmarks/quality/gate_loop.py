"""Spends a budget of runs on a list of proposals in two loops: one takes the better single run, the other asks the gate.

`python benchmarks/quality/gate_loop.py` prints a short transcript of both loops and the true qualities at the end of 50 pairs of
loops. The list of proposals is fixed, and the training is simulated with normal noise between seeds, as in `gate.py`. At the end of
the list, both loops try the proposals again that they did not keep, until the budget is spent. Develop on `--first-seed 0`.
"""

from __future__ import annotations

import argparse
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from gate import FIRST_SEED, GAIN, SHARE, WORLDS, LoopResults, SimulatedSetting, run_loop

LOOPS = 50
BASELINE = 5
BUDGETS = (100, 200, 400)
IDEAS = (20, max(BUDGETS))
"""Lengths of the list of proposals; no budget is large enough to reach the end of the longer list."""
HARMS = (0.0, 1.0)
SHOWN = 200, 20, 1.0
"""Budget in runs, length of the list of proposals, and loss by a harmful proposal, for the transcript."""


class BudgetSpentError(Exception):
    """Raised if the budget is spent or every proposal was kept."""


def true_gains(number: int, harm: float) -> list[float]:
    """Return the true gain of each proposal, in between-seed standard deviations. One proposal in ten has a gain; half of the
    others lose `harm`."""
    draws = np.random.default_rng(0).random(number)
    return [GAIN if draw < SHARE else -harm if draw < (1 + SHARE) / 2 else 0.0 for draw in draws]


@dataclass
class Loop:
    """A loop of proposals that ends when its budget of runs is spent."""

    budget: int
    effects: Sequence[float]
    """True gain of each proposal over its incumbent, in between-seed standard deviations."""
    rng: np.random.Generator
    runs: int = 0
    proposed: list[tuple[int, SimulatedSetting, int]] = field(default_factory=list)
    """Index in `effects`, incumbent, and number of earlier runs, for each proposal made so far."""
    queue: deque[int] = field(init=False)
    """Indices of the proposals that were not kept, in the order in which they will be retried."""

    def __post_init__(self) -> None:
        self.queue = deque(range(len(self.effects)))

    def go(self, *, single: bool) -> Loop:
        """Spend the budget of runs. single: keep each proposal whose single run is better, instead of asking the gate."""
        first = SimulatedSetting(0.0, 1.0)
        try:
            for _ in range(1 if single else BASELINE):
                self._run(first)
            run_loop(first, self._propose, self._run, self.budget, LoopResults(), single=single)
        except BudgetSpentError:
            pass
        return self

    def _run(self, setting: SimulatedSetting) -> None:
        if self.runs == self.budget:
            raise BudgetSpentError
        self.runs += 1
        setting.run(WORLDS["normal"], self.rng)

    def _propose(self, incumbent: SimulatedSetting) -> tuple[SimulatedSetting, bool]:
        if self.proposed and self.proposed[-1][1] is incumbent:  # the last proposal was rejected
            self.queue.append(self.proposed[-1][0])
        idea = self.queue.popleft() if self.queue else -1
        self.proposed.append((idea, incumbent, self.runs))
        if idea < 0:  # every proposal was kept
            raise BudgetSpentError
        gain = self.effects[idea]
        return SimulatedSetting(incumbent.mean - gain, 1.0), gain > 0

    @property
    def quality(self) -> float:
        """True gain of the final incumbent over the baseline, in between-seed standard deviations."""
        return -self.proposed[-1][1].mean

    def answers(self) -> Iterator[tuple[int, bool, int]]:
        """Yield, for each answered question, the index in `effects`, whether the proposal was kept, and the cumulative number of
        runs."""
        for (idea, before, _), (_, after, runs) in itertools.pairwise(self.proposed):
            yield idea, after is not before, runs

    @property
    def false_keeps(self) -> float:
        """Share of the kept proposals that have no true gain; 0 if no proposal was kept."""
        kept = [self.effects[idea] <= 0 for idea, kept, _ in self.answers() if kept]
        return sum(kept) / max(len(kept), 1)

    def transcript(self) -> list[str]:
        """Return one line for each kept proposal and each proposal with a gain: proposal, answer, cumulative number of runs."""
        lines = [
            f"proposal {idea + 1:2} (true gain {self.effects[idea]:+.1f}): {'keep' if kept else 'discard':7} after {runs:3} runs"
            for idea, kept, runs in self.answers()
            if kept or self.effects[idea] > 0
        ]
        return [*lines, f"end: {len(self.proposed)} proposals, {self.runs} runs, true quality {self.quality:+.1f}"]


def pair_of_loops(budget: int, ideas: int, harm: float, seed: int) -> tuple[Loop, Loop]:
    """Return two loops with the same budget and the same proposals: one decides by the better single run, the other by the gate."""
    effects = true_gains(ideas, harm)
    single, gated = (Loop(budget, effects, np.random.default_rng([seed, i])).go(single=i == 0) for i in range(2))
    return single, gated


def table_row(budget: int, ideas: int, harm: float, seeds: Sequence[int]) -> str:
    """Return one row of the table of results."""
    pairs = [pair_of_loops(budget, ideas, harm, seed) for seed in seeds]
    single, gated = np.array([[each.quality for each in both] for both in pairs]).T
    false, false_gated = np.mean([[each.false_keeps for each in both] for both in pairs], axis=0)
    cells = (
        *(f"{ends.mean():.1f} ({ends.min() + 0.0:.1f})" for ends in (single, gated)),  # adding 0.0 turns -0.0 into 0.0
        *(f"{share:.0%}" for share in (false, false_gated, np.mean(gated > single), np.mean(gated < single))),
    )
    return f"| {ideas} | {harm:g} | {budget} | {' | '.join(cells)} |"


HEAD = (
    "| proposals | a bad one loses | runs | true quality, single run (worst) | gate (worst) "
    "| keeps without gain, single run | gate | gate ends better | worse |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--loops", type=int, default=LOOPS)
    options = parser.parse_args()
    for name, each in zip(("better single run", "gate"), pair_of_loops(*SHOWN, options.first_seed), strict=True):
        print(f"{name}:", *each.transcript(), "", sep="\n")
    print(HEAD)
    for ideas, harm, budget in itertools.product(IDEAS, HARMS, BUDGETS):
        print(table_row(budget, ideas, harm, range(options.first_seed, options.first_seed + options.loops)), flush=True)


if __name__ == "__main__":
    main()

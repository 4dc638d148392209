"""The rule `batch-steps`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch import targets
from advisor.computed.batch.throughput import readable
from advisor.computed.space import kinds
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import AxisEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats.steps_to_target import Scaling, scaling


class BatchSteps(Rule):
    """Larger batches no longer save steps in proportion: beyond some batch size, training needs more examples to the same target.

    ## What it looks at
    How many examples (or epochs) trials of each batch size needed until the objective reached a target: 95 % of the way from where
    training starts to what the least good batch size reaches. An objective that counts epochs or steps to a target itself is taken
    as it is, each of its values a repeat. Of each batch size the best setting counts, by the median of its repeats; without
    repeats, the best of the settings tried. Twice the batch saves half of the steps (perfect scaling) as long as the examples stay
    the same.

    ## Why it matters
    Beyond that size each doubling costs more computing than it saves time, and at some point it saves no time at all. Below, a
    larger batch is faster for the same cost, given the hardware.

    ## What to do
    Choose by training time: the size with the least time to the target; where times were not logged, steps times what a step takes
    (`batch-throughput`). A warning where larger batches than that were tried: they spend more and are done later. To spend least,
    use the largest size before examples grow. Compare sizes only with the learning rate tuned for each.

    ## How sure
    The values are dealt to the batch sizes anew, mostly 999 times; confidence is one minus the share of deals in which some batch
    size seems to need as much more than the smallest one. Of 150 simulated studies each of 2 to 4 batch sizes that need the same,
    with 3 to 10 repeats or settings of each, 0 to 6 % fired. Where the largest needed twice as much or more, all with repeats did,
    and 33, 60 and 95 % of those with 3, 5 and 10 random learning rates each.

    *Example:* "Beyond batch_size 13,056 training needs more epochs to the target: 56 with 32,768 against 40 with 4,096, 1.4 times
    as many, so 8 times the batch takes 18 % of the steps instead of 12 %."
    """

    playbook: ClassVar[str] = "Choosing the batch size to minimize training time"
    goal: ClassVar[Goal] = "efficiency"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("batch-throughput",),
            shares="study",
            because="The batch size is chosen by the time to the target, and larger ones are done later, however fast.",
            min_severity="warning",
        ),
    )

    material: Factor = 1.2
    """Times as many examples as with the smallest batch size from which on scaling is no longer near perfect. Ours: twice the batch
    then saves 40 % of the steps instead of half."""
    target: Share = 0.95
    """Share of the gain of the least good batch size that is the target. Ours: near a plateau chance decides when it is reached."""
    values: Count = 6
    """Fewest trials (settings, or repeats of one), over all batch sizes, that can tell a difference from chance."""
    false_alarms: Share = 0.05
    """How often, per study, batch sizes that need the same may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the batch size."""
        race = targets.race(study, self.target)
        count = sum(len(g.needed) for g in race.groups)
        if count < self.values:
            raise MissingData(
                f"{len(race.groups)} batch sizes have {count} trials to compare; it takes {self.values} or more, such as 3 "
                "seeds each, to tell a difference from chance"
            )
        found = scaling([g.needed for g in race.groups], race.statistic)
        if found.ratio >= self.material and found.p <= self.false_alarms:
            yield self._finding(study, race, found)

    def _finding(self, study: Study, race: targets.Race, found: Scaling) -> Finding:
        name = next((n for n in study.spec.parameters if kinds.is_batch_size(n)), None)
        sizes, levels, unit = np.array([g.size for g in race.groups]), found.levels, race.unit
        worst = int(np.argmax(levels))
        scales = levels <= self.material * levels[0]
        knee = float(sizes[: int(np.argmin(scales))].max())
        times, more = sizes[worst] / sizes[0], found.ratio
        steps = f"{times:.3g} times the batch takes {more / times:.0%} of the steps instead of {1 / times:.0%}"
        against = f"{readable(levels[worst])} with {sizes[worst]:,g} against {readable(levels[0])} with {sizes[0]:,g}"
        beyond = f"Beyond {name or 'batch size'} {knee:,g} training needs more {unit} to the target"
        said = f"{beyond}: {against}, {more:.2g} times as many, so {steps}"
        seconds = np.array([g.seconds for g in race.groups])
        soonest = float(sizes[int(np.nanargmin(seconds))]) if np.isfinite(seconds).all() else math.nan
        known = math.isfinite(soonest)
        tip = f"Use a batch size of {soonest:,g}, which reaches the target soonest" if known else ""
        tip = tip or "Choose the batch size by the time to the target, that of a step times the steps"
        tip += f"; {knee:,g} spends least." if soonest != knee else " and spends least."
        change: Change = Advise(text=tip)
        if known and name in study.searched and name is not None and soonest.is_integer():
            change = FixParameter(parameter=name, value=int(soonest), why=f"{said}.")
        rows = [
            (f"batch size {s:g}", _row(g, level, unit)) for s, g, level in zip(sizes, race.groups, levels, strict=True)
        ]
        return self.finding(
            f"{said}.",
            action=tip,
            severity="warning" if soonest < sizes[-1] else "note",
            confidence=1 - found.p,
            subject=name,
            trials=[t for g, fine in zip(race.groups, scales, strict=True) if not fine for t in g.trials],
            evidence=(
                *(
                    [AxisEvidence(parameter=name, caption=tip, lines=(Line(value=knee, label="scales up to here"),))]
                    if name
                    else []
                ),
                FigureEvidence(
                    rows=(
                        *rows,
                        ("target", _target(study, race)),
                        ("chance of as large a difference", f"{found.p:.2g}, limit {self.false_alarms:g}"),
                        ("near perfect scaling", f"up to {self.material:g} times the {unit} of the smallest batch"),
                    )
                ),
            ),
            changes=(change,),
        )


def _target(study: Study, race: targets.Race) -> str:
    counted = math.isnan(race.target)
    return "as counted by the objective" if counted else f"{study.objective_value(race.target):.4g}"


def _row(group: targets.Group, level: float, unit: str) -> str:
    time = f", {group.seconds:,.3g} s" if math.isfinite(group.seconds) else ""
    return f"{readable(level)} {unit} ({len(group.needed)} values{time})"

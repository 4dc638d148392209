"""Implements the rule `batch-steps`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import targets, tried_sizes
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import AxisEvidence, Evidence, FigureEvidence, Line, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Objective as ObjectiveValue, Percent, Probability, say
from advisor.model.study import Study
from advisor.stats.steps_to_target import StepsComparison, compare_steps


class BatchSteps(Rule):
    """Larger batches no longer save steps in proportion: beyond some batch size, training needs more examples to reach a
    target.

    ## What it looks at
    The rule compares how many examples (or epochs) each batch size needs until the objective reaches a target: 95 % of the way
    from the start of training to the result of the worst batch size. If the objective itself is the number of epochs or steps
    until a target is reached, each trial counts as one measurement of that number. Each batch size is represented by its best
    setting: by the median over the repeats of this setting or, without repeats, by its single result. Scaling is perfect if the
    number of examples stays the same: twice the batch size then needs half of the steps.

    ## Why it matters
    Beyond some batch size, each doubling costs more compute than it saves time, and in the end it saves no time at all. As long
    as doubling the batch size halves the number of steps, a larger batch is faster at the same cost, if the hardware has spare
    capacity.

    ## What to do
    Choose the batch size with the shortest time to the target. If times were not logged, multiply the steps by the time per
    step (see the rule `batch-throughput`). The finding is a warning if trials used batch sizes larger than the one that reaches
    the target first. To spend the least compute, use the largest batch size that reaches the target with no more examples than
    smaller batch sizes need. Compare batch sizes only if the learning rate was tuned for each batch size.

    ## How sure
    The test permutes the measured numbers of examples over the batch sizes; confidence is one minus the p-value of this test.
    In simulations, if all batch sizes needed equally many examples, the rule fired in at most 6 % of studies. If the largest
    batch size needed at least twice as many examples as the others, the rule fired in all simulated studies with repeats, and
    in 33, 60 and 95 % of studies with 3, 5 and 10 random learning rates per batch size.
    """

    playbook = "Choosing the batch size to minimize training time"
    goal = "efficiency"
    explains = Relation(
        rules=("batch-throughput",),
        shares="study",
        because="Larger batches reach the target later although they process more examples per second, so the time to the "
        "target decides.",
        min_severity="warning",
    )

    material: Factor = 1.2
    """Maximum number of examples to the target at which scaling counts as nearly perfect, as a multiple of the number that the
    smallest batch size needs. We chose 1.2, at which twice the batch size saves 40 % of the steps instead of 50 %.
    """
    target: Share = 0.95
    """Target value of the objective, as a share of the improvement that the worst batch size reaches. We chose a target away
    from the plateau of the curve, because noise decides at which step a curve reaches its plateau."""
    values: Count = 6
    """Minimum total number of trials over all batch sizes; repeats of one setting count as well as different settings."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study whose batch sizes all need equally many examples."""

    def check(self, study: Study) -> Iterator[Finding]:
        race = targets.compare_batch_sizes(study, self.target)
        count = sum(len(g.lengths_to_target) for g in race.groups)
        if count < self.values:
            raise MissingData(
                f"{len(race.groups)} batch sizes have {count} trials to compare; the rule needs {self.values} or more, such as 3 "
                "seeds per batch size, to exclude chance",
                needs="design",
            )
        scales = compare_steps([g.lengths_to_target for g in race.groups], race.statistic)
        if scales.largest_ratio >= self.material and scales.p_value <= self.false_alarms:
            yield self._build_finding(study, race, scales)

    def _build_finding(self, study: Study, race: targets.BatchSizeComparison, scales: StepsComparison) -> Finding:
        name = next((n for n in study.spec.parameters if parameter_kinds.is_batch_size(n)), None)
        sizes, levels = np.array([g.batch_size for g in race.groups]), scales.group_levels
        near_perfect = levels <= self.material * levels[0]
        knee = float(sizes[: int(np.argmin(near_perfect))].max())
        seconds = np.array([g.seconds_to_target for g in race.groups])
        fastest = float(sizes[int(np.nanargmin(seconds))]) if np.isfinite(seconds).all() else math.nan
        message, action = _steps_saved_message(name, race, scales, knee), _choose_action(fastest, knee)
        change: Change = Advise(text=str(action))
        if math.isfinite(fastest) and name in study.searched and name is not None and fastest.is_integer():
            change = FixParameter(
                parameter=name, value=int(tried_sizes.usable_batch_size(study, name, fastest)), why=str(message)
            )
        axis: tuple[Evidence, ...] = ()
        if name:
            line = Line(value=knee, label="scaling is nearly perfect up to here")
            axis = (AxisEvidence(parameter=name, caption=action, lines=(line,)),)
        return self.finding(
            message,
            action=action,
            severity="warning" if fastest < sizes[-1] else "note",
            confidence=1 - scales.p_value,
            subject=name,
            trials=[t for g, is_near in zip(race.groups, near_perfect, strict=True) if not is_near for t in g.trials],
            evidence=(*axis, self._figures(study, race, scales)),
            changes=(change,),
        )

    def _figures(self, study: Study, race: targets.BatchSizeComparison, scales: StepsComparison) -> FigureEvidence:
        target = say("as counted by the objective")
        if not math.isnan(race.target_value):
            target = say("{value}", value=ObjectiveValue(study.objective_value(race.target_value)))
        rows = [
            (f"batch size {Number(g.batch_size)}", _steps_and_time_text(g, float(level), race.unit))
            for g, level in zip(race.groups, scales.group_levels, strict=True)
        ]
        test = say("{p} (limit {limit})", p=Probability(scales.p_value), limit=Number(self.false_alarms))
        limit = say("up to {factor} times the {unit} of the smallest batch size", factor=Number(self.material), unit=race.unit)
        return table(
            *rows, ("target", target), ("p-value of the difference between batch sizes", test), ("near perfect scaling", limit)
        )


def _steps_saved_message(name: str | None, race: targets.BatchSizeComparison, scales: StepsComparison, knee: float) -> Message:
    sizes, levels = [g.batch_size for g in race.groups], scales.group_levels
    worst = int(np.argmax(levels))
    times = sizes[worst] / sizes[0]
    return say(
        "Beyond {name} {knee}, training needs more {unit} to the target: {most} at {worst} against {first} at {smallest} "
        "({ratio} times). With {times} times the batch, training takes {share} of the steps; perfect scaling would take {perfect}.",
        name=Name(name) if name else "batch size",
        knee=Number(knee),
        unit=race.unit,
        most=Number(float(levels[worst])),
        worst=Number(sizes[worst]),
        first=Number(float(levels[0])),
        smallest=Number(sizes[0]),
        ratio=Number(scales.largest_ratio, 2),
        times=Number(times),
        share=Percent(scales.largest_ratio / times),
        perfect=Percent(1 / times),
    )


def _choose_action(fastest: float, knee: float) -> Message:
    """`fastest` is the batch size with the shortest time to the target, or NaN if unknown."""
    if fastest == knee:
        return say("Use a batch size of {size}: it reaches the target first and needs the least compute.", size=Number(knee))
    least = say("{size} needs the least compute", size=Number(knee))
    if math.isfinite(fastest):
        return say("Use a batch size of {size}, which reaches the target first; {least}.", size=Number(fastest), least=least)
    return say(
        "Choose the batch size with the shortest time to the target (steps times the time per step); {least}.", least=least
    )


def _steps_and_time_text(group: targets.BatchSizeGroup, level: float, unit: str) -> Message:
    time = (
        say(", {seconds}", seconds=Number(group.seconds_to_target, unit="s")) if math.isfinite(group.seconds_to_target) else ""
    )
    return say("{level} {unit} ({n} values{time})", level=Number(level), unit=unit, n=len(group.lengths_to_target), time=time)

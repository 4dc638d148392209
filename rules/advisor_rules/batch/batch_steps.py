from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import batches
from advisor.computed.batch.targets import BatchSizeComparison, compare_batch_sizes
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Change, FixParameter
from advisor.model.evidence import Evidence, FigureEvidence, axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, say
from advisor.model.study import Study
from advisor_rules.batch._steps_to_target import StepsComparison, compare_steps


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
        because="Larger batches reach the target later although they process more examples per second, so the time to the "
        "target decides.",
        min_severity="warning",
    )

    material: Factor = 1.2
    """Maximum number of examples to the target at which scaling counts as nearly perfect, as a multiple of the number that the
    smallest batch size needs. We chose 1.2, at which twice the batch size saves 40 % of the steps instead of 50 %."""
    target: Share = 0.95
    """Target value of the objective, as a share of the improvement that the worst batch size reaches. We chose a target away
    from the plateau of the curve, because noise decides at which step a curve reaches its plateau."""
    values: Count = 6
    """Minimum total number of trials over all batch sizes; repeats of one setting count as well as different settings."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study whose batch sizes all need equally many examples."""

    def check(self, study: Study) -> Iterator[Finding]:
        comparison = compare_batch_sizes(study, self.target)
        trial_count = sum(len(g.lengths_to_target) for g in comparison.groups)
        if trial_count < self.values:
            raise MissingData(
                f"{len(comparison.groups)} batch sizes have {trial_count} trials to compare; the rule needs {self.values} or "
                "more, such as 3 seeds per batch size, to exclude chance",
                needs="design",
            )
        test = compare_steps([g.lengths_to_target for g in comparison.groups], comparison.statistic)
        if test.largest_ratio >= self.material and test.p_value <= self.false_alarms:
            yield self._build_finding(study, comparison, test)

    def _build_finding(self, study: Study, comparison: BatchSizeComparison, test: StepsComparison) -> Finding:
        name = next((n for n in study.spec.parameters if parameter_kinds.is_batch_size(n)), None)
        sizes, levels = np.array([g.batch_size for g in comparison.groups]), test.group_levels
        is_near_perfect = levels <= self.material * levels[0]
        efficient_size = float(sizes[: int(np.argmin(is_near_perfect))].max())
        seconds = np.array([g.seconds_to_target for g in comparison.groups])
        fastest_size = float(sizes[int(np.nanargmin(seconds))]) if np.isfinite(seconds).all() else math.nan
        message = _steps_saved_message(name, comparison, test, efficient_size)
        action = _choose_action(fastest_size, efficient_size)
        changes: tuple[Change, ...] | None = None
        if name is not None and name in study.searched and fastest_size.is_integer():
            size = int(batches.usable_batch_size(study, name, fastest_size))
            changes = (FixParameter(parameter=name, value=size, why=str(message)),)
        axis: tuple[Evidence, ...] = ()
        if name:
            axis = (axis_plot(name, action, lines={"scaling is nearly perfect up to here": efficient_size}),)
        return self.finding(
            message,
            action=action,
            severity="warning" if fastest_size < sizes[-1] else "note",
            confidence=1 - test.p_value,
            subject=name,
            trials=[t for g, is_near in zip(comparison.groups, is_near_perfect, strict=True) if not is_near for t in g.trials],
            evidence=(*axis, self._evidence_table(study, comparison, test)),
            changes=changes,
        )

    def _evidence_table(self, study: Study, comparison: BatchSizeComparison, test: StepsComparison) -> FigureEvidence:
        rows = []
        for group, level in zip(comparison.groups, test.group_levels, strict=True):
            seconds, n = group.seconds_to_target, len(group.lengths_to_target)
            time = say(", {seconds}", seconds=Number(seconds, unit="s")) if math.isfinite(seconds) else ""
            row = say("{level} {unit} ({n} values{time})", level=float(level), unit=comparison.unit, n=n, time=time)
            rows.append((f"batch size {Number(group.batch_size)}", row))
        limit = say("up to {factor} times the {unit} of the smallest batch size", factor=self.material, unit=comparison.unit)
        target = comparison.target_value
        return table(
            *rows,
            ("target", Objective(study.objective_value(target)) if math.isfinite(target) else "as counted by the objective"),
            ("p-value of the difference between batch sizes", Probability(test.p_value), self.false_alarms),
            ("examples at which scaling counts as nearly perfect", limit),
        )


def _steps_saved_message(name: str | None, comparison: BatchSizeComparison, test: StepsComparison, efficient: float) -> Message:
    sizes, levels = [g.batch_size for g in comparison.groups], test.group_levels
    slowest = int(np.argmax(levels))
    size_ratio = sizes[slowest] / sizes[0]
    text = "{most} at batch size {worst} instead of {first} at {smallest} ({ratio} times as many)"
    most, ratio = float(levels[slowest]), Number(test.largest_ratio, 2)
    increase = say(text, most=most, worst=sizes[slowest], first=float(levels[0]), smallest=sizes[0], ratio=ratio)
    share, perfect = Percent(test.largest_ratio / size_ratio), Percent(1 / size_ratio)
    beyond = "Beyond {name} {knee}, training needs more {unit} to the target: {more}. "
    text = "With {times} times the batch, training takes {share} of the steps; with perfect scaling, it would take {perfect}."
    message = say(beyond, name=Name(name) if name else "batch size", knee=efficient, unit=comparison.unit, more=increase)
    return say("{beyond}" + text, beyond=message, times=size_ratio, share=share, perfect=perfect)


def _choose_action(fastest: float, efficient: float) -> Message:
    if fastest == efficient:
        return say("Use a batch size of {size}: it reaches the target first and needs the least compute.", size=efficient)
    least_compute = say("{size} needs the least compute", size=efficient)
    if math.isfinite(fastest):
        return say("Use a batch size of {size}, which reaches the target first; {least}.", size=fastest, least=least_compute)
    text = "Choose the batch size with the shortest time to the target (steps times the time per step); {least}."
    return say(text, least=least_compute)

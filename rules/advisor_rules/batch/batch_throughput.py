"""Implements the rule `batch-throughput`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.batch import throughput, timing, tried_sizes
from advisor.engine.rule import Factor, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, FixParameter, RunPlan
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Number, Percent, say
from advisor.model.study import Study
from advisor.stats import saturation


class BatchThroughput(Rule):
    """Beyond some batch size, possibly even the smallest, larger batches hardly train more examples per second.

    ## What it looks at
    The rule compares the examples per second at each batch size; it reads them from the log or derives them from the step time.
    The rule uses trials on one kind of device, or a batch-size sweep. While the device has spare capacity, doubling the batch
    size nearly doubles the throughput. A larger batch helps if its throughput is at least 10 % higher, beyond noise; the
    recommended batch size is the largest one that helped.

    ## Why it matters
    The batch size determines how fast training is, and hardly affects the best result that a model can reach. A larger batch
    helps only because it raises the throughput. If even the first doublings of the batch size hardly raise the throughput, the
    bottleneck is the data, the communication or the training loop.

    ## What to do
    Fix the batch size at the largest one before the plateau, and tune the learning rate and regularisation for that batch size.
    If throughput still grows at the largest batch size and no size ran out of memory, measure larger sizes in a short sweep. If
    no doubling of the batch size nearly doubled the throughput, find the bottleneck first and measure again.

    ## How sure
    The noise of each throughput is estimated from ten segments of each run, or from the differences between runs with the same
    batch size if these differences are larger. Confidence is the probability of a plateau; a finding needs at least 95 %. In
    simulations, the rule never fired while the throughput grew, and found at least 85 % of the plateaus that began at the
    fourth batch size.
    """

    playbook = "Choosing the batch size"
    goal = "efficiency"
    probes = frozenset({"batch-size"})
    explains = Relation(
        rules=("batch-steps",),
        shares="study",
        because="The batch size is chosen by training time, because a batch size with more throughput may need more examples.",
        max_severity="note",
    )

    material: Share = 0.1
    """Minimum relative increase of the throughput at which a larger batch is worthwhile; the batch-size probe uses the same
    limit."""
    doubling: Factor = 1.5
    """Minimum factor by which doubling the batch size must raise the throughput to count as nearly doubling it; the batch-size
    probe uses the same limit."""
    false_alarms: Share = 0.05
    """Maximum probability of reporting a plateau although the throughput still grows."""

    def check(self, study: Study) -> Iterator[Finding]:
        speeds = throughput.throughput_by_batch_size(study)
        if len(speeds) < 2:
            raise MissingData(
                f"the throughput of {len(speeds) or 'no'} batch size{'s' if len(speeds) != 1 else ''} is known, and the rule needs "
                "2 or more; run batch_size_sweep of the advisor's training hook, or log train/examples_per_s and the batch size",
                needs="design",
            )
        if not any(math.isfinite(s.mean_log_rate.error) for s in speeds):
            raise MissingData(
                "each batch size has one value of the throughput, which does not show its noise; log train/examples_per_s at "
                "every step",
                needs="timing",
            )
        conclusion = self._conclude_from_throughput(study, speeds)
        if conclusion is not None:
            yield self._build_finding(study, speeds, conclusion)

    def _conclude_from_throughput(self, study: Study, speeds: Sequence[throughput.Throughput]) -> _ThroughputConclusion | None:
        sizes, rates = np.array([s.batch_size for s in speeds]), [s.mean_log_rate for s in speeds]
        alpha, last = self.false_alarms, len(speeds) - 1
        growth = saturation.find_saturation(sizes, rates, material=self.material, doubling=self.doubling, alpha=alpha)
        if growth.never_scales_probability >= 1 - alpha and growth.chosen_index in (0, last):
            cause, action = _describe_bottleneck(study, speeds)
            what = say(
                "No doubling of the batch size nearly doubles the throughput; the largest increase is by a factor of {most}. "
                "{cause}",
                most=Number(growth.max_growth_factor),
                cause=cause,
            )
            return _ThroughputConclusion(what, say(action), None, growth.never_scales_probability)
        if growth.saturation_probability >= 1 - alpha:
            return _conclude_throughput_plateau(
                speeds[growth.chosen_index], speeds[growth.chosen_index + 1], growth.saturation_probability
            )
        if growth.chosen_index < last:
            return None
        return _conclude_throughput_growth(speeds[last], tried_sizes.smallest_oom_batch_size(study), 1 - alpha)

    def _build_finding(
        self, study: Study, speeds: Sequence[throughput.Throughput], conclusion: _ThroughputConclusion
    ) -> Finding:
        name = next((n for n in study.searched if parameter_kinds.is_batch_size(n)), None)
        chosen = conclusion.recommended_size
        changes: list[Change] = [Advise(text=str(conclusion.action))]
        trials = study.probe is None or study.spec.baseline is not None
        if name is not None and chosen is not None and trials and chosen.batch_size.is_integer():
            changes = [FixParameter(parameter=name, value=int(chosen.batch_size), why=f"{conclusion.sentence}.")]
            if conclusion.try_larger_sizes:
                numbers = {"from": 2 * chosen.batch_size}
                changes.append(RunPlan(plan="batch-sweep", parameter=name, numbers=numbers, why=str(conclusion.sentence)))
        trials_beyond = [t for s in speeds if chosen is not None and s.batch_size > chosen.batch_size for t in s.trials]
        wasted = chosen is None or (trials_beyond and study.probe is None)
        return self.finding(
            say("{what}.", what=conclusion.sentence),
            action=conclusion.action,
            severity="warning" if wasted else "note",
            confidence=min(conclusion.confidence, 0.99),
            subject=name,
            trials=trials_beyond or [t for s in speeds if chosen is None or s is chosen for t in s.trials],
            evidence=table(
                *((f"batch size {Number(s.batch_size)}", _throughput_text(s)) for s in speeds),
                ("worth a larger batch", say("{more} more, beyond noise", more=Percent(self.material))),
                (
                    "required increase for twice the batch size",
                    say("a factor of at least {factor}", factor=Number(self.doubling)),
                ),
            ),
            changes=changes,
        )


@dataclass(frozen=True)
class _ThroughputConclusion:
    """Conclusion from the throughput at different batch sizes, with the recommended batch size."""

    sentence: Message
    """The conclusion as a sentence without its full stop."""
    action: Message
    recommended_size: throughput.Throughput | None
    """Recommended batch size; None if a bottleneck must be fixed first."""
    confidence: float
    try_larger_sizes: bool = False
    """True if the throughput should be measured at even larger batch sizes."""


def _conclude_throughput_plateau(
    best_speed: throughput.Throughput, next_speed: throughput.Throughput, probability: float
) -> _ThroughputConclusion:
    change = next_speed.examples_per_s / best_speed.examples_per_s - 1
    what = say(
        "Throughput stops growing at batch size {size}: {rate} examples/s there, {next} ({sign}{change}) at {larger}",
        size=Number(best_speed.batch_size),
        rate=Number(best_speed.examples_per_s),
        next=Number(next_speed.examples_per_s),
        sign="+" if change >= 0 else "",
        change=Percent(change),
        larger=Number(next_speed.batch_size),
    )
    action = say(
        "Use a batch size of {size}, the largest before the plateau, and tune the learning rate for it.",
        size=Number(best_speed.batch_size),
    )
    return _ThroughputConclusion(what, action, best_speed, probability)


def _conclude_throughput_growth(
    largest: throughput.Throughput, out_of_memory: float, probability: float
) -> _ThroughputConclusion:
    """Return the conclusion for a throughput that still grows at the largest batch size.

    `out_of_memory` is the smallest batch size that ran out of memory, or NaN if there is none.
    """
    size, larger = Number(largest.batch_size), not out_of_memory > largest.batch_size
    limit = "was tried" if larger else say("fits: {out} ran out of memory", out=Number(out_of_memory))
    what = say("Throughput still grows at batch size {size}, the largest that {limit}", size=size, limit=limit)
    more = ", or try larger ones" if larger else ""
    action = say("Use a batch size of {size}{more}, and tune the learning rate for it.", size=size, more=more)
    return _ThroughputConclusion(what, action, largest, probability, larger)


def _describe_bottleneck(study: Study, speeds: Sequence[throughput.Throughput]) -> tuple[Message, str]:
    """Return (sentence about the measured cause of the step time, recommended action). The sentence has no full stop."""
    times = [t for s in speeds for trial in s.trials[:4] if (t := timing.read_step_times(study, trial)) is not None]
    waited = float(np.median([t.data_wait_share.value for t in times] or [0.0]))
    blocked = float(np.median([t.gpu_blocked_share.value for t in times if t.gpu_blocked_share is not None] or [0.0]))
    if waited > timing.MAX_DATA_WAIT_SHARE:
        cause = say("The steps wait for data {share} of their time", share=Percent(waited))
        return cause, "Speed up the input pipeline, then measure the throughput again."
    if blocked > timing.MAX_HOST_TIME_SHARE:
        cause = say("The GPU waits for the training loop {share} of the time", share=Percent(blocked))
        return cause, "Do not wait for the device in every step, then measure the throughput again."
    unknown = "" if times else ", or waits for something that was not measured"
    return (
        say("The device is busy even at the smallest batch size{unknown}", unknown=unknown),
        "Profile a few steps. A larger batch makes training faster only if the throughput grows with it.",
    )


def _throughput_text(speed: throughput.Throughput) -> Message:
    error = math.expm1(speed.mean_log_rate.error) if math.isfinite(speed.mean_log_rate.error) else math.nan
    return say(
        "{rate}{noise}, {time} a step",
        rate=Number(speed.examples_per_s, unit="examples/s"),
        noise=say(" ± {error}", error=Percent(error, 1)) if math.isfinite(error) else "",
        time=Number(1e3 * speed.batch_size / speed.examples_per_s, unit="ms"),
    )

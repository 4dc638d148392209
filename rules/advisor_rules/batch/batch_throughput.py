from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from advisor.computed.batch import batches, throughput, timing
from advisor.engine.rule import Factor, Relation, Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, FixParameter, RunPlan
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Number, Percent, say
from advisor.model.study import Study
from advisor.stats import estimates


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
        throughputs = throughput.throughput_by_batch_size(study)
        if len(throughputs) < 2:
            raise MissingData(
                f"the throughput of {len(throughputs) or 'no'} batch size{'s' if len(throughputs) != 1 else ''} is known, and "
                "the rule needs 2 or more; run batch_size_sweep of the advisor's training hook, or log train/examples_per_s "
                "and the batch size",
                needs="design",
            )
        if not any(math.isfinite(s.mean_log_rate.error) for s in throughputs):
            raise MissingData(
                "each batch size has one value of the throughput, which does not show its noise; log train/examples_per_s at "
                "every step",
                needs="timing",
            )
        sizes, rates = np.array([s.batch_size for s in throughputs]), [s.mean_log_rate for s in throughputs]
        confidence, last_index = 1 - self.false_alarms, len(throughputs) - 1
        knee = estimates.find_saturation(sizes, rates, material=self.material, doubling=self.doubling, alpha=self.false_alarms)
        if knee.never_scales_probability >= confidence and knee.chosen_index in (0, last_index):
            cause, advice = _describe_bottleneck(study, throughputs)
            text = "No doubling of the batch size nearly doubles the throughput; the largest increase is by a factor of {most}."
            statement = say(text + " {cause}", most=knee.max_growth_factor, cause=cause)
            yield self._build_finding(study, throughputs, None, statement, say(advice), knee.never_scales_probability)
        elif knee.saturation_probability >= confidence:
            best, following = throughputs[knee.chosen_index : knee.chosen_index + 2]
            statement = _describe_plateau(best, following)
            text = "Use a batch size of {size}, the largest before the plateau, and tune the learning rate for it."
            action = say(text, size=best.batch_size)
            yield self._build_finding(study, throughputs, best, statement, action, knee.saturation_probability)
        elif knee.chosen_index == last_index:
            yield self._report_growth(study, throughputs, batches.smallest_oom_batch_size(study))

    def _report_growth(self, study: Study, throughputs: Sequence[throughput.Throughput], out_of_memory: float) -> Finding:
        size = throughputs[-1].batch_size
        larger = not out_of_memory > size
        limit = "was tried" if larger else say("fits: {out} ran out of memory", out=out_of_memory)
        statement = say("Throughput still grows at batch size {size}, the largest that {limit}", size=size, limit=limit)
        try_larger = ", or try larger ones" if larger else ""
        action = say("Use a batch size of {size}{more}, and tune the learning rate for it.", size=size, more=try_larger)
        return self._build_finding(study, throughputs, throughputs[-1], statement, action, 1 - self.false_alarms, larger=larger)

    def _build_finding(
        self,
        study: Study,
        throughputs: Sequence[throughput.Throughput],
        chosen: throughput.Throughput | None,
        statement: Message,
        action: Message,
        confidence: float,
        *,
        larger: bool = False,
    ) -> Finding:
        """Return the finding. `chosen` is None if a bottleneck must be fixed first; `larger` is True if even larger batch sizes
        should be measured."""
        name = next((n for n in study.searched if parameter_kinds.is_batch_size(n)), None)
        changes: list[Change] = [Advise(text=str(action))]
        measures_trials = study.probe is None or study.spec.baseline is not None
        if name is not None and chosen is not None and measures_trials and chosen.batch_size.is_integer():
            changes = [FixParameter(parameter=name, value=int(chosen.batch_size), why=f"{statement}.")]
            if larger:
                numbers = {"from": 2 * chosen.batch_size}
                changes.append(RunPlan(plan="batch-sweep", parameter=name, numbers=numbers, why=str(statement)))
        trials_beyond = [t for s in throughputs if chosen is not None and s.batch_size > chosen.batch_size for t in s.trials]
        factor = say("a factor of at least {factor}", factor=self.doubling)
        return self.finding(
            say("{what}.", what=statement),
            action=action,
            severity="warning" if chosen is None or (trials_beyond and study.probe is None) else "note",
            confidence=min(confidence, 0.99),
            subject=name,
            trials=trials_beyond or [t for s in throughputs if chosen is None or s is chosen for t in s.trials],
            evidence=table(
                *((f"batch size {Number(s.batch_size)}", _throughput_text(s)) for s in throughputs),
                ("minimum increase that justifies a larger batch", say("{more}, beyond noise", more=Percent(self.material))),
                ("required increase of the throughput for twice the batch size", factor),
            ),
            changes=changes,
        )


def _describe_bottleneck(study: Study, throughputs: Sequence[throughput.Throughput]) -> tuple[Message, str]:
    times = [t for s in throughputs for trial in s.trials[:4] if (t := timing.read_step_times(study, trial)) is not None]
    wait_share = float(np.median([t.data_wait_share.value for t in times] or [0.0]))
    blocked_share = float(np.median([t.gpu_blocked_share.value for t in times if t.gpu_blocked_share is not None] or [0.0]))
    if wait_share > timing.MAX_DATA_WAIT_SHARE:
        cause = say("The steps wait for data {share} of their time", share=Percent(wait_share))
        return cause, "Speed up the input pipeline, then measure the throughput again."
    if blocked_share > timing.MAX_HOST_TIME_SHARE:
        cause = say("The GPU waits for the training loop {share} of the time", share=Percent(blocked_share))
        return cause, "Do not wait for the device in every step, then measure the throughput again."
    unknown = "" if times else ", or waits for something that was not measured"
    return (
        say("The device is busy even at the smallest batch size{unknown}", unknown=unknown),
        "Profile a few steps. A larger batch makes training faster only if the throughput grows with it.",
    )


def _throughput_text(speed: throughput.Throughput) -> Message:
    error = math.expm1(speed.mean_log_rate.error)
    noise = say(" ± {error}", error=Percent(error, 1)) if math.isfinite(error) else ""
    rate = Number(speed.examples_per_s, unit="examples/s")
    time = Number(1e3 * speed.batch_size / speed.examples_per_s, unit="ms")
    return say("{rate}{noise}, {time} a step", rate=rate, noise=noise, time=time)


def _describe_plateau(best: throughput.Throughput, following: throughput.Throughput) -> Message:
    change = following.examples_per_s / best.examples_per_s - 1
    text = "Throughput stops growing at batch size {size}: {rate} examples/s there, {next} ({sign}{change}) at {larger}"
    size, rate, sign, larger = best.batch_size, best.examples_per_s, "+" if change >= 0 else "", following.batch_size
    return say(text, size=size, rate=rate, next=following.examples_per_s, sign=sign, change=Percent(change), larger=larger)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.evidence import curve_plot
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Number, Percent, say
from advisor.model.study import Study
from advisor.stats.estimates import Estimate
from advisor_rules.batch._shares import judged_trials_text, shares_table


class HostSync(Rule):
    """The GPU is idle between steps although its data is ready: the training loop and the GPU wait for each other.

    ## What it looks at
    The rule measures the time from one step to the next, minus the time in which the GPU computed and the time spent waiting
    for data. A host that only queues work runs ahead of the device and leaves no idle time between steps. Single long steps
    that contain an evaluation are left out. The idle time of the device between steps must be a large share of the step time in
    most of the trials.

    ## Why it matters
    If the training loop reads a loss with `.item()`, prints the loss or branches on it, the host waits until the device is
    done. After each wait for the device, the device is idle until the host has queued the next step.

    ## What to do
    Keep losses and metrics on the device and read them only every few steps, or pass tensors to the advisor's logger, which
    copies them without waiting. Look for `.item()`, `.cpu()`, `print`, `if loss > ...` and synchronous copies in the loop; then
    profile.

    ## How sure
    The standard error of a trial's idle share is estimated from ten segments of its steps. In most trials, the idle share must
    exceed the limit with 95 % probability. Confidence is 0.9 times the median of this probability over the trials; the factor
    0.9 allows for slow work on the host, which causes the same idle time. Among simulated studies in which the idle share of
    every trial equals the limit, at most 7 % raised a finding. The rule cannot detect a loop that waits in the middle of a
    step.
    """

    playbook = "Optimizing the input pipeline"
    goal = "efficiency"
    probes = frozenset({"batch-size"})
    explains = Relation(rules=("gpu-underused", "batch-throughput"), because="The device waits for the training loop.")

    most: Share = timing.MAX_HOST_TIME_SHARE
    """Maximum share of the time in which the device is idle although its data is ready. Our choice."""
    false_alarms: Share = 0.05
    """Maximum probability that a trial whose idle share equals the limit counts as exceeding the limit."""

    def check(self, study: Study) -> Iterator[Finding]:
        if not any(timing.ran_on_gpu(t) for t in study.trials):
            raise MissingData(
                "no trial is known to have trained on a GPU, and only a GPU waits for the training loop; the advisor's training "
                "hook records the device and its computing time",
                needs="gpu",
            )
        shares = [(t, t.gpu_blocked_share) for t in timing.step_times_of_study(study) if t.gpu_blocked_share is not None]
        if not shares:
            raise MissingData(
                "no trial on a GPU logged its step times, its waits for data and the device's computing times; take the batches "
                "from log.batches(loader) of the advisor's training hook, which logs train/compute_time_s",
                needs="timing",
            )
        high = timing.ratios_above_limit([idle for _, idle in shares], self.most, self.false_alarms)
        if high:
            yield self._build_finding(study, sorted((shares[i] for i in high), key=lambda pair: pair[1].value), len(shares))

    def _build_finding(self, study: Study, reported: list[tuple[timing.StepTimes, Estimate]], judged_count: int) -> Finding:
        trials, (median_times, idle_share) = [t.trial for t, _ in reported], reported[len(reported) // 2]
        text = "The GPU of {trials} is idle {share} of the time between steps ({idle} of {step} a step), "
        caption = "Steps take longer than computing and waiting for data together."
        return self.finding(
            say(
                text + "although its data is ready.",
                trials=judged_trials_text(trials, judged_count),
                share=Percent(idle_share.value),
                idle=1e3 * idle_share.value * median_times.mean_seconds,
                step=Number(1e3 * median_times.mean_seconds, unit="ms"),
            ),
            action="Read losses and metrics only every few steps, without .item() in between, so that no step waits for the "
            "device.",
            severity="warning",
            confidence=0.9 * float(np.median([i.chance_above(self.most) for _, i in reported])),
            subject=study.signals["step_time"],
            trials=trials,
            evidence=(
                curve_plot(tuple(study.signals[s] for s in ("step_time", "compute_time", "data_wait")), caption, trials[:5]),
                shares_table(
                    (judged_count, len(reported)),
                    ("share of the time idle although data is ready", idle_share.value, idle_share.error),
                    ("share of the time spent waiting for data", Percent(median_times.data_wait_share.value, 1)),
                    (self.most, self.false_alarms),
                ),
            ),
        )

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.evidence import curve_plot
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Number, Percent, say
from advisor.model.study import Study
from advisor_rules.batch._shares import judged_trials_text, shares_table

MIN_DATA_WAIT_S = 1e-3
"""Minimum wait per step on a CPU, in seconds. Receiving a batch from a worker process takes 0.1 to 2 ms, so shorter waits show
no problem."""


class InputBound(Rule):
    """The training steps wait for their data.

    ## What it looks at
    The rule measures the time that steps wait for the data loader, as a share of the step time; the first steps are left out.
    If GPU computation was timed, only waiting while the GPU is idle counts. The share of the step time spent waiting must be
    large in most of the trials. On a CPU, waits below 1 ms a step do not count, because receiving batches from worker processes
    takes as long.

    ## Why it matters
    The device is idle while a step waits. Every trial of the study takes longer by the share of time spent waiting, and a
    larger batch does not help.

    ## What to do
    If the loader has no workers, load data in background processes. If the waits come in bursts at the starts of epochs, keep
    the workers alive between epochs and prefetch more. If each step waits despite workers, add workers or reduce their work:
    preprocess once and store the result, drop unused fields, keep the data near the machine. Then profile.

    ## How sure
    The standard error of a trial's waiting share is estimated from ten segments of its steps, so that drift counts as noise. In
    most trials, the waiting share must exceed the limit with 95 % probability; confidence is the median of this probability
    over the trials. Among simulated studies in which the waiting share of every trial equals the limit, at most 7 % raised a
    finding.
    """

    playbook = "Optimizing the input pipeline"
    goal = "efficiency"
    while_running = True
    probes = frozenset({"batch-size"})
    explains = Relation(rules=("host-sync", "gpu-underused", "batch-throughput"), because="The device waits for its data.")

    most: Share = timing.MAX_DATA_WAIT_SHARE
    """Maximum share of the time spent waiting for data. Small CPU networks with data in memory and no workers reach a share of
    0.18."""
    false_alarms: Share = 0.05
    """Maximum probability that a trial whose waiting share equals the limit counts as exceeding the limit."""

    def check(self, study: Study) -> Iterator[Finding]:
        times = timing.step_times_of_study(study)
        if not times:
            raise MissingData(
                "no trial logged both the time of its steps and how long they waited for data; take the batches from "
                "log.batches(loader) of the advisor's training hook, or log train/step_time_s and train/data_wait_s",
                needs="timing",
            )
        high = timing.ratios_above_limit([t.data_wait_share for t in times], self.most, self.false_alarms)
        slow_trials = [
            t
            for t in (times[i] for i in high)
            if timing.ran_on_gpu(t.trial) or t.data_wait_share.value * t.mean_seconds >= MIN_DATA_WAIT_S
        ]
        if 2 * len(slow_trials) > len(times):
            yield self._build_finding(study, slow_trials, len(times))

    def _build_finding(self, study: Study, slow_trials: list[timing.StepTimes], judged_count: int) -> Finding:
        trials = [t.trial for t in slow_trials]
        median = sorted(slow_trials, key=lambda t: t.data_wait_share.value)[len(slow_trials) // 2]
        wait_share, step = median.data_wait_share, Number(1e3 * median.mean_seconds, unit="ms")
        wait_ms, metric = Number(1e3 * wait_share.value * median.mean_seconds), study.signals["data_wait"]
        workers, action = timing.data_loader_facts(median.trial).get("workers"), _choose_action(median)
        caption = say("A step takes {step} and waits for data for {wait}.", step=step, wait=wait_ms)
        return self.finding(
            say(
                "The steps of {trials} wait for data {share} of their time ({wait} of {step} a step){workers}.",
                trials=judged_trials_text(trials, judged_count),
                share=Percent(wait_share.value),
                wait=wait_ms,
                step=step,
                workers=say(", with {n}", n=Count(workers, "loader worker")) if isinstance(workers, int) else "",
            ),
            action=action,
            severity="warning",
            confidence=float(np.median([t.data_wait_share.chance_above(self.most) for t in slow_trials])),
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot((metric, study.signals["step_time"]), caption, trials[:5]),
                shares_table(
                    (judged_count, len(slow_trials)),
                    ("share of the time spent waiting", wait_share.value, wait_share.error),
                    ("share of the waiting time in the longest tenth of the waits", Percent(median.share_of_longest_waits)),
                    (self.most, self.false_alarms),
                ),
            ),
        )


def _choose_action(times: timing.StepTimes) -> str:
    loader = timing.data_loader_facts(times.trial)
    if loader.get("workers") == 0:
        return "Load batches in background processes: give the loader workers, and pinned memory for a GPU."
    if times.share_of_longest_waits > 0.5:
        keep = "" if loader.get("persistent_workers") else "keep the loader's workers alive from epoch to epoch, and "
        return f"Even out the waits, which come in bursts: {keep}prefetch more batches."
    if loader.get("workers"):
        return "Give the loader more workers, or reduce their work: preprocess once, keep the data near the machine."
    return "Prefetch batches in the background, preprocess once instead of in every epoch, and keep the data near the machine."

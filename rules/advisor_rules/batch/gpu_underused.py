from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Rule, Share
from advisor.model.evidence import curve_plot
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Percent, say
from advisor.model.study import Study, Trial
from advisor.stats.estimates import Estimate, ratio_of_sums
from advisor_rules.batch._shares import judged_trials_text, shares_table


class GpuUnderused(Rule):
    """The GPU is idle for much of the training, and neither the data nor the training loop explains it.

    ## What it looks at
    The rule reads the GPU utilisation: the share of the time in which the GPU computes anything. The utilisation is sampled
    during training; the first sample is left out. The utilisation must be low in most of the trials. If the steps wait for data
    or for the training loop, the rules `input-bound` and `host-sync` report these waits instead. Peak memory shows whether a
    larger batch fits.

    ## Why it matters
    The GPU finishes each kernel before the next one is queued, because the kernels are too small for the device. A high
    utilisation does not prove that the GPU is used well, because a sequence of small kernels also counts as full utilisation.

    ## What to do
    If memory is free, raise the batch size: measure the throughput at doubled sizes until it stops growing. If memory is not
    free, compile the model or use fused optimizers and kernels, then profile.

    ## How sure
    The standard error of a trial's mean utilisation is estimated from ten segments of its samples. In most trials, the mean
    utilisation must be below the limit with 95 % probability; confidence is the median of this probability over the trials.
    Among simulated studies in which the mean utilisation of every trial equals the limit, at most 5 % raised a finding. A trial
    needs at least 4 samples, about 20 seconds of training.
    """

    playbook = "Choosing the batch size"
    goal = "efficiency"
    probes = frozenset({"batch-size"})

    least: Share = 0.6
    """Minimum GPU utilisation, as a share of the time. We chose a low limit, because efficient training reaches at least
    0.9."""
    room: Share = 0.5
    """Maximum share of memory in use at which a batch twice as large fits."""
    false_alarms: Share = 0.05
    """Maximum probability that a trial whose utilisation equals the limit counts as underused."""

    def check(self, study: Study) -> Iterator[Finding]:
        utilisations = [(t, u) for t in study.trials if study.ended[t.index] and (u := _gpu_idle_share(study, t)) is not None]
        if not utilisations:
            raise MissingData(
                "no trial logged how much of the time its GPU computed (at least 4 samples); log device/utilisation, which the "
                "advisor's training hook does on a CUDA device if nvidia-ml-py is installed",
                needs="gpu",
            )
        idle_indices = timing.ratios_above_limit([idle for _, idle in utilisations], 1 - self.least, self.false_alarms)
        low_trials = [utilisations[i] for i in idle_indices if not _has_long_waits(study, utilisations[i][0])]
        if 2 * len(low_trials) > len(utilisations):
            yield self._build_finding(study, sorted(low_trials, key=lambda pair: pair[1].value), len(utilisations))

    def _build_finding(self, study: Study, low_trials: list[tuple[Trial, Estimate]], judged_count: int) -> Finding:
        trials, median_idle_share = [t for t, _ in low_trials], low_trials[len(low_trials) // 2][1]
        metric, computing_share = study.signals["device_utilisation"], Percent(1 - median_idle_share.value)
        memory = float(np.median([timing.peak_memory_share(study, t) for t in trials]))
        memory_is_known = math.isfinite(memory)
        action = "Compile the model or use fused kernels, and profile a few steps, because each kernel is too small."
        if memory <= self.room:
            action = "Raise the batch size: measure the throughput at doubled sizes until it stops growing or memory is full."
        caption = say("The device computes in {share} of the time.", share=computing_share)
        return self.finding(
            say(
                "The GPU computes in only {share} of the time in {trials}.{memory}",
                share=computing_share,
                trials=judged_trials_text(trials, judged_count),
                memory=say(" {memory} of its memory is used.", memory=Percent(memory)) if memory_is_known else "",
            ),
            action=action,
            severity="warning",
            confidence=float(np.median([idle.chance_above(1 - self.least) for _, idle in low_trials])),
            subject=metric,
            side="low",
            trials=trials,
            evidence=(
                curve_plot(metric, caption, trials[:5], lines={"limit": self.least}),
                shares_table(
                    (judged_count, len(low_trials)),
                    ("share of the time in which the GPU computes", 1 - median_idle_share.value, median_idle_share.error),
                    ("largest used share of the memory", Percent(memory) if memory_is_known else "not logged"),
                    (self.least, self.false_alarms),
                    above=False,
                ),
            ),
        )


def _gpu_idle_share(study: Study, trial: Trial) -> Estimate | None:
    values = study.curve(trial, "device_utilisation").finite.values[1:]
    if len(values) < 4:
        return None
    return ratio_of_sums(1 - np.clip(values, 0, 1), np.ones(len(values)), np.ones(len(values)))


def _has_long_waits(study: Study, trial: Trial) -> bool:
    times = timing.read_step_times(study, trial)
    if times is None:
        return False
    return times.data_wait_share.value > timing.MAX_DATA_WAIT_SHARE or (
        times.gpu_blocked_share is not None and times.gpu_blocked_share.value > timing.MAX_HOST_TIME_SHARE
    )

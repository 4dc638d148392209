"""The rule `gpu-underused`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial
from advisor.stats.ratios import Ratio, ratio


class GpuUnderused(Rule):
    """The GPU does nothing for much of the training, and neither the data nor the loop explains it.

    ## What it looks at
    The device's utilisation: the share of the time in which it computed anything, sampled along the training, the first sample left
    out. It must be low in most of the trials. Where the steps wait for data, or the loop holds the device up, that is the cause,
    and it is left to `input-bound` and `host-sync`. How much memory was used says whether a larger batch fits.

    ## Why it matters
    Work comes in pieces too small for the device: it is done with each before the next is queued. Trials take longer than they need
    to. A high utilisation is no proof of the reverse: one small kernel after the other counts as full use.

    ## What to do
    With memory left, raise the batch size: measure the throughput at doubled sizes until it stops growing. Without, compile the
    model or use fused optimizers and kernels; then profile.

    ## How sure
    The standard error of a trial's mean comes from ten stretches of its samples. The chance that the mean lies below the limit must
    be 95 % in most trials; confidence is its median there. Of 150 simulated studies each, whose trials of 10 to 200 samples have
    just the limit as their mean, 2 to 5 % fired with one trial and at most 1 % with three or more. With fewer than 4 samples, some
    20 seconds, a trial says nothing.

    *Example:* "The GPU computes in only 31 % of the time in 4 of the 4 trials, and 12 % of its memory is used."
    """

    playbook: ClassVar[str] = "Choosing the batch size"
    goal: ClassVar[Goal] = "efficiency"
    probes: ClassVar[frozenset[str]] = frozenset({"batch-size"})

    least: Share = 0.6
    """Share of the time in which a device should compute. Ours, generous: trainings that keep a device busy reach 0.9 or more."""
    room: Share = 0.5
    """Share of the memory up to which a batch twice as large surely fits."""
    false_alarms: Share = 0.05
    """How often a trial whose device is used just that much may seem to use it less."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        used = [(t, u) for t in study.trials if study.ended[t.index] and (u := _idle(study, t)) is not None]
        if not used:
            raise MissingData(
                "no trial logged how much of the time its GPU computed (4 samples or more); log device/utilisation, which the "
                "advisor's training hook does on a CUDA device where nvidia-ml-py is installed"
            )
        chosen = timing.mostly([idle for _, idle in used], 1 - self.least, self.false_alarms)
        low = [used[i] for i in chosen if not _explained(study, used[i][0])]
        if 2 * len(low) <= len(used):
            return
        low.sort(key=lambda pair: pair[1].value)
        middle = low[len(low) // 2][1]
        memory = float(np.median([timing.memory_used(study, t) for t, _ in low]))
        known = f", and {memory:.0%} of its memory is used" if math.isfinite(memory) else ""
        text = "Compile the model or use fused kernels, and profile a few steps: the device is done with each piece too soon."
        if memory <= self.room:
            text = (
                "Raise the batch size: measure the throughput at doubled sizes until it stops growing or memory is out."
            )
        metric = study.signals["device_utilisation"]
        who = f"in {len(low)} of the {len(used)} trials" if len(used) > 1 else f"in {low[0][0].name}"
        yield self.finding(
            f"The GPU computes in only {1 - middle.value:.0%} of the time {who}{known}.",
            action=text,
            severity="warning",
            confidence=float(np.median([idle.chance_above(1 - self.least) for _, idle in low])),
            subject=metric,
            side="low",
            trials=[t for t, _ in low],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"The device computes in {1 - middle.value:.0%} of the time.",
                    trials=tuple(t.id for t, _ in low[:5]),
                    lines=(Line(value=self.least, label="limit"),),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(used)}, of which {len(low)} use it too little"),
                        ("share of the time computing", f"{1 - middle.value:.1%} ± {middle.error:.1%}"),
                        ("share of the memory used at most", f"{memory:.0%}" if known else "not logged"),
                        ("limit", f"{self.least:.0%}, missed with a chance of {1 - self.false_alarms:.0%}"),
                    )
                ),
            ),
            changes=(Advise(text=text),),
        )


def _idle(study: Study, trial: Trial) -> Ratio | None:
    """The share of the time in which the trial's device did not compute; None with too few samples."""
    values = study.curve(trial, "device_utilisation").finite.values[1:]
    if len(values) < 4:
        return None
    return ratio(1 - np.clip(values, 0, 1), np.ones(len(values)), np.ones(len(values)))


def _explained(study: Study, trial: Trial) -> bool:
    """Whether the trial's steps wait for data, or its loop holds the device up."""
    times = timing.read(study, trial)
    if times is None:
        return False
    return times.waited.value > timing.INPUT or (times.blocked is not None and times.blocked.value > timing.HOST)

"""The rule `host-sync`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Number, Percent, say
from advisor.model.study import Study
from advisor.stats.ratios import Ratio
from advisor_rules.batch._shares import limit_text, trials_text, with_error


class HostSync(Rule):
    """The GPU is idle between steps although its data is ready: the training loop and the GPU wait for each other.

    ## What it looks at
    The time from one step to the next, minus the time in which the GPU computed and the time spent waiting for data. If the host
    only queues work, it runs ahead of the device and leaves no such gap. Single long steps that contain an evaluation are left out.
    The gap must be large in most of the trials.

    ## Why it matters
    Reading a loss with `.item()`, printing it or branching on it makes the host wait until the device is done. The device is then
    idle until the host has queued the next step.

    ## What to do
    Keep losses and metrics on the device and read them only every few steps, or pass the tensor to the logger, which copies it
    without waiting. Look for `.item()`, `.cpu()`, `print`, `if loss > ...` and synchronous copies in the loop; then profile.

    ## How sure
    The standard error of a trial's idle share comes from ten segments of its steps. In most trials the share must exceed the limit
    with 95 % probability. Confidence is the median of that probability, times 0.9, because slow work on the host causes the same
    gap. If the idle share of all trials is exactly the limit, at most 7 % of simulated studies raised a finding. The rule cannot
    detect a loop that waits in the middle of a step.
    """

    playbook = "Optimizing the input pipeline"
    goal = "efficiency"
    probes = frozenset({"batch-size"})
    explains = Relation(
        rules=("gpu-underused", "batch-throughput"), shares="study", because="The device waits for the training loop."
    )

    most: Share = timing.MAX_HOST_SHARE
    """Maximum share of the time in which the device is idle although its data is ready. Our choice."""
    false_alarms: Share = 0.05
    """Probability of a finding in a trial whose idle share is exactly the limit."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        if not any(timing.on_gpu(t) for t in study.trials):
            raise MissingData(
                "no trial is known to have trained on a GPU, and only a GPU waits for the training loop; the advisor's training "
                "hook notes the device and times it",
                needs="gpu",
            )
        times = [(t, t.blocked) for t in timing.step_times_of_study(study) if t.blocked is not None]
        if not times:
            raise MissingData(
                "no trial on a GPU logged the time of its steps, the waits for data and the device's computing; take the batches "
                "from log.batches(loader) of the advisor's training hook, which logs train/compute_time_s",
                needs="timing",
            )
        majority = timing.ratios_above_limit([idle for _, idle in times], self.most, self.false_alarms)
        if not majority:
            return
        waiting = sorted((times[i] for i in majority), key=lambda pair: pair[1].value)
        yield self._finding(study, waiting, len(times))

    def _finding(self, study: Study, waiting: list[tuple[timing.StepTimes, Ratio]], judged_count: int) -> Finding:
        middle, idle = waiting[len(waiting) // 2]
        action = "Read losses and metrics only every few steps, without .item() in between, so that no step waits for the device."
        return self.finding(
            say(
                "The GPU of {trials} is idle {share} of the time between steps ({idle} of {step} a step), although its data is "
                "there.",
                trials=trials_text([t.trial for t, _ in waiting], judged_count),
                share=Percent(idle.value),
                idle=Number(1e3 * idle.value * middle.seconds),
                step=Number(1e3 * middle.seconds, unit="ms"),
            ),
            action=action,
            severity="warning",
            confidence=0.9 * float(np.median([i.chance_above(self.most) for _, i in waiting])),
            subject=study.signals["step_time"],
            trials=[t.trial for t, _ in waiting],
            evidence=(
                curve_plot(
                    tuple(study.signals[s] for s in ("step_time", "compute_time", "data_wait")),
                    "Steps take longer than computing and waiting for data together.",
                    [t.trial for t, _ in waiting[:5]],
                ),
                table(
                    ("trials judged", say("{judged} ({n} above the limit)", judged=judged_count, n=len(waiting))),
                    ("idle with data there, share of the time", with_error(idle.value, idle.error)),
                    ("waiting for data, share of the time", Percent(middle.waited.value, 1)),
                    ("limit", limit_text(self.most, self.false_alarms)),
                ),
            ),
            changes=(Advise(text=action),),
        )

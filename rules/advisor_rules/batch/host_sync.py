"""The rule `host-sync`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch import timing
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study


class HostSync(Rule):
    """The GPU idles between steps though its data is there: the training loop waits for the device, and the device for the loop.

    ## What it looks at
    The time from one step to the next, less the time that the GPU needed from the batch's arrival to the end of the step, less the
    waiting for data. A host that only queues work runs ahead of the device and leaves no such gap, whatever else it does between
    two steps. Single long steps, with an evaluation in them, are left out. It must be so in most of the trials.

    ## Why it matters
    Reading a loss with `.item()`, printing it or branching on it makes the host wait until the device is done; then the device has
    nothing to do until the host has queued the next step.

    ## What to do
    Keep losses and metrics on the device and read them every so many steps, or hand the tensor to the logger, which copies it
    without waiting. Look for `.item()`, `.cpu()`, `print`, `if loss > ...` and synchronous copies in the loop; then profile.

    ## How sure
    The standard error of a trial's share comes from ten stretches of its steps. The chance that the share exceeds the limit must be
    95 % in most trials; confidence is its median there, times 0.9: work on the host that takes longer than the step makes the
    same gap without any `.item()`. A loop that waits in the middle of a step is not seen. Of 150 simulated studies each, whose
    trials of 40 to 500 steps idle just as much as the limit, 5 to 7 % fired with one trial and none with three or more.

    *Example:* "Between the steps of 4 of the 4 trials the GPU idles 38 % of the time (4.6 of 12 ms a step), though its data is
    there."
    """

    playbook: ClassVar[str] = "Optimizing the input pipeline"
    goal: ClassVar[Goal] = "efficiency"
    probes: ClassVar[frozenset[str]] = frozenset({"batch-size"})
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "gpu-underused",
                "batch-throughput",
            ),
            shares="study",
            because="The device waits for the training loop.",
        ),
    )

    most: Share = timing.HOST
    """Share of the time that the device may idle between steps with its data there. Ours."""
    false_alarms: Share = 0.05
    """How often a trial whose device idles just that much may seem to idle longer."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        if not any(timing.on_gpu(t) for t in study.trials):
            raise MissingData(
                "no trial is known to have trained on a GPU, where alone a loop can hold up the device; the advisor's training "
                "hook notes the device and times it"
            )
        times = [(t, t.blocked) for t in timing.of_study(study) if t.blocked is not None]
        if not times:
            raise MissingData(
                "no trial on a GPU logged the time of its steps, the waits for data and the device's computing; take the batches "
                "from log.batches(loader) of the advisor's training hook, which logs train/compute_time_s"
            )
        chosen = timing.mostly([idle for _, idle in times], self.most, self.false_alarms)
        if not chosen:
            return
        held_up = sorted((times[i] for i in chosen), key=lambda pair: pair[1].value)
        middle, idle = held_up[len(held_up) // 2]
        step_ms = 1e3 * middle.seconds
        who = f"{len(held_up)} of the {len(times)} trials" if len(times) > 1 else middle.trial.name
        part = f"{idle.value:.0%} of the time ({idle.value * step_ms:.3g} of {step_ms:.3g} ms a step)"
        text = "Do not wait for the device in every step: read losses and metrics every so many steps, without .item() in between."
        yield self.finding(
            f"Between the steps of {who} the GPU idles {part}, though its data is there.",
            action=text,
            severity="warning",
            confidence=0.9 * float(np.median([i.chance_above(self.most) for _, i in held_up])),
            subject=study.signals["step_time"],
            trials=[t.trial for t, _ in held_up],
            evidence=(
                CurveEvidence(
                    metrics=tuple(study.signals[s] for s in ("step_time", "compute_time", "data_wait")),
                    caption="Steps take longer than computing and waiting for data together.",
                    trials=tuple(t.trial.id for t, _ in held_up[:5]),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(times)}, of which {len(held_up)} are held up"),
                        ("idle with data there, share of the time", f"{idle.value:.1%} ± {idle.error:.1%}"),
                        ("waiting for data, share of the time", f"{middle.waited.value:.1%}"),
                        ("limit", f"{self.most:.0%}, exceeded with a chance of {1 - self.false_alarms:.0%}"),
                    )
                ),
            ),
            changes=(Advise(text=text),),
        )

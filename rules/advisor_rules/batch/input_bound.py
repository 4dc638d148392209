"""The rule `input-bound`."""

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


class InputBound(Rule):
    """The training steps wait for their data.

    ## What it looks at
    The time that steps spend waiting for the loader, as a share of the time of all steps, first steps left out. On a GPU whose
    computing was timed, only the part counts in which it had nothing to compute: waiting costs nothing while the device is busy. It
    must be so in most of the trials.

    ## Why it matters
    The device idles meanwhile. Every trial of the study takes longer by that share, and a larger batch brings nothing.

    ## What to do
    What the waits look like says where to begin. No workers: load in background processes. Waits that come in bursts, at the starts
    of epochs: keep the workers alive from epoch to epoch and prefetch more. Each step waits alike in spite of workers: more of
    them, or less to do for each example: preprocess once and store the result, drop fields that nobody uses, keep the data near the
    machine. Then profile.

    ## How sure
    The standard error of a trial's share comes from ten stretches of its steps, so that drift counts as noise. The chance that the
    share exceeds the limit must be 95 % in most trials; confidence is its median there. Of 150 simulated studies each, whose trials
    of 40 to 1,000 steps wait just as much as the limit, in bursts or in every step, 0 to 7 % fired with one trial and at most 1 %
    with three or more.

    *Example:* "The steps of 6 of the 6 trials wait for data 89 % of their time (10.6 of 11.9 ms a step), with 0 loader workers."
    """

    playbook: ClassVar[str] = "Optimizing the input pipeline"
    goal: ClassVar[Goal] = "efficiency"
    probes: ClassVar[frozenset[str]] = frozenset({"batch-size"})
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "host-sync",
                "gpu-underused",
                "batch-throughput",
            ),
            shares="study",
            because="The device waits for its data.",
        ),
    )

    most: Share = timing.INPUT
    """Share of the time that waiting may take. Small networks on a CPU with data in memory and no workers reach 0.18."""
    false_alarms: Share = 0.05
    """How often a trial that waits just that much may seem to wait longer."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        times = timing.of_study(study)
        if not times:
            raise MissingData(
                "no trial logged both the time of its steps and how long they waited for data; take the batches from "
                "log.batches(loader) of the advisor's training hook, or log train/step_time_s and train/data_wait_s"
            )
        chosen = timing.mostly([t.waited for t in times], self.most, self.false_alarms)
        if not chosen:
            return
        bound = [times[i] for i in chosen]
        middle = sorted(bound, key=lambda t: t.waited.value)[len(bound) // 2]
        step_ms, share = 1e3 * middle.seconds, middle.waited.value
        workers = timing.loader(middle.trial).get("workers")
        having = "" if workers is None else f", with {workers} loader worker{'' if workers == 1 else 's'}"
        who = f"{len(bound)} of the {len(times)} trials" if len(times) > 1 else bound[0].trial.name
        tip = self._tip(middle)
        metric = study.signals["data_wait"]
        part = f"{share:.0%} of their time ({share * step_ms:.3g} of {step_ms:.3g} ms a step)"
        yield self.finding(
            f"The steps of {who} wait for data {part}{having}.",
            action=tip,
            severity="warning",
            confidence=float(np.median([t.waited.chance_above(self.most) for t in bound])),
            subject=metric,
            trials=[t.trial for t in bound],
            evidence=(
                CurveEvidence(
                    metrics=(metric, study.signals["step_time"]),
                    caption=f"Of {step_ms:.3g} ms that a step takes, {share * step_ms:.3g} ms are waiting for data.",
                    trials=tuple(t.trial.id for t in bound[:5]),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(times)}, of which {len(bound)} wait too long"),
                        ("share of the time spent waiting", f"{share:.1%} ± {middle.waited.error:.1%}"),
                        ("of it in the longest tenth of the waits", f"{middle.bursts:.0%}"),
                        ("limit", f"{self.most:.0%}, exceeded with a chance of {1 - self.false_alarms:.0%}"),
                    )
                ),
            ),
            changes=(Advise(text=tip),),
        )

    def _tip(self, times: timing.StepTimes) -> str:
        """What to do first, by what was measured."""
        loader = timing.loader(times.trial)
        if loader.get("workers") == 0:
            return "Load batches in background processes: give the loader workers, and pinned memory for a GPU."
        if times.bursts > 0.5:
            keep = (
                "" if loader.get("persistent_workers") else "keep the loader's workers alive from epoch to epoch, and "
            )
            return f"Even out the waits, which come in bursts: {keep}prefetch more batches."
        if loader.get("workers"):
            return "Give the loader more workers, or each of them less to do: preprocess once, keep the data near the machine."
        return "Prefetch batches in the background, preprocess once instead of in every epoch, and keep the data near the machine."

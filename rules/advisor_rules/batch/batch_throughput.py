"""The rule `batch-throughput`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advisor.computed.batch import throughput
from advisor.computed.space import kinds
from advisor.engine.rule import Factor, Relation, Rule, Share
from advisor.model.change import Advise, Change, FixParameter, RunPlan
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import saturation


class BatchThroughput(Rule):
    """From some batch size on, larger batches no longer train more examples a second; or they never did.

    ## What it looks at
    The examples per second at each batch size, over trials on one kind of device or in a batch-size probe: as logged, else from the
    step time. While the device has room, a batch twice as large should nearly double them. A larger batch brings more if its
    throughput is a tenth higher, beyond noise; the batch to use is the last one that did.

    ## Why it matters
    The batch size decides how fast training is, hardly how good a model can get. All advantages of a larger batch rest on a higher
    throughput. Where even the first doublings bring little, something else than the device is the limit: data, communication, the
    loop.

    ## What to do
    Fix the batch size at the largest one before the plateau, and tune learning rate and regularisation for it. Where throughput
    still grows at the largest one and none ran out of memory yet, a short sweep measures larger ones; else use that. Where no
    doubling nearly doubled the throughput, look for the bottleneck first and measure again.

    ## How sure
    The noise of a throughput comes from ten stretches of each run, or from the differences between runs of one size if that is
    more; one run a size does not show how far two runs differ. That a plateau is one, and not growth hidden by noise, must be 95 %
    sure, and confidence is that; with more noise the rule is quiet. Of 120 simulated studies each of 3
    to 6 sizes whose throughput grows 1.5- to 2-fold per doubling, with noise of 2 to 30 % a step, none was called a plateau or a
    bottleneck; of those flat from the fourth size on, 85 to 100 % were.

    *Example:* "Throughput stops growing at batch_size 128: 5,120 examples/s there, 5,210 (+2 %) at 256."
    """

    playbook: ClassVar[str] = "Choosing the batch size"
    goal: ClassVar[Goal] = "efficiency"
    probes: ClassVar[frozenset[str]] = frozenset({"batch-size"})
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("batch-steps",),
            shares="study",
            because="The batch size is chosen by training time; more examples are the price of being done sooner.",
            max_severity="note",
        ),
    )

    material: Share = 0.1
    """Share by which a larger batch's throughput must be higher to be worth its size; as in the probe."""
    doubling: Factor = 1.5
    """A doubling of the batch that multiplies the throughput by less does not nearly double it; as in the probe."""
    false_alarms: Share = 0.05
    """How often a throughput that still grows may be taken for a plateau."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        speeds = throughput.speeds(study)
        if len(speeds) < 2:
            raise MissingData(
                f"the throughput of {len(speeds) or 'no'} batch size{'s' if len(speeds) != 1 else ''} is known, and it takes 2 or "
                "more; run batch_size_sweep of the advisor's training hook, or log train/examples_per_s and the batch size"
            )
        if not any(math.isfinite(s.rate.error) for s in speeds):
            raise MissingData(
                "each batch size has one value of the throughput, which does not show its noise; log train/examples_per_s at "
                "every step"
            )
        found = self._conclude(study, speeds)
        if found is not None:
            yield self._finding(study, speeds, found)

    def _conclude(self, study: Study, speeds: Sequence[throughput.Speed]) -> _Conclusion | None:
        sizes, rates = np.array([s.size for s in speeds]), [s.rate for s in speeds]
        alpha, last = self.false_alarms, len(speeds) - 1
        grows = saturation.growth(sizes, rates, material=self.material, doubling=self.doubling, alpha=alpha)
        chosen = speeds[grows.chosen]
        at = f"growing at batch size {chosen.size:g}"
        if grows.never >= 1 - alpha and grows.chosen in (0, last):
            cause, tip = throughput.bottleneck(study, speeds)
            said = f"No doubling of the batch size nearly doubles the throughput, at most times {grows.max_factor:.2f}: {cause}"
            return _Conclusion(said, tip, None, grows.never)
        if grows.saturated >= 1 - alpha:
            after = speeds[grows.chosen + 1]
            change = after.examples_per_s / chosen.examples_per_s - 1
            more = f"{throughput.readable(after.examples_per_s)} ({change:+.0%}) at {after.size:g}"
            tip = f"Use a batch size of {chosen.size:g}, the largest before the plateau, and tune the learning rate for it."
            said = f"Throughput stops {at}: {throughput.readable(chosen.examples_per_s)} examples/s there, {more}"
            return _Conclusion(said, tip, chosen, grows.saturated)
        if grows.chosen < last:
            return None
        out = throughput.ran_out(study)
        if out > chosen.size:
            said, tip = (
                f"the largest that fits: {out:g} ran out of memory",
                "Use it, and tune the learning rate for it.",
            )
        else:
            said, tip = (
                "the largest that was tried",
                "Use it, or try still larger ones, and tune the learning rate for it.",
            )
        return _Conclusion(f"Throughput is still {at}, {said}", tip, chosen, 1 - alpha, larger=not out > chosen.size)

    def _finding(self, study: Study, speeds: Sequence[throughput.Speed], found: _Conclusion) -> Finding:
        name = next((n for n in study.searched if kinds.is_batch_size(n)), None)
        use = found.use
        changes: list[Change] = [Advise(text=found.tip)]
        trials = study.probe is None or study.spec.baseline is not None
        if name is not None and use is not None and trials and use.size.is_integer():
            changes = [FixParameter(parameter=name, value=int(use.size), why=f"{found.said}.")]
            if found.larger:
                numbers = {"from": 2 * use.size}
                changes.append(RunPlan(plan="batch-sweep", parameter=name, numbers=numbers, why=found.said))
        beyond = [t for s in speeds if use is not None and s.size > use.size for t in s.trials]
        wasted = use is None or (beyond and study.probe is None)
        return self.finding(
            f"{found.said}.",
            action=found.tip,
            severity="warning" if wasted else "note",
            confidence=min(found.sure, 0.99),
            subject=name,
            trials=beyond or [t for s in speeds if use is None or s is use for t in s.trials],
            evidence=(
                FigureEvidence(
                    rows=(
                        *((f"batch size {s.size:g}", _rate(s)) for s in speeds),
                        ("worth a larger batch", f"{self.material:.0%} more, beyond noise"),
                        ("a doubling that nearly doubles", f"times {self.doubling:g} or more"),
                    )
                ),
            ),
            changes=changes,
        )


@dataclass(frozen=True)
class _Conclusion:
    said: str
    tip: str
    use: throughput.Speed | None
    """The batch size to use; None where something else is to be mended first."""
    sure: float
    larger: bool = False
    """Whether still larger sizes are to be measured."""


def _rate(speed: throughput.Speed) -> str:
    noise = f" ± {math.expm1(speed.rate.error):.1%}" if math.isfinite(speed.rate.error) else ""
    step_ms = 1e3 * speed.size / speed.examples_per_s
    return f"{throughput.readable(speed.examples_per_s)} examples/s{noise}, {step_ms:.3g} ms a step"

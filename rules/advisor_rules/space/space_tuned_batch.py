"""The rule `space-tuned-batch`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch import throughput
from advisor.computed.space import kinds
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, Change, FixParameter, SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import FloatArray, IntArray, as_number, is_learning_rate
from advisor.model.study import Study


class SpaceTunedBatch(Rule):
    """Batch sizes are compared by their results, though the learning rate was not tuned again for each of them.

    ## What it looks at
    How many learning rates were tried with each batch size; with a batch size of many values, with each doubling of it. Without a
    learning rate among the hyperparameters: how many settings of momentum, betas and the like. A learning rate that follows the
    batch size by a formula is one setting.

    ## Why it matters
    Which learning rate, momentum and regularisation are best depends on the batch size. With them held fixed, the batch size wins
    that they happen to suit; tuned for each, nothing shows that the batch size decides how good a model can get. What it does
    decide is how fast training is.

    ## What to do
    Fix the batch size by throughput: the last one that brought a tenth more examples a second, which is the one that
    `batch-throughput` would use. Where batch sizes must be compared, tune the optimizer and the regularisation in a study for each.

    ## How sure
    It is a count, not an estimate: confidence is the share of the batch sizes with too few learning rates.

    *Example:* "10 values of batch_size (4 to 256) were compared with 1 learning rate each, so the one wins that this rate suits."
    """

    playbook: ClassVar[str] = "Why shouldn't the batch size be tuned to directly improve validation set performance?"
    goal: ClassVar[Goal] = "sampling"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-boundary",
                "space-insensitive",
                "space-interaction",
            ),
            shares="subject",
            because="Batch sizes were compared at learning rates that suit some of them better than others.",
        ),
    )

    settings: Count = 3
    """Learning rates from which a batch size counts as tuned: fewer cannot show a best one with a worse one on each side."""
    values: Count = 8
    """Distinct batch sizes above which they are taken together by doublings: more were sampled from a range."""
    material: Share = 0.1
    """Share by which a larger batch's throughput must be higher to be worth its size; as in the rule `batch-throughput`."""
    false_alarms: Share = 0.05
    """How often noise may be taken for a higher throughput."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per batch size that is a hyperparameter."""
        names = [name for name in study.spec.parameters if kinds.is_batch_size(name)]
        if not names and not any(math.isfinite(kinds.batch_size(t)) for t in study.trials):
            raise MissingData("no trial says how large its batches were; log batch_size")
        for name in names:
            sizes = np.array([as_number(t.params.get(name)) for t in study.trials])
            sizes[~study.ended | ~(sizes > 0)] = np.nan
            if len(np.unique(sizes[np.isfinite(sizes)])) < 2:
                continue
            groups = sizes if len(np.unique(sizes[np.isfinite(sizes)])) <= self.values else np.floor(np.log2(sizes))
            tuned = self._settings(study, groups, sizes)
            if np.median(tuned) < self.settings:
                yield self._finding(study, name, sizes, tuned)

    def _settings(self, study: Study, groups: FloatArray, sizes: FloatArray) -> IntArray:
        """How many settings of the optimizer each group of trials tried, shape (number of groups,)."""
        rates = [n for n in study.spec.parameters if is_learning_rate(n)]
        names = rates or [n for n in study.searched if kinds.is_of_optimizer(n)]
        rows = np.array([[as_number(t.params.get(n)) for n in names] for t in study.trials]).reshape(len(sizes), -1)
        follows = [any(_same(column / sizes**power) for power in (0.5, 1.0)) for column in rows.T]
        rows = np.where(follows, 0.0, np.nan_to_num(rows))
        each = [rows[groups == g] for g in np.unique(groups[np.isfinite(groups)])]
        return np.array([len({tuple(row) for row in part}) for part in each])

    def _finding(self, study: Study, name: str, sizes: FloatArray, tuned: IntArray) -> Finding:
        values = np.unique(sizes[np.isfinite(sizes)])
        best = study.ranked()[:1]
        fastest = self._fastest(study, sizes)
        size = fastest or (as_number(best[0].params.get(name)) if best else math.nan)
        size = size if math.isfinite(size) else float(values[-1])
        few = int(np.median(tuned))
        rates = f"{few or 1} learning rate{'s' if few > 1 else ''} each"
        said = f"{len(values)} values of {name} ({values[0]:g} to {values[-1]:g}) were compared with {rates}"
        by = "larger ones are hardly faster" if size < values[-1] else "it is the fastest that was tried"
        by = by if fastest else "it is the best trial's, until throughput is measured"
        why = f"{said}; {by}"
        changes: list[Change] = [FixParameter(parameter=name, value=int(size) if size.is_integer() else size, why=why)]
        if not fastest:
            changes.append(Advise(text="Log the throughput (examples per second) and choose the batch size by it."))
        return self.finding(
            f"{said}, so the one wins that {'this rate suits' if few <= 1 else 'these rates suit'}.",
            action=f"Fix {name} at {size:g} and tune the learning rate for it: {by}.",
            severity="warning",
            confidence=float(np.mean(tuned < self.settings)),
            subject=name,
            trials=[t for t in study.trials if math.isfinite(sizes[t.index])],
            evidence=(
                AxisEvidence(parameter=name, caption=f"Each batch size was tried with {rates}."),
                FigureEvidence(
                    rows=(
                        ("learning rates per batch size", ", ".join(map(str, tuned[:20]))),
                        ("fewest that tune", str(self.settings)),
                    )
                ),
            ),
            changes=(*changes, *_search_rate(study, name)),
        )

    def _fastest(self, study: Study, sizes: FloatArray) -> float | None:
        """The batch size that the rule `batch-throughput` would use; None where the throughput of fewer than two is known."""
        speeds = throughput.speeds(study)
        if len(speeds) < 2:
            return None
        use = throughput.worthwhile(speeds, self.material, self.false_alarms)
        own = {float(sizes[t.index]) for t in use.trials}
        return own.pop() if len(own) == 1 else use.size


def _search_rate(study: Study, name: str) -> list[Change]:
    """Search the learning rate a decade around the best trial's where it was fixed; otherwise it is searched already."""
    for rate, parameter in study.spec.parameters.items():
        value = as_number(parameter.value)
        if is_learning_rate(rate) and parameter.role == "fixed" and value > 0:
            why = f"The learning rate was never tuned for one {name}"
            return [SetRange(parameter=rate, low=value / 10, high=value * 10, scale="log", why=why)]
    return []


def _same(values: FloatArray) -> bool:
    """Whether values (n,) agree to a hundredth; NaN where a trial has none."""
    known = values[np.isfinite(values)]
    return bool(len(known) > 1 and np.ptp(known) <= 0.01 * abs(known).max())

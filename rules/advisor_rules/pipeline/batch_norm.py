"""The rule `batch-norm`; its page is the docstring of the class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.pipeline import norms, ranks
from advisor.computed.pipeline.norms import BatchNorm as Layers
from advisor.engine.rule import Count, Factor, Rule
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial


class BatchNorm(Rule):
    """Batch norm takes its statistics from few examples, or from another number of them in each trial.

    ## What it looks at
    Models with batch norm that is not frozen, and from how many examples each layer takes its mean and variance: one batch on one
    device, micro-batches of accumulated gradients taken by themselves; the batches of all devices where layers are synchronised.

    ## Why it matters
    The fewer the examples, the noisier the statistics, and the further those of the training are from the running ones used in
    evaluations. That noise also regularises: where the number changes with the batch size or the number of devices, trials that
    seem to differ in one thing differ in two.

    ## What to do
    Where batch norm can be replaced, use layer norm or group norm, which know no batch. Otherwise take statistics from the same
    number of examples whatever the batch size, about 64: synchronise small batches across devices, split large ones (ghost batch
    norm).

    ## How sure
    Sizes are noted facts, and chance raises no finding. From how many examples on statistics are good enough depends on the model;
    convolutions average over positions as well, hence the confidence of 0.8.

    Example: "In 6 of 6 trials, batch norm takes its statistics from 4 examples."
    """

    playbook: ClassVar[str] = "Batch normalization implementation details"
    goal: ClassVar[Goal] = "pipeline"

    few: Count = 16
    """Examples from which statistics are good enough. From published image classification, where errors rise below 16 a device."""
    very_few: Count = 8
    """Examples below which they do real harm: there, errors rise by more than one percentage point."""
    apart: Factor = 2.0
    """How many times as many examples make statistics different ones. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most two findings: statistics from few examples in most trials, and from different numbers of them."""
        noted = [(t, n) for t in study.trials if (n := norms.batch_norm(t)) is not None]
        if not noted:
            raise MissingData("no trial noted the layers of its model; the hook does")
        having = [(t, n) for t, n in noted if n.layers > 0]
        known = [(t, n) for t, n in having if math.isfinite(n.examples)]
        if having and not known:
            raise MissingData("the models have batch norm, but no trial noted its batch size; log batch_size")
        small = [(t, n) for t, n in known if n.examples < self.few]
        if 2 * len(small) > len(known):
            severity: Severity = "warning" if min(n.examples for _, n in small) < self.very_few else "note"
            message = f"In {len(small)} of {len(known)} trials, batch norm takes its statistics from {_sizes(small)} examples."
            yield self._report(message, small, _remedy(small), severity)
        sizes = [n.examples for _, n in known]
        if sizes and max(sizes) >= self.apart * min(sizes):
            message = (
                f"Batch norm takes its statistics from {_sizes(known)} examples, depending on the trial, so batch sizes are "
                "compared together with its regularisation."
            )
            advice = "Take batch norm's statistics from the same number of examples in all trials, or use layer norm."
            yield self._report(message, known, advice, "note")

    def _report(self, message: str, shown: Sequence[tuple[Trial, Layers]], advice: str, severity: Severity) -> Finding:
        rows = (
            ("batch norm layers", _range([n.layers for _, n in shown])),
            ("examples that statistics are taken from", f"{_sizes(shown)} (few: below {self.few})"),
            ("devices", _range([ranks.world_size(t) for t, _ in shown])),
            ("synchronised across devices", ", ".join(sorted({str(n.synced).lower() for _, n in shown}))),
        )
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=0.8,
            subject="batch_norm",
            trials=[t for t, _ in shown],
            evidence=(FigureEvidence(rows=rows),),
            changes=(Advise(text=advice),),
        )


def _remedy(small: Sequence[tuple[Trial, Layers]]) -> str:
    if any(ranks.world_size(t) > 1 and not n.synced for t, n in small):
        return "Synchronise batch norm across devices (SyncBatchNorm), or use layer norm or group norm in its place."
    return "Use layer norm or group norm in place of batch norm, or larger batches on each device."


def _sizes(shown: Sequence[tuple[Trial, Layers]]) -> str:
    return _range([math.floor(n.examples) for _, n in shown])


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

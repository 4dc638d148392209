from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.computed.pipeline import ranks
from advisor.engine.rule import Count, Factor, Rule
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, list_message, say
from advisor.model.study import Study, Trial
from advisor_rules.pipeline._norms import BatchNorm as Layers, batch_norm
from advisor_rules.pipeline._ranges import count_range_text

_GHOST_NORM_ADVICE = "Take batch norm's statistics from parts of about 64 examples (ghost batch norm), or use layer norm."


class BatchNorm(Rule):
    """Batch norm computes its statistics from few or very many examples, or from a different number of examples in each trial.

    ## What it looks at
    The rule reads the number of examples from which each batch norm layer that is not frozen computes its mean and variance.
    For unsynchronised layers, this is the size of one batch on one device, or of one micro-batch if gradients are accumulated;
    synchronised layers use the batches of all devices.

    ## Why it matters
    With few examples, the batch statistics are noisy and differ from the running statistics that evaluations use. The noise of
    batch statistics also regularises. If the noise of batch statistics changes with the batch size or the number of devices,
    trials that seem to differ only in the batch size or the devices also differ in regularisation. With very many examples, the
    noise of the statistics and its regularising effect disappear, so large batches seem worse than they are.

    ## What to do
    Replace batch norm by layer norm or group norm if you can, because these do not depend on the batch. Otherwise compute
    statistics from about 64 examples at any batch size: synchronise small batches across devices, split large batches (ghost
    batch norm).

    ## How sure
    Batch sizes are logged facts, so no finding is due to chance. Confidence is 0.8, because the number of examples that
    suffices depends on the model: convolutions also average over positions.
    """

    playbook = "Batch normalization implementation details"
    goal = "pipeline"

    few: Count = 16
    """Minimum number of examples for reliable batch statistics. In published image classification, errors rise with fewer than
    16 examples per device."""
    very_few: Count = 8
    """Minimum number of examples for batch statistics without serious harm. With fewer than 8 examples, published errors rise
    by more than one percentage point."""
    many: Count = 256
    """Maximum number of examples per statistic at which the noise of batch statistics still regularises. The playbook takes
    statistics from about 64 examples of a larger batch; we allow four times this number."""
    apart: Factor = 2.0
    """Minimum ratio between the numbers of examples of two trials that counts as a difference. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most two findings: one if most trials compute statistics from few or very many examples, and one if the
        numbers differ between trials."""
        norms = _batch_norm_trials(study)
        few_examples = [(t, n) for t, n in norms if n.examples_per_statistic < self.few]
        many_examples = [(t, n) for t, n in norms if n.examples_per_statistic > self.many]
        text = "In {n} of {known} trials, batch norm takes its statistics from {sizes} examples."
        if 2 * len(few_examples) > len(norms):
            severity: Severity = "warning" if min(n.examples_per_statistic for _, n in few_examples) < self.very_few else "note"
            message = say(text, n=len(few_examples), known=len(norms), sizes=_batch_sizes_text(few_examples))
            yield self._build_finding(message, few_examples, _advise_small_batches(few_examples), severity)
        if 2 * len(many_examples) > len(norms):
            text += " Statistics of very many examples have little of the noise that regularises."
            message = say(text, n=len(many_examples), known=len(norms), sizes=_batch_sizes_text(many_examples))
            yield self._build_finding(message, many_examples, _GHOST_NORM_ADVICE, "note")
        sizes = [n.examples_per_statistic for _, n in norms]
        if sizes and max(sizes) >= self.apart * min(sizes):
            text = (
                "Batch norm takes its statistics from {sizes} examples, depending on the trial. Comparing batch sizes also "
                "compares the regularisation by batch norm."
            )
            advice = "Fix the number of examples in batch norm's statistics for all trials, or use layer norm."
            yield self._build_finding(say(text, sizes=_batch_sizes_text(norms)), norms, advice, "note")

    def _build_finding(self, message: Message, norms: list[tuple[Trial, Layers]], advice: str, severity: Severity) -> Finding:
        sizes_text = "{sizes} (few: below {few}, many: above {many})"
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=0.8,
            subject="batch_norm",
            trials=[t for t, _ in norms],
            evidence=table(
                ("batch norm layers", count_range_text([n.layer_count for _, n in norms])),
                ("examples per statistic", say(sizes_text, sizes=_batch_sizes_text(norms), few=self.few, many=self.many)),
                ("devices", count_range_text([ranks.number_of_ranks(t) for t, _ in norms])),
                ("synchronised across devices", list_message(sorted({"yes" if n.are_all_synced else "no" for _, n in norms}))),
            ),
        )


def _batch_norm_trials(study: Study) -> list[tuple[Trial, Layers]]:
    trials_with_facts = [(t, n) for t in study.trials if (n := batch_norm(t)) is not None]
    if not trials_with_facts:
        raise MissingData("no trial logged the layers of its model; the advisor's training hook logs them", needs="facts")
    normalised = [(t, n) for t, n in trials_with_facts if n.layer_count > 0]
    with_known_size = [(t, n) for t, n in normalised if math.isfinite(n.examples_per_statistic)]
    if normalised and not with_known_size:
        raise MissingData("the models have batch norm, but no trial logged its batch size; log batch_size", needs="facts")
    return with_known_size


def _advise_small_batches(norms: Sequence[tuple[Trial, Layers]]) -> str:
    if any(ranks.number_of_ranks(t) > 1 and not n.are_all_synced for t, n in norms):
        return "Synchronise batch norm across devices (SyncBatchNorm), or use layer norm or group norm instead."
    return "Replace batch norm by layer norm or group norm, or use larger batches on each device."


def _batch_sizes_text(norms: Sequence[tuple[Trial, Layers]]) -> Message:
    return count_range_text([n.examples_per_statistic for _, n in norms])

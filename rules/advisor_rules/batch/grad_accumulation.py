from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.batch import batches, timing
from advisor.engine.rule import Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Change, FixParameter
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import MessagePart, Name, Percent, say
from advisor.model.study import Study, Trial
from advisor.model.words import count, plain_number


class GradAccumulation(Rule):
    """Gradients are accumulated over several micro-batches, although nothing shows that memory is too small for larger ones.

    ## What it looks at
    The rule reads the number of micro-batches over which the trials accumulate the gradient of one step. The rule also reads
    the peak memory of the trials' tensors, as a share of the device's memory. A batch that is k times as large takes at most k
    times the memory, so a small peak shows that a larger batch fits. The rule is quiet if nearly half of the memory is used, or
    if a batch up to twice as large ran out of memory.

    ## Why it matters
    Accumulation imitates a larger batch without its throughput, because the device still computes small batches. Accumulation
    needs fewer optimizer steps, but makes each step longer by the same factor.

    ## What to do
    Process the whole batch at once, or in as few micro-batches as fit. With fewer micro-batches, the optimizer sees the same
    gradient, so nothing has to be tuned again. The exception is batch norm, whose statistics come from the examples that are
    processed together.

    ## How sure
    The log states whether gradients are accumulated, so nothing is estimated. Confidence is 0.95 if the logged memory shows
    that a larger batch fits. Confidence is 0.6 if the available memory is unknown, as on a CPU or without the training hook.
    """

    playbook = "Choosing the batch size"
    goal = "efficiency"

    usable: Share = 0.9
    """Maximum share of the device's memory that a batch can use. We chose a share below 1, because fragmentation and other
    processes take the remaining memory."""

    def check(self, study: Study) -> Iterator[Finding]:
        ended_trials = [t for t in study.trials if study.ended[t.index]]
        if not any("schema" in t.facts or "micro_batches" in t.facts or _accumulation_parameter(t) for t in ended_trials):
            raise MissingData(
                "it is unknown whether gradients are accumulated; log the number of micro-batches per step, as "
                "gradient_accumulation_steps or the fact micro_batches (the advisor's training hook counts them)",
                needs="facts",
            )
        accumulating = [t for t in ended_trials if batches.micro_batches(t) > 1]
        if 2 * len(accumulating) <= len(ended_trials):
            return
        memory_shares = [m for t in accumulating if math.isfinite(m := timing.peak_memory_share(study, t))]
        peak_share = max(memory_shares, default=math.nan)
        micro_batches = float(np.median([batches.micro_batches(t) for t in accumulating]))
        examples = float(np.median([batches.batch_size_per_rank(t) for t in accumulating]))
        fitting_count = math.floor(self.usable / peak_share) if peak_share > 0 else micro_batches
        if fitting_count < 2 or batches.smallest_oom_batch_size(study) / (micro_batches * examples) <= 2 / micro_batches:
            return
        yield self._build_finding(accumulating, len(ended_trials), micro_batches, examples, fitting_count, peak_share)

    def _build_finding(
        self, accumulating: list[Trial], ended_count: int, n_batches: float, size: float, fits_at_once: float, peak: float
    ) -> Finding:
        """n_batches: micro-batches per step; size: examples in a micro-batch; fits_at_once: micro-batches that fit into memory
        together; peak: maximum used share of the device's memory."""
        peak_is_known = math.isfinite(peak)
        part_counts = sorted({batches.micro_batches(t) for t in accumulating})
        sizes = {batches.batch_size_per_rank(t) for t in accumulating}
        is_equal, size_is_known = len(part_counts) == 1, len(sizes) == 1 and math.isfinite(size)
        fewer_count = math.ceil(n_batches / fits_at_once)
        statement = say(
            "Gradients are accumulated over {parts} micro-batches{of} in {trials}{memory}",
            parts=n_batches if is_equal else say("{low} to {high}", low=part_counts[0], high=part_counts[-1]),
            of=say(" of {n} examples", n=size) if size_is_known else "",
            trials=_accumulating_trials_text(accumulating, ended_count),
            memory=say(", and their tensors take {peak} of the memory", peak=Percent(peak)) if peak_is_known else "",
        )
        instruction = say(
            "Process the whole batch{of} at once",
            of=say(" of {n} examples", n=n_batches * size) if size_is_known and is_equal else "",
        )
        if fewer_count > 1:
            instruction = say("Accumulate over {fewer} larger micro-batches", fewer=fewer_count)
        fits = say("at least {n}", n=fits_at_once) if peak_is_known else "unknown"
        action = say("{take}{unless}.", take=instruction, unless="" if peak_is_known else ", unless memory is too small for it")
        return self.finding(
            say("{what}.", what=statement),
            action=action,
            severity="warning" if peak_is_known else "note",
            confidence=0.95 if peak_is_known else 0.6,
            subject=_accumulation_parameter(accumulating[0]),
            trials=accumulating,
            evidence=table(
                ("micro-batches a step", n_batches),
                ("examples in a micro-batch", size if size_is_known else "unknown"),
                ("largest used share of the device's memory", Percent(peak) if peak_is_known else "not logged"),
                ("number of micro-batches that fit into memory at once", fits),
            ),
            changes=_build_changes(accumulating, fewer_count, n_batches * size, f"{statement}."),
        )


def _accumulating_trials_text(accumulating: list[Trial], ended_count: int) -> MessagePart:
    if ended_count == 1:
        return Name(accumulating[0].name)
    if len(accumulating) == ended_count:
        return say("all {n} trials", n=ended_count)
    return say("{n} of the {ended} trials", n=len(accumulating), ended=ended_count)


def _accumulation_parameter(trial: Trial) -> str | None:
    return next((n for n in trial.params if batches.is_gradient_accumulation_count(n)), None)


def _build_changes(accumulating: list[Trial], n_batches: int, batch_size: float, why: str) -> tuple[Change, ...] | None:
    parameter = _accumulation_parameter(accumulating[0])
    size = next((n for n in accumulating[0].params if parameter_kinds.is_batch_size(n)), None)
    if parameter is None or size is None or not (batch_size / n_batches).is_integer():
        return None
    if len({(t.params.get(parameter), t.params.get(size)) for t in accumulating}) > 1:
        return None
    same_batch = f"Compute the same batch of {plain_number(batch_size)} in {count(n_batches, 'part')}."
    return (
        FixParameter(parameter=parameter, value=n_batches, why=why),
        FixParameter(parameter=size, value=int(batch_size / n_batches), why=same_batch),
    )

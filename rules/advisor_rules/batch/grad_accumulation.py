"""The rule `grad-accumulation`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch import batches, throughput, timing
from advisor.computed.space import kinds
from advisor.engine.rule import Rule, Share
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial


class GradAccumulation(Rule):
    """Gradients are accumulated over several micro-batches though nothing shows that memory forces it.

    ## What it looks at
    Over how many micro-batches the trials accumulate the gradient of one step, and how much of the device's memory their tensors
    took at most. A batch k times as large takes at most k times the memory, so that a small peak proves that more fits at once.
    Where nearly half of the memory is used, or a batch up to twice as large ran out of it, accumulation may be what memory forces,
    and the rule is quiet.

    ## Why it matters
    Accumulation imitates a larger batch but brings none of its throughput: the device works on the small one. A step takes as many
    times longer as it saves steps.

    ## What to do
    Take the whole batch at once, or in as few parts as fit. The optimizer sees the same gradient, so nothing has to be tuned again,
    except with batch norm, which takes its statistics from what goes through at once.

    ## How sure
    That gradients are accumulated is a fact. Confidence is 0.95 where memory was logged and shows room, else 0.6: on a CPU, or
    without the hook, nobody measured whether more fits.

    *Example:* "Gradients are accumulated over 4 micro-batches of 16 in all 6 trials, and their tensors take 9 % of the memory."
    """

    playbook: ClassVar[str] = "Choosing the batch size"
    goal: ClassVar[Goal] = "efficiency"

    usable: Share = 0.9
    """Share of the device's memory that a training may take. Ours; fragments and other users take the rest."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        ended = [t for t in study.trials if study.ended[t.index]]
        if not any("schema" in t.facts or "micro_batches" in t.facts or _parameter(t) for t in ended):
            raise MissingData(
                "nothing tells whether gradients are accumulated; log the number of micro-batches a step, as gradient_accumulation_"
                "steps or the fact micro_batches (the advisor's training hook counts them)"
            )
        which = [t for t in ended if batches.micro_batches(t) > 1]
        if 2 * len(which) <= len(ended):
            return
        used = [m for t in which if math.isfinite(m := timing.memory_used(study, t))]
        peak = max(used, default=math.nan)
        parts, at_once = (float(np.median([f(t) for t in which])) for f in (batches.micro_batches, batches.at_once))
        fit = math.floor(self.usable / peak) if peak > 0 else parts
        if fit < 2 or throughput.ran_out(study) / (parts * at_once) <= 2 / parts:
            return
        yield self._finding(which, len(ended), parts, at_once, fit, peak)

    def _finding(
        self, which: list[Trial], ended: int, parts: float, at_once: float, fit: float, peak: float
    ) -> Finding:
        known = math.isfinite(peak)
        who = f"all {ended} trials" if len(which) == ended else f"{len(which)} of the {ended} trials"
        who = which[0].name if ended == 1 else who
        of = f" of {at_once:g}" if math.isfinite(at_once) else ""
        memory = f", and their tensors take {peak:.0%} of the memory" if known else ""
        said = f"Gradients are accumulated over {parts:g} micro-batches{of} in {who}{memory}"
        fewer = math.ceil(parts / fit)
        whole = f" of {parts * at_once:g}" if math.isfinite(at_once) else ""
        tip = f"Take the whole batch{whole} at once" if fewer == 1 else f"Accumulate over {fewer} larger micro-batches"
        tip += "." if known else ", unless memory is too small for it."
        return self.finding(
            f"{said}.",
            action=tip,
            severity="warning" if known else "note",
            confidence=0.95 if known else 0.6,
            subject=_parameter(which[0]),
            trials=which,
            evidence=(
                FigureEvidence(
                    rows=(
                        ("micro-batches a step", f"{parts:g}"),
                        ("examples at once", f"{at_once:g}"),
                        ("memory taken at most", f"{peak:.0%} of the device's" if known else "not logged"),
                        ("micro-batches that fit at once", f"{fit:g} or more" if known else "unknown"),
                    )
                ),
            ),
            changes=self._changes(which, tip, fewer, at_once * parts, f"{said}."),
        )

    def _changes(self, which: list[Trial], tip: str, fewer: int, whole: float, why: str) -> tuple[Change, ...]:
        """Fix the two hyperparameters where all trials share both; otherwise the advice."""
        parameter, size = _parameter(which[0]), next((n for n in which[0].params if kinds.is_batch_size(n)), None)
        shared = parameter and size and len({(t.params.get(parameter), t.params.get(size)) for t in which}) == 1
        if not shared or parameter is None or size is None or not (whole / fewer).is_integer():
            return (Advise(text=tip),)
        return (
            FixParameter(parameter=parameter, value=fewer, why=why),
            FixParameter(
                parameter=size, value=int(whole / fewer), why=f"The same batch of {whole:g} in {fewer} part(s)."
            ),
        )


def _parameter(trial: Trial) -> str | None:
    """The hyperparameter that says over how many micro-batches gradients are accumulated."""
    return next((n for n in trial.params if batches.accumulates(n)), None)

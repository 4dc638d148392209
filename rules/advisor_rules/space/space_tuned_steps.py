"""The rule `space-tuned-steps`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.space import kinds
from advisor.engine.rule import Rule, Share
from advisor.model.change import Change, FixParameter, SetField
from advisor.model.evidence import AxisEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import BoolArray, FloatArray, as_number, counts_training
from advisor.model.study import Study


class SpaceTunedSteps(Rule):
    """The length of the training differs between the trials of one study.

    ## What it looks at
    Hyperparameters that count the steps, epochs, iterations or tokens of a training, and the number of steps that each trial noted.
    A length that only follows the batch size, so that every trial sees as many examples, is not tuned.

    ## Why it matters
    Longer trainings are nearly always better and always dearer, so tuning their length finds the upper end of its range; and trials
    of different lengths cannot be compared: a learning rate and its schedule that are best for a short training are not for a long
    one.

    ## What to do
    Fix the length, at the best trial's. Change it from one study to the next, by what `step-position`, `curve-still-improving` and
    `curve-saturated` say of it.

    ## How sure
    The lengths stand in the log: confidence is 1. It is a note where the lengths differ by less than a tenth or only one trial's
    differs, which may be a test run.

    *Example:* "7 trials trained for 2 different lengths (num_iterations 3,200 to 4,578), so they cannot be compared."
    """

    playbook: ClassVar[str] = "Deciding how long to train when training is not compute-bound"
    goal: ClassVar[Goal] = "sampling"

    rounding: Share = 0.02
    """Share by which length times batch size may differ and still be the same number of examples: epochs get rounded to steps."""
    small: Share = 0.1
    """Difference below which the finding is a note, as a share of the longest training."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding per hyperparameter that is a length; without any, one about the lengths that trials noted."""
        batches = np.array([kinds.batch_size(t) for t in study.trials])
        named = [name for name in study.spec.parameters if counts_training(name)]
        for name in named:
            lengths = np.array([as_number(t.params.get(name)) for t in study.trials])
            lengths[~(lengths > 0)] = np.nan  # -1 means that something else sets the length
            if name in study.searched and self._tuned(lengths[study.ended], batches[study.ended]):
                yield self._finding(study, name, lengths)
        if named:
            return
        noted = np.array([t.fact("max_train_steps") for t in study.trials])
        if self._tuned(noted[study.ended], batches[study.ended]):
            yield self._finding(study, None, noted)
        elif not np.isfinite(noted).any() and _ends_differ(study, self.small):
            raise MissingData(
                "trials end at different steps and none says how long it was to train; log its length as max_train_steps"
            )

    def _tuned(self, lengths: FloatArray, batches: FloatArray) -> bool:
        """Whether lengths (n,) differ, and not only so that length times batch size stays the same."""
        examples = (lengths * batches)[np.isfinite(lengths)]
        follows = len(examples) > 0 and np.ptp(examples) <= self.rounding * examples.max()  # false where one is NaN
        return len(np.unique(lengths[np.isfinite(lengths)])) > 1 and not follows

    def _finding(self, study: Study, name: str | None, lengths: FloatArray) -> Finding:
        values, counts = np.unique(lengths[study.ended & np.isfinite(lengths)], return_counts=True)
        stray = counts.sum() - counts.max() == 1 and counts.max() > 3
        small = stray or values[0] >= (1 - self.small) * values[-1]
        best = next((float(lengths[t.index]) for t in study.ranked() if math.isfinite(lengths[t.index])), values[-1])
        what, span = name or "max_train_steps", f"{values[0]:,g} to {values[-1]:,g}"
        said = f"trained for {len(values)} different lengths ({what} {span})"
        caption = "Trainings of different lengths cannot be compared."
        rows = tuple((f"{what} {v:,g}", f"{c} trials") for v, c in list(zip(values, counts, strict=True))[:12])
        axis = (AxisEvidence(parameter=name, caption=caption),) if name else ()
        return self.finding(
            f"{counts.sum()} trials {said}, so they cannot be compared.",
            action=f"Fix {what} at {best:,g}, as in the best trial; change it only from one study to the next.",
            severity="note" if small else "warning",
            confidence=1.0,
            subject=what,
            trials=[t for t in study.trials if study.ended[t.index] and math.isfinite(lengths[t.index])],
            evidence=(*axis, FigureEvidence(rows=rows)),
            changes=_fixed(study, name, lengths == best, best, f"Trials {said}; this is the best trial's length"),
        )


def _fixed(study: Study, name: str | None, alike: BoolArray, length: float, why: str) -> tuple[Change, ...]:
    """Fix the length, and the study's number of steps at what the trials of that length planned or reached."""
    trials = [t for t in study.trials if alike[t.index]]
    noted = [s for t in trials if (s := t.fact("max_train_steps")) >= 1]
    reached = [int(c.steps[-1]) for t in trials if len(c := study.cost_curve(t)) > 1]
    steps = int(np.median(noted or reached or [0]))
    changes: list[Change] = [SetField(field="max_train_steps", value=steps, why=why)] if steps >= 1 else []
    if name is not None:
        whole = study.spec.parameters[name].type == "int" or length.is_integer()
        changes.append(FixParameter(parameter=name, value=int(length) if whole else length, why=why))
    return tuple(changes)


def _ends_differ(study: Study, small: float) -> bool:
    """Whether the last evaluations of complete trials lie further apart than a share `small` of the longest."""
    ends = [int(c.steps[-1]) for t in study.trials if t.status == "complete" and len(c := study.cost_curve(t))]
    return bool(ends) and min(ends) < (1 - small) * max(ends)

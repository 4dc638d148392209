from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.computed.space import settings
from advisor.engine.rule import Rule, Share
from advisor.model import parameter_kinds
from advisor.model.change import Change, FixParameter, SetField
from advisor.model.evidence import AxisEvidence, axis_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Setting, say
from advisor.model.space import BoolArray, FloatArray, as_number, is_training_length
from advisor.model.study import Study


class SpaceTunedSteps(Rule):
    """The length of training differs between the trials of one study.

    ## What it looks at
    The rule reads hyperparameters that count the steps, epochs, iterations or tokens of training, and the number of steps that
    each trial logged. If the length follows the batch size so that every trial sees equally many examples, the length does not
    count as tuned. Lengths that a tuner set by pruning do not count either, because successive halving trains many trials only
    briefly.

    ## Why it matters
    Longer training nearly always gives better results at a higher cost, so tuning the length finds the upper end of its range.
    Trials of different lengths cannot be compared, because the best learning rate and schedule depend on the length.

    ## What to do
    Fix the length of training at the best trial's value. Change the length only between studies, as the rules `step-position`,
    `curve-still-improving` and `curve-saturated` advise.

    ## How sure
    Lengths are logged facts, so confidence is 1. The finding is a note if the lengths differ by less than a tenth, or if only
    one trial differs, which may be a test run.
    """

    playbook = "Deciding how long to train when training is not compute-bound"
    goal = "sampling"
    compares_results = True

    rounding: Share = 0.02
    """Maximum relative difference in length times batch size at which trials count as seeing equally many examples. The limit
    is not 0, because epochs are rounded to steps."""
    small: Share = 0.1
    """Minimum difference in length that leads to a warning instead of a note, as a share of the longest training."""

    def check(self, study: Study) -> Iterator[Finding]:
        return settings.require_two_settings_unless(self._findings(study), study)

    def _findings(self, study: Study) -> Iterator[Finding]:
        is_judged = study.ended & np.array([t.status != "pruned" for t in study.trials], dtype=np.bool_)
        batches = np.array([parameter_kinds.batch_size(t) for t in study.trials])
        names = [name for name in study.spec.parameters if is_training_length(name) or name in study.lengths]
        for name in names:
            lengths = np.array([as_number(t.params.get(name)) for t in study.trials])
            lengths[~(lengths > 0)] = np.nan  # -1 means that another hyperparameter sets the length.
            if (name in study.searched or name in study.lengths) and self._is_tuned(lengths[is_judged], batches[is_judged]):
                yield self._build_finding(study, name, np.where(is_judged, lengths, np.nan))
        if names:
            return
        logged_lengths = np.array([t.fact("max_train_steps") for t in study.trials])
        if self._is_tuned(logged_lengths[is_judged], batches[is_judged]):
            yield self._build_finding(study, None, np.where(is_judged, logged_lengths, np.nan))
        last_steps = [int(c.steps[-1]) for t in study.trials if t.status == "complete" and len(c := study.cost_curve(t))]
        if not np.isfinite(logged_lengths).any() and last_steps and min(last_steps) < (1 - self.small) * max(last_steps):
            reason = "trials end at different steps and none logged its planned length; log it as max_train_steps"
            raise MissingData(reason, needs="facts")

    def _is_tuned(self, lengths: FloatArray, batches: FloatArray) -> bool:
        examples = (lengths * batches)[np.isfinite(lengths)]
        # The result is False if a batch size is NaN; trials with an unknown length are left out.
        are_equal = len(examples) > 0 and np.ptp(examples) <= self.rounding * examples.max()
        return len(np.unique(lengths[np.isfinite(lengths)])) > 1 and not are_equal

    def _build_finding(self, study: Study, name: str | None, lengths: FloatArray) -> Finding:
        values, counts = np.unique(lengths[study.ended & np.isfinite(lengths)], return_counts=True)
        is_stray = counts.sum() - counts.max() == 1 and counts.max() > 3
        is_small = is_stray or values[0] >= (1 - self.small) * values[-1]
        best = next((float(lengths[t.index]) for t in study.ranked() if math.isfinite(lengths[t.index])), values[-1])
        label = Name(name or "max_train_steps")
        low, high, length = (Setting(float(x)) for x in (values[0], values[-1], best))
        text = "{count} trained for {different} different lengths: {what} {low} to {high}."
        trials = Count(int(counts.sum()), "trial")
        lengths_differ = say(text, count=trials, different=len(values), what=label, low=low, high=high)
        rows = [(f"{label} {Setting(float(v))}", Count(int(c), "trial")) for v, c in zip(values[:12], counts[:12], strict=True)]
        axis: tuple[AxisEvidence, ...] = ()
        if name is not None and name in study.searched:
            axis = (axis_plot(name, "Trials of different lengths cannot be compared."),)
        action = "Fix {what} at {length}, the best trial's, and change it only between studies."
        why = f"{lengths_differ} We use the best trial's length"
        return self.finding(
            say("{lengths_differ} Their results cannot be compared.", lengths_differ=lengths_differ),
            action=say(action, what=label, length=length),
            severity="note" if is_small else "warning",
            confidence=1.0,
            subject=label.text,
            trials=[t for t in study.trials if study.ended[t.index] and math.isfinite(lengths[t.index])],
            evidence=(*axis, table(*rows)),
            changes=_fix_training_length(study, name, lengths == best, best, why),
        )


def _fix_training_length(study: Study, name: str | None, has_length: BoolArray, length: float, why: str) -> tuple[Change, ...]:
    trials = [t for t in study.trials if has_length[t.index]]
    planned_steps = [s for t in trials if (s := t.fact("max_train_steps")) >= 1]
    reached_steps = [int(c.steps[-1]) for t in trials if len(c := study.cost_curve(t)) > 1]
    steps = int(np.median(planned_steps or reached_steps or [0]))
    changes: list[Change] = [SetField(field="max_train_steps", value=steps, why=why)] if steps >= 1 else []
    if name is not None:
        is_whole = study.spec.parameters[name].type == "int" or length.is_integer()
        changes.append(FixParameter(parameter=name, value=int(length) if is_whole else length, why=why))
    return tuple(changes)

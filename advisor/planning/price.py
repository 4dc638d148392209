"""Sentences about the cost of a study, and about the effects that it would find."""

from __future__ import annotations

import math

from advisor.model.prediction import significant
from advisor.model.spec import StudySpec
from advisor.model.words import count
from advisor.stats import power


def cost(spec: StudySpec) -> str:
    """Return the cost of a study in training steps; if the steps of a trial are unknown, in trials."""
    trials, seeds, steps = spec.trials or 1, spec.seeds or 1, spec.max_train_steps
    runs = trials * seeds
    noun = "run" if seeds > 1 else "trial"
    if not steps:
        return f"This costs {count(runs, noun)}."
    return f"This costs {runs * steps:,} steps: {count(runs, noun)} of {steps:,} steps."


def power_of(trials: int, more: int, searched: int) -> str:
    """Return the effect that `more` trials, together with `trials` existing ones, find with a probability of 80 %."""
    effect = power.detectable(trials + more, searched)
    if not math.isfinite(effect):
        return "More trials are needed to find any effect."
    with_all = f"With these {count(more, 'trial')}" + (f" and the {trials:,} so far" if trials else "")
    return (
        f"{with_all}, an effect of {significant(effect, 2):g} standard deviations between seeds, from one end of a range to the "
        "other, would be found with 80 % probability."
    )


def power_so_far(trials: int, searched: int) -> str:
    """Return the effect that the existing trials would have shown."""
    effect = significant(power.detectable(trials, searched), 2)
    return (
        f"{count(trials, 'trial')} would have shown an effect of {effect:g} standard deviations between seeds, from one end of a "
        "range to the other, with 80 % probability. None was found, so the searched hyperparameters matter little here."
    )

"""Finds the learning rate of a study and of its trials."""

from __future__ import annotations

import numpy as np

from advisor.model.space import FloatArray, as_number, is_learning_rate
from advisor.model.study import Study, Trial


def searched_learning_rates(study: Study) -> tuple[str, FloatArray] | None:
    """Return (name, value in each trial) of the searched learning rate, of the best trial if there are several."""
    rate_names = [name for name, p in study.searched.items() if is_learning_rate(name) and p.type != "bool"]
    if not rate_names:
        return None
    best_trials = study.ranked()[:1]
    name = next((n for n in rate_names if best_trials and n in best_trials[0].params), rate_names[0])
    values = np.array([as_number(t.params.get(name)) for t in study.trials], dtype=np.float64)
    return name, np.where(values > 0, values, np.nan)


def rate_name(study: Study) -> str | None:
    """Return the name of the study's learning rate, if any; one that the study or its baseline searches comes first."""
    rate_names = [n for n in study.spec.parameters if is_learning_rate(n)]
    searched_names = study.spec.searched.keys() | (study.spec.baseline.searched.keys() if study.spec.baseline else ())
    return next((n for n in rate_names if n in searched_names), rate_names[0] if rate_names else None)


def peak_learning_rate(study: Study, trial: Trial) -> float:
    """Return the peak learning rate, from hyperparameters or else from logged facts, or NaN if unknown."""
    rates = sorted((n for n in trial.params if is_learning_rate(n)), key=lambda n: n != rate_name(study))
    values = (as_number(trial.params[n]) for n in rates)
    return next((v for v in values if v > 0), trial.fact("optimizer.learning_rate"))

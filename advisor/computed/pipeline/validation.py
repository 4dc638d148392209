"""How sure the objective is, from the number of examples that it was evaluated on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from advisor import contract
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, words_of
from advisor.model.study import Study, Trial
from advisor.stats.heterogeneity import error_of_share

_ONE = 1 + 1e-6
"""A share beyond this is in percent; 32-bit floats round 1 to a little more."""
_SHARES = {"accuracy", "acc", "top1", "top5"}
_ERRORS = {"error", "err"}
_NO_SHARES = {
    *(
        "balanced",
        "macro",
        "weighted",
        "class",
        "mean",
        "squared",
        "square",
        "absolute",
        "relative",
        "rms",
        "root",
        "median",
    ),
    *("word", "character", "char", "phone", "token", "pixel", "std", "reconstruction", "prediction", "approximation"),
}
"""Words of metrics that are no share of the examples: means of other means, of sizes, or of parts of examples."""


def unit_of_shares(study: Study) -> float:
    """What an objective that is a share counts as all: 100 for one in percent, 1 for one between 0 and 1.

    By its largest value at any step, as the best ones alone may lie below 1 percent.
    """
    values = study.metrics[study.spec.objective.metric].values
    return 100.0 if float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0)) > _ONE else 1.0


def standard_errors(study: Study, trials: Sequence[Trial]) -> FloatArray:
    """Standard error of the best objective of each trial (k,), from the size of its validation set.

    It follows from counts where the objective is the share of right or wrong examples, else it takes their spread. Raises
    MissingData, saying what to log, where any of the trials lacks it.
    """
    metric = study.spec.objective.metric
    sizes = np.array([t.fact("n_valid") for t in trials])
    if not (sizes > 0).all():
        raise MissingData(
            "the number of validation examples is not known; tell the hook the validation loader, or log n_valid"
        )
    spread = metric + contract.STD_SUFFIX
    if spread in study.metrics:
        return np.asarray(_spreads(study, trials, spread) / np.sqrt(sizes), dtype=np.float64)
    shares = np.array([study.objective_value(float(study.costs[t.index])) for t in trials])
    unit = unit_of_shares(study)
    if not _is_share(study, metric, shares / unit, sizes):
        raise MissingData(
            f"{metric} is no share of right or wrong examples, so how sure it is takes its standard deviation over the validation "
            f"examples; log that as {spread}"
        )
    return unit * error_of_share(shares / unit, sizes)


def _spreads(study: Study, trials: Sequence[Trial], metric: str) -> FloatArray:
    """Standard deviation over the examples at the best step of each trial (k,), or the last one before it."""
    found = np.full(len(trials), np.nan)
    for i, trial in enumerate(trials):
        costs, logged = study.cost_curve(trial).finite, study.metrics[metric].curve(trial.index).finite
        at = np.searchsorted(logged.steps, costs.steps[np.argmin(costs.values)], side="right") - 1
        if at >= 0:
            found[i] = logged.values[at]
    if not np.isfinite(found).all():
        raise MissingData(f"not all of the best trials logged {metric} with their best evaluation")
    return found


def _is_share(study: Study, metric: str, shares: FloatArray, sizes: FloatArray) -> bool:
    """Whether the objective, shares (k,), counts examples: an accuracy by its name; an error if its values are counts, too."""
    words = set(words_of(metric))
    if words & _NO_SHARES or shares.min() < 0 or shares.max() > 1:
        return False
    if words & _SHARES:
        return True
    counts = shares * sizes
    # Values that were rounded to four digits, or stored as 32-bit floats, are counts all the same.
    whole = bool((np.abs(counts - np.round(counts)) <= 1e-3 * counts + 0.01).all())
    return bool(words & _ERRORS) and (whole or any("classes" in t.facts for t in study.trials))


def class_counts(trial: Trial) -> list[int]:
    """Validation examples of each class, as noted; empty where they were not."""
    try:
        noted = json.loads(trial.facts.get("valid_class_counts", ""))
    except ValueError:
        return []
    return noted if isinstance(noted, list) and all(isinstance(n, int) for n in noted) else []

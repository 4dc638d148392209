"""Reads hyperparameters from the tags of the runs if no run logged a parameter: some users set them as tags."""

from __future__ import annotations

import math
from dataclasses import replace

from advisor import contract
from advisor.model.reading import Decision
from advisor.model.space import as_number
from advisor.model.words import clean, listed
from advisor.tracking.runs import Experiment
from advisor.tracking.study import declared, inference

_MIN_RUNS = 3
"""Minimum number of runs from which tags are read as hyperparameters."""
_MIN_VARIED_VALUES = 2
"""Minimum number of different values of the tag that shows that the tags contain hyperparameters."""


def hyperparameters_from_tags(experiment: Experiment) -> tuple[Experiment, tuple[Decision, ...]]:
    """Return the experiment with the tags of its runs as parameters, and the decision about them.

    The experiment stays as it is unless every run has a numeric tag that can be a hyperparameter and differs between runs. Tags
    of MLflow, of tuners and of our training hooks are no hyperparameters.
    """
    runs = experiment.runs
    if len(runs) < _MIN_RUNS or any(run.params or declared.has_tuner_tags(run) for run in runs):
        return experiment, ()
    user_tags = [{k: v for k, v in run.tags.items() if not k.startswith(("mlflow.", contract.TAG_PREFIX))} for run in runs]
    settings = inference.parse_params(user_tags)
    names = sorted(set.intersection(*(set(setting) for setting in settings)))
    varied = [n for n in names if len({setting[n] for setting in settings}) >= _MIN_VARIED_VALUES]
    if not any(all(math.isfinite(as_number(setting[n])) for setting in settings) for n in varied):
        return experiment, ()
    text = f"No run logged a parameter, so we read the hyperparameters from the runs' tags: {listed(map(clean, varied), 6)}."
    decision = Decision(topic="parameters", text=text, overrule=None)
    tagged = tuple(replace(run, params=tags) for run, tags in zip(runs, user_tags, strict=True))
    return replace(experiment, runs=tagged), (decision,)

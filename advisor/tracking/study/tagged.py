"""Reads hyperparameters from the tags of the runs if no run logged a parameter: some users set them as tags."""

from __future__ import annotations

import math
from dataclasses import replace

from advisor import contract
from advisor.contract.redact import denotes_secret
from advisor.model.reading import Decision
from advisor.model.space import as_number, words_of_name
from advisor.model.words import clean, listed
from advisor.tracking.runs import Experiment
from advisor.tracking.study import declared, inference
from advisor.tracking.study.hyperparameters import measured_parameters

_BOOKKEEPING_WORDS = frozenset(
    "author owner assignee email team branch sha build ticket issue jira pr job node cluster".split()
)
_BOOKKEEPING_WORDS |= {"created", "updated", "started", "finished", "index"}
"""Words of tags that identify a run, its code or a person. Unlike parameters, tags often do."""
_MAX_VALUE_CHARS = 250
"""Maximum characters of a setting; longer tags are descriptions. Our choice."""
_MIN_RUNS = 3
"""Minimum number of runs from which tags are read as hyperparameters."""
_MIN_VARIED_VALUES = 2
"""Minimum number of different values of the tag that shows that the tags contain hyperparameters."""


def hyperparameters_from_tags(experiment: Experiment) -> tuple[Experiment, tuple[Decision, ...]]:
    """Return the experiment with the tags of its runs as parameters, and the decision about them.

    The experiment stays as it is unless every run has a numeric tag that can be a hyperparameter and differs between runs. Tags
    of MLflow, of tuners and of our training hooks, long texts, secrets and names of people are no hyperparameters.
    """
    runs = experiment.runs
    if len(runs) < _MIN_RUNS or any(run.params or declared.has_tuner_tags(run) for run in runs):
        return experiment, ()
    user_tags = [{k: v for k, v in run.tags.items() if _may_be_setting(k, v)} for run in runs]
    measured = measured_parameters(user_tags, experiment.points.keys())
    user_tags = [{k: v for k, v in tags.items() if k not in measured} for tags in user_tags]
    settings = inference.parse_params(user_tags)
    names = sorted(set.intersection(*(set(setting) for setting in settings)))
    varied = [n for n in names if len({setting[n] for setting in settings}) >= _MIN_VARIED_VALUES]
    if not any(all(math.isfinite(as_number(setting[n])) for setting in settings) for n in varied):
        return experiment, ()
    text = f"No run logged a parameter, so we read the hyperparameters from the runs' tags: {listed(map(clean, varied), 6)}."
    decision = Decision(topic="parameters", text=text, overrule=None)
    tagged = tuple(replace(run, params=tags) for run, tags in zip(runs, user_tags, strict=True))
    return replace(experiment, runs=tagged), (decision,)


def _may_be_setting(name: str, text: str) -> bool:
    if name.startswith(("mlflow.", contract.TAG_PREFIX)) or len(text) > _MAX_VALUE_CHARS or denotes_secret(name):
        return False
    words = set(words_of_name(name))
    return not (_BOOKKEEPING_WORDS & words or ("id" in words and text.strip().isdecimal()))

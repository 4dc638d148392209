"""Removes parameters that are no hyperparameters: measurements, such as the best epoch, run names, and ignored ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from advisor.contract.metric_direction import SPLIT_BY_WORD, direction_of_metric
from advisor.model.reading import Decision, Reading
from advisor.model.space import as_number, words_of_name
from advisor.model.spec import StudySpec
from advisor.model.words import clean, listed
from advisor.tracking.runs import Experiment

_WEIGHT_COUNT_WORDS = frozenset("params parameters param weights".split())
_COUNT_WORDS = frozenset("num n nb number count total trainable millions million m size".split())
_FLOP_COUNT_WORDS = frozenset("flops gflops mflops macs gmacs flop".split())
_DURATION_WORDS = frozenset("runtime elapsed walltime".split())
_TIME_UNITS = frozenset("s sec secs seconds min mins minutes h hours ms".split())
_TRAINING_END_WORDS = frozenset("best final last stopped restored".split())
_STEP_WORDS = frozenset("epoch step iteration iter round".split())
_TRAINING_RUN_WORDS = frozenset("train training run total fit wall".split())


def drop_non_hyperparameters(
    experiment: Experiment, spec: StudySpec | None, reading: Reading
) -> tuple[Experiment, tuple[Decision, ...]]:
    declared = spec.parameters.keys() if spec is not None else set()
    measurements = measured_parameters([run.params for run in experiment.runs], experiment.points.keys()) - declared
    # A value that equals the run's name in most runs, and in at least two, is the run's name.
    counts = Counter(name for run in experiment.runs for name, value in run.params.items() if value == run.name)
    names = {name for name, n in counts.items() if n >= 2 and 2 * n > sum(name in run.params for run in experiment.runs)}
    left_out = measurements | names | set(reading.ignore)
    params = [{n: v for n, v in run.params.items() if n not in left_out} for run in experiment.runs]
    runs = tuple(replace(run, params=kept) for run, kept in zip(experiment.runs, params, strict=True))
    decisions = []
    if measurements:
        text = f"Measured instead of set, so not hyperparameters: {listed((clean(n) for n in sorted(measurements)), 6)}."
        decisions.append(Decision(topic="parameters", text=text, overrule="--study FILE with these parameters"))
    if reading.ignore:
        text = f"Ignored, as you asked: {listed((clean(n) for n in reading.ignore), 6)}."
        decisions.append(Decision(topic="parameters", text=text))
    return replace(experiment, runs=runs), tuple(decisions)


def measured_parameters(logged_params: Sequence[Mapping[str, str]], metrics: Collection[str]) -> set[str]:
    """Return the parameters whose values are measured, not set. logged_params: of each run; metrics: logged names."""
    measured = {name for name in {n for params in logged_params for n in params} if _is_measurement(name, metrics)}
    return {n for n in measured if all(math.isfinite(as_number(params[n])) for params in logged_params if n in params)}


def _is_measurement(name: str, metrics: Collection[str]) -> bool:
    """Return whether the value is measured during or after the training, by its name. metrics: logged names."""
    words = words_of_name(name)
    in_name = set(words)
    if in_name & _FLOP_COUNT_WORDS or in_name & _DURATION_WORDS or (name in metrics and direction_of_metric(name) is not None):
        return True
    if in_name & _WEIGHT_COUNT_WORDS and in_name & _COUNT_WORDS and in_name <= {*_WEIGHT_COUNT_WORDS, *_COUNT_WORDS, "model"}:
        return True
    names_quality = bool(words) and direction_of_metric(words[-1]) is not None  # not a name such as train_loss_weight
    if words and words[0] in _TRAINING_END_WORDS and (words[-1] in _STEP_WORDS or names_quality):
        return True
    if "duration" in in_name and in_name <= {"duration", *_TIME_UNITS, *_TRAINING_RUN_WORDS}:
        return True
    return bool(in_name & SPLIT_BY_WORD.keys()) and len(words) <= 3 and names_quality

"""Determines the metric that the study optimises, and its direction (minimize or maximize)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.contract import metric_direction
from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.spec import Direction, Objective, StudySpec
from advisor.model.words import first_few
from advisor.tracking.runs import Experiment
from advisor.tracking.study import declared, from_params, metric_names
from advisor.tracking.study_tags import latest_spec

_MAX_LISTED_METRICS = 12


@dataclass(frozen=True, slots=True)
class ObjectiveChoice:
    objective: Objective
    inferred: Mapping[str, str]
    """Entries for `Study.inferred`."""
    warnings: tuple[str, ...] = ()


def choose_objective(
    experiment: Experiment, spec: StudySpec | None, metric: str | None, direction: Direction | None
) -> ObjectiveChoice:
    """Return the objective that the arguments, the study file, the tags, the parameters or the metric names state, in this
    order. Raises AdvisorError if the arguments contradict each other or the data, or if the objective cannot be inferred."""
    if all(metric_names.is_window_or_system_metric(m) for m in experiment.points):
        hint = "log the metric that measures how good a trial is"
        raise NothingToJudge(f"no run of experiment {experiment.name!r} logged a metric; {hint}")
    if spec is not None:
        if metric is not None and spec.objective.metric != metric:
            text = f"the study file's objective is {spec.objective.metric!r}, but --objective says {metric!r}; drop one of them"
            raise AdvisorError(text)
        metric, direction = spec.objective.metric, direction or spec.objective.direction
    inferred: dict[str, str] = {}
    if metric is None:
        metric, direction = _declared_objective(experiment, direction)
    stated_direction = direction
    if metric is None:
        metric, chosen, inferred["objective"] = _infer_metric(experiment)
        stated_direction = stated_direction or chosen
    if metric not in experiment.points:
        text = f"no run logged the objective {metric!r}; metrics that were logged: {_list_metrics(experiment)}"
        running = any(run.unfinished for run in experiment.runs)
        raise NothingToJudge(f"{text}; come back later") if running else AdvisorError(text)
    if contract.TAG_DIRECTION in experiment.tags:
        stated_direction = stated_direction or _tagged_direction(experiment, metric)
    warnings = _data_split_warnings(metric)
    if stated_direction is not None:
        warnings += _direction_warnings(metric, stated_direction, followed=True)
        return ObjectiveChoice(Objective(metric=metric, direction=stated_direction), inferred, tuple(warnings))
    by_default = _tagged_direction(experiment, metric) or declared.tuner_direction(experiment.runs)
    direction, source, contradictions = _choose_direction(metric, by_default)
    return ObjectiveChoice(Objective(metric=metric, direction=direction), inferred | source, (*warnings, *contradictions))


def _data_split_warnings(metric: str) -> list[str]:
    by_name, split = f"By its name, {metric} is computed on", metric_direction.split_of_metric(metric)
    if split == "test":
        return [f"{by_name} test data: choose trials by a validation metric, and use the test data only once."]
    if split != "train" or {"reward", "rewards", "return"} & {*metric_direction.quantity_words(metric)}:
        return []
    advice = "log a validation metric and choose trials by it"
    return [f"{by_name} training data. If training sees examples more than once, it hides overfitting: {advice}."]


def _declared_objective(experiment: Experiment, direction: Direction | None) -> tuple[str | None, Direction | None]:
    """Return (objective, direction) from the runs' tags or, if no run logged this objective, from the stored study file."""
    tag, file = _most_common_tag(experiment, contract.TAG_OBJECTIVE), latest_spec(experiment.tags)
    if tag is None or tag in experiment.points or file is None or file.objective.metric not in experiment.points:
        return tag, direction
    return file.objective.metric, direction or file.objective.direction


def _choose_direction(metric: str, logged_direction: Direction | None) -> tuple[Direction, dict[str, str], tuple[str, ...]]:
    """Return (direction, entry for `Study.inferred`, warning if the runs contradict the metric's name). The direction that the
    name implies takes precedence over `logged_direction`, because tuners and hooks log "minimize" by default."""
    if logged_direction is not None and not metric_direction.contradicts_direction(metric, logged_direction):
        return logged_direction, {}, ()
    by_name = metric_direction.direction_of_metric(metric)
    if by_name is None:
        raise AdvisorError(f"cannot tell whether {metric!r} is better low or high; pass --direction minimize or maximize")
    warnings = () if logged_direction is None else tuple(_direction_warnings(metric, logged_direction, followed=False))
    return by_name, {"direction": "inferred from the metric's name"}, warnings


def _direction_warnings(metric: str, stated_direction: Direction, *, followed: bool) -> Iterator[str]:
    """followed: whether the analysis uses the stated direction."""
    if metric_direction.contradicts_direction(metric, stated_direction):
        other_direction = "maximize" if stated_direction == "minimize" else "minimize"
        better_values = "higher" if stated_direction == "minimize" else "lower"
        used, unused = (stated_direction, other_direction) if followed else (other_direction, stated_direction)
        yield (
            f"The stated direction contradicts the objective's name: {stated_direction} {metric}, whose {better_values} values are "
            f"better by its name. The analysis will {used} the metric; --direction {unused} changes this."
        )


def _infer_metric(experiment: Experiment) -> tuple[str, Direction | None, str]:
    params = [run.params for run in experiment.runs]
    metric = from_params.best_model_metric(params, experiment.points)
    if metric is not None:
        reason = "inferred from the parameter that names the metric for choosing the best model"
        return metric, from_params.best_model_direction(params), reason
    metric = metric_names.guess_objective({m: len(np.unique(p.runs)) for m, p in experiment.points.items()})
    if metric is None and (metric := _tuner_objective(experiment)) is not None:
        return metric, None, "inferred from the tags of the tuner"
    if metric is None:
        raise AdvisorError(f"cannot tell which metric is the objective; pass --objective, one of: {_list_metrics(experiment)}")
    reason = "inferred from the names of the metrics"
    if metric_direction.split_of_metric(metric) is None:
        reason += "; no name shows that a metric is computed on validation data"
    return metric, None, reason


def _tuner_objective(experiment: Experiment) -> str | None:
    """Return Optuna's "value", or else the only metric that can be the objective of a tuner's trials."""
    names = [m for m in experiment.points if not metric_names.is_window_or_system_metric(m)]
    if not any(declared.has_tuner_tags(run) for run in experiment.runs):
        return None
    if "value" in names:
        return "value"
    names = [m for m in names if metric_direction.split_of_metric(m) == "valid"] or names
    return names[0] if len(names) == 1 else None


def _tagged_direction(experiment: Experiment, metric: str) -> Direction | None:
    """Return the direction in the tags of our training hooks if they name this metric as the objective."""
    if metric != _most_common_tag(experiment, contract.TAG_OBJECTIVE):
        return None
    tag = _most_common_tag(experiment, contract.TAG_DIRECTION)
    return "maximize" if tag == "maximize" else "minimize" if tag == "minimize" else None


def _most_common_tag(experiment: Experiment, tag: str) -> str | None:
    if tag in experiment.tags:
        return experiment.tags[tag]
    values = [run.tags[tag] for run in experiment.runs if tag in run.tags]
    return max(sorted(set(values)), key=values.count) if values else None


def _list_metrics(experiment: Experiment) -> str:
    names = sorted(m for m in experiment.points if not metric_names.is_window_or_system_metric(m))
    return first_few(names, _MAX_LISTED_METRICS) or "none"

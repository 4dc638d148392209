"""Converts the search space of an Optuna study to a study file, which becomes a tag of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from advisor.interop.importers.mlflow_runs import MAX_VALUE_CHARACTERS
from advisor.model import spec_yaml
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.tracking.study.inference import infer_parameters, parse_params

_DECLARED_BY_OPTUNA = "as the Optuna study declares it"


def declared_study(
    name: str, metric: str, direction: Direction | str | None, trials: Sequence[Any]
) -> tuple[str | None, str | None]:
    """Return (study file or None, note for the user or None) for the trials of an Optuna study.

    If a range changed between trials, the study file contains the smallest range that includes the ranges of all trials. If
    only trials with one value of another parameter have a parameter, the study file states this as a condition.
    """
    inferred = infer_parameters(parse_params([{k: str(v) for k, v in trial.params.items()} for trial in trials]))
    parameters: dict[str, Parameter] = {}
    for key, parameter in inferred.items():
        distributions = [trial.distributions[key] for trial in trials if key in trial.distributions]
        declared = _declared_parameter(distributions, parameter)
        if declared is not None:
            parameters[key] = declared
    parameters = {
        key: p if all(parent in parameters for parent in p.when or {}) else p.model_copy(update={"when": None})
        for key, p in parameters.items()
    }
    if not parameters or direction not in ("minimize", "maximize"):
        return None, None
    objective = Objective(metric=metric, direction=direction)
    try:
        text = spec_yaml.format_study_file(
            StudySpec(study=name, objective=objective, parameters=parameters, trials=len(trials))
        )
        spec_yaml.parse_study_file(text)
    except (ValidationError, ValueError) as error:
        problem = str(error)[:100]
        return None, f"The space of {name!r} is inferred from its trials: a study file cannot express it: {problem}."
    if len(text) > MAX_VALUE_CHARACTERS:
        return (None, f"The space of {name!r} is inferred from its trials: its study file is too long for a tag.")
    return text, None


def _declared_parameter(distributions: Sequence[Any], inferred: Parameter) -> Parameter | None:
    """Return the parameter with its declared domain; None if a study file cannot express the domain or the domain has a single
    value."""
    kinds = {type(d).__name__ for d in distributions}
    fields: dict[str, Any]
    if kinds == {"CategoricalDistribution"}:
        choices = tuple(dict.fromkeys(c for d in distributions for c in d.choices if isinstance(c, str | bool | int | float)))
        fields = {"type": "categorical", "choices": _unify_choice_types(choices), "role": "scientific"}
    elif kinds in ({"FloatDistribution"}, {"IntDistribution"}):
        fields = {
            "type": "int" if kinds == {"IntDistribution"} else "float",
            "low": min(d.low for d in distributions),
            "high": max(d.high for d in distributions),
            "scale": "log" if all(d.log for d in distributions) else "linear",
            "role": "nuisance",
        }
    else:
        return None
    try:
        parameter = Parameter(**fields, when=inferred.when, why=_DECLARED_BY_OPTUNA)
    except ValidationError:
        return None
    return parameter if parameter.has_several_values else None


def _unify_choice_types(choices: tuple[HyperparameterValue, ...]) -> tuple[HyperparameterValue, ...]:
    """Return the choices. If the choices mix numbers and texts, convert all choices to texts, because the logged values of such
    a parameter are also read as texts."""
    return tuple(str(c) for c in choices) if len({isinstance(c, str) for c in choices}) > 1 else choices

"""The search space that a tuner declared, as a study file that goes with the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from advisor.interop.importers.writer import MAX_VALUE
from advisor.model import spec_yaml
from advisor.model.space import Value
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.tracking.study.inference import infer_parameters, parse_params

_WHY = "as the Optuna study declares it"


def declared_study(
    name: str, metric: str, direction: Direction | str | None, trials: Sequence[Any]
) -> tuple[str | None, str | None]:
    """The study file of Optuna's trials, and what the user should know of it; None where there is nothing to declare.

    A range that changed from trial to trial is the widest that there was; a parameter that depends on another's value has that as
    its condition, as far as the trials show it.
    """
    params = parse_params([{k: str(v) for k, v in trial.params.items()} for trial in trials])
    seen = infer_parameters(params)
    parameters = {}
    for parameter in seen:
        distributions = [trial.distributions[parameter] for trial in trials if parameter in trial.distributions]
        declared = _parameter(distributions, seen[parameter])
        if declared is not None:
            parameters[parameter] = declared
    parameters = {
        key: p if all(parent in parameters for parent in p.when or {}) else p.model_copy(update={"when": None})
        for key, p in parameters.items()
    }
    if not parameters or direction not in ("minimize", "maximize"):
        return None, None
    try:
        spec = StudySpec(
            study=name,
            objective=Objective(metric=metric, direction=direction),
            parameters=parameters,
            trials=len(trials),
        )
        text = spec_yaml.dump(spec)
        spec_yaml.loads(text)
    except (ValidationError, ValueError) as error:
        return (
            None,
            f"The space of {name!r} is inferred from its trials, since it cannot be declared: {str(error)[:100]}.",
        )
    if len(text) > MAX_VALUE:
        return None, f"The space of {name!r} is inferred from its trials, since a tag cannot hold so many parameters."
    return text, None


def _parameter(distributions: Sequence[Any], seen: Parameter) -> Parameter | None:
    kinds = {type(d).__name__ for d in distributions}
    if kinds == {"CategoricalDistribution"}:
        choices = tuple(
            dict.fromkeys(c for d in distributions for c in d.choices if isinstance(c, str | bool | int | float))
        )
        return _checked({"type": "categorical", "choices": _of_one_kind(choices), "role": "scientific"}, seen)
    if kinds in ({"FloatDistribution"}, {"IntDistribution"}):
        low, high = min(d.low for d in distributions), max(d.high for d in distributions)
        log = all(d.log for d in distributions)
        kind = "int" if kinds == {"IntDistribution"} else "float"
        return _checked(
            {"type": kind, "low": low, "high": high, "scale": "log" if log else "linear", "role": "nuisance"}, seen
        )
    return None


def _of_one_kind(choices: tuple[Value, ...]) -> tuple[Value, ...]:
    """A mix of numbers and words is words, as trials that logged both are read."""
    return tuple(str(c) for c in choices) if len({isinstance(c, str) for c in choices}) > 1 else choices


def _checked(fields: Mapping[str, Any], seen: Parameter) -> Parameter | None:
    """The parameter, with the condition that the trials show; None where its domain has one value only, or cannot be declared."""
    try:
        found = Parameter(**fields, when=seen.when, why=_WHY)
    except ValidationError:
        return None
    return found if found.varied else None

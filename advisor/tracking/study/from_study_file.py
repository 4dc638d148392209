"""Compares the declared search space with the values in the trials."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model import spec_yaml
from advisor.model.errors import AdvisorError
from advisor.model.parameter_kinds import can_be_fractional
from advisor.model.space import HyperparameterValue, Params, equal_values
from advisor.model.spec import Parameter, StudySpec
from advisor.model.words import first_few
from advisor.tracking import study_tags
from advisor.tracking.runs import Experiment

_MAX_LISTED_WORDS = 5


def check_declared_parameters(spec: StudySpec | None, params: Sequence[Params]) -> tuple[dict[str, Parameter], list[str]]:
    """Return the declared parameters with their logged types, and a warning about each with values outside its range. Raises
    AdvisorError if no trial logged a parameter or used its values."""
    if spec is None:
        return {}, []
    warnings = []
    for name, parameter in spec.searched.items():
        values = [p[name] for p in params if name in p]
        condition = (parameter.when or {}).items()
        if not values and not any(all(k in trial and equal_values(trial[k], v) for k, v in condition) for trial in params):
            continue
        if not values:
            raise AdvisorError(f"the study file searches {name!r}, but no run logged a parameter of that name")
        if parameter.numeric and all(isinstance(v, str) for v in values):
            raise AdvisorError(f"the study file gives {name!r} a range, but the runs logged words such as {values[0]!r}")
        outside_count = sum(not parameter.allows_logged_value(v) for v in values)
        if outside_count == len(values):
            raise AdvisorError(
                f"the study file searches {name!r} {_format_domain(parameter)}, but no trial used a value in it; "
                f"the trials used {_format_used_values(values)}: pass the study file that these trials were drawn from"
            )
        if outside_count:
            trials = f"{outside_count:,} of {len(values):,} trials"
            warnings.append(f"{trials} used a value of {name!r} that the study file, {_format_domain(parameter)}, leaves out.")
    return {name: _add_logged_type(name, p, [t.get(name) for t in params]) for name, p in spec.parameters.items()}, warnings


def find_spec(experiment: Experiment, params: Sequence[Params]) -> StudySpec | None:
    """Return the study file in the experiment's tags, or None if it is missing or does not match the trials."""
    text = study_tags.latest_study_file(experiment.tags)
    try:
        spec = None if text is None else spec_yaml.parse_study_file(text)
        check_declared_parameters(spec, [spec.with_computed_values(trial) for trial in params] if spec is not None else params)
    except AdvisorError:
        return None
    return spec


def _format_domain(parameter: Parameter) -> str:
    if parameter.numeric:
        return f"from {parameter.low:g} to {parameter.high:g}"
    return f"among {first_few(list(map(str, parameter.options)), _MAX_LISTED_WORDS)}"


def _format_used_values(values: Sequence[HyperparameterValue]) -> str:
    numbers = [v for v in values if not isinstance(v, str | bool)]
    if len(numbers) < len(values):
        return first_few(sorted({str(v) for v in values}), _MAX_LISTED_WORDS)
    low, high = min(numbers), max(numbers)
    return f"{low:.3g} to {high:.3g}" if low < high else f"{low:.6g}"


def _add_logged_type(name: str, parameter: Parameter, values: Sequence[HyperparameterValue | None]) -> Parameter:
    """Set the type of the trials' values if none is declared. A range with a fractional end has floats."""
    range_ends = [end for end in (parameter.low, parameter.high) if end is not None]
    has_fraction = parameter.type == "int" and not all(float(end).is_integer() for end in range_ends)
    if not parameter.numeric or (parameter.type is not None and not has_fraction):
        return parameter
    numbers = [v for v in values if v is not None]
    is_integer = bool(numbers) and all(isinstance(v, int) for v in numbers) and not (has_fraction or can_be_fractional(name))
    return parameter.model_copy(update={"type": "int" if is_integer else "float"})

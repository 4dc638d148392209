"""Reads the search space and the direction that a tuner declares in the tags of its runs, as Optuna's MLflow callback does."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from advisor.model.space import AxisScale, ParameterType, Params
from advisor.model.spec import Direction, Parameter
from advisor.tracking.runs import Run

_DISTRIBUTION_TAG_SUFFIX = "_distribution"
_LOG_DISTRIBUTIONS = frozenset(("LogUniformDistribution", "IntLogUniformDistribution"))
_FLOAT_DISTRIBUTIONS = {*"FloatDistribution UniformDistribution LogUniformDistribution DiscreteUniformDistribution".split()}
_INT_DISTRIBUTIONS = frozenset(("IntDistribution", "IntUniformDistribution", "IntLogUniformDistribution"))
_DECLARED_REASON = "as the tuner declares it in the runs' tags"


def has_tuner_tags(run: Run) -> bool:
    """Return whether the run has the tags that a tuner gives its trials."""
    return {"number", "state"} <= run.tags.keys() or any(tag.endswith(_DISTRIBUTION_TAG_SUFFIX) for tag in run.tags)


def tuner_direction(runs: Sequence[Run]) -> Direction | None:
    """Return the direction that the tuner's tags declare in most runs, or None if they declare no direction or several."""
    tags = Counter(run.tags.get("direction", "").rpartition(".")[2].lower() for run in runs if has_tuner_tags(run))
    direction_counts = {text: n for text, n in tags.items() if text in ("minimize", "maximize")}
    if not direction_counts:
        return None
    return "maximize" if max(direction_counts, key=lambda text: direction_counts[text]) == "maximize" else "minimize"


def count_objective_directions(tags: Mapping[str, str]) -> int:
    """Return the number of directions that a tuner's tags declare: one for each objective."""
    text = f"{tags.get('direction', '')} {tags.get('directions', '')}"
    return len(re.findall(r"\b(?:minimize|maximize)\b", text, re.I))


def parameters_with_none_choice(runs: Sequence[Run]) -> frozenset[str]:
    """Return the parameters whose declared choices contain None. In these parameters, the logged text "None" is a value."""
    distributions = _distributions_by_parameter(runs).items()
    return frozenset(name for name, many in distributions if any(None in values.get("choices", ()) for _, values in many))


def tuner_parameters(runs: Sequence[Run], params: Sequence[Params]) -> dict[str, Parameter]:
    """Return the parameters that the tuner declares, by name, with the union of their ranges, unless `params` contradict it."""
    result = {}
    for name, found in _distributions_by_parameter(runs).items():
        values = [p[name] for p in params if name in p]
        parameter = _declared_parameter(found, any(isinstance(v, str) for v in values))
        if parameter is not None and values and all(parameter.allows_logged_value(v) for v in values):
            result[name] = parameter
    return result


def _distributions_by_parameter(runs: Sequence[Run]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    tag_texts: dict[str, set[str]] = {}
    for run in runs:
        for tag, text in run.tags.items():
            if tag.endswith(_DISTRIBUTION_TAG_SUFFIX) and len(tag) > len(_DISTRIBUTION_TAG_SUFFIX):
                tag_texts.setdefault(tag.removesuffix(_DISTRIBUTION_TAG_SUFFIX), set()).add(text)
    return {name: [d for text in sorted(found) if (d := _parse_distribution(text))] for name, found in tag_texts.items()}


def _parse_distribution(text: str) -> tuple[str, dict[str, Any]] | None:
    """Parse a text such as `FloatDistribution(high=0.1, log=True, low=1e-05, step=None)`."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        return call.func.id, {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _declared_parameter(distributions: Sequence[tuple[str, dict[str, Any]]], as_text: bool) -> Parameter | None:
    """Return None if the declaration has a single value or cannot be written into a study file."""
    classes = {kind for kind, _ in distributions}
    fields = [values for _, values in distributions]
    try:
        if classes == {"CategoricalDistribution"}:
            return _categorical_parameter([c for f in fields for c in f["choices"]], as_text)
        if not classes or not (classes <= _FLOAT_DISTRIBUTIONS or classes <= _INT_DISTRIBUTIONS):
            return None
        low, high = min(float(f["low"]) for f in fields), max(float(f["high"]) for f in fields)
        log = all(kind in _LOG_DISTRIBUTIONS or f.get("log") is True for kind, f in distributions)
        scale: AxisScale = "log" if log else "linear"
        kind: ParameterType = "int" if classes <= _INT_DISTRIBUTIONS else "float"
        parameter = Parameter(type=kind, low=low, high=high, scale=scale, why=_DECLARED_REASON)
    except (KeyError, TypeError, ValueError, ValidationError):
        return None
    return parameter if math.isfinite(low) else None


def _categorical_parameter(choices: Sequence[Any], as_text: bool) -> Parameter | None:
    unique_choices = dict.fromkeys(str(c) if as_text or c is None else c for c in choices)
    if not all(isinstance(c, str | bool | int | float) for c in unique_choices) or len(unique_choices) < 2:
        return None
    return Parameter(role="scientific", type="categorical", choices=tuple(unique_choices), why=_DECLARED_REASON)

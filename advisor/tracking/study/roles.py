"""Determines which parameters are not separate hyperparameters: duplicates, dependent ones, and lengths of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from advisor.model.reading import Decision
from advisor.model.space import Params, as_number, is_training_length
from advisor.model.spec import Parameter
from advisor.model.words import clean, listed
from advisor.tracking.study import inference, relations


@dataclass(frozen=True, slots=True)
class ParameterRoles:
    """Parameters whose role in the study is inferred from the trials' values."""

    derived: Mapping[str, Parameter]
    """Parameters that a formula computes from other parameters."""
    lengths: Mapping[str, Parameter]
    """Lengths of training, by the trials' last steps; fixed, because no study searches them."""
    omitted_names: frozenset[str]
    """Duplicates, and numbers that other parameters determine by an unknown formula."""
    steps: tuple[int | None, ...]
    """Planned steps of each trial, by a parameter in `lengths`, or None if unknown."""
    steps_per_unit: Mapping[str, float]
    """Steps per unit of each parameter in `lengths`."""
    decisions: tuple[Decision, ...]

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {**self.derived, **self.lengths}


def parameter_roles(params: Sequence[Params], declared: Collection[str], last_steps: Sequence[int]) -> ParameterRoles:
    """declared: parameters in the study file, which keep their role. last_steps: last logged step of each trial."""
    copies = inference.find_duplicate_parameters(params, declared)
    left = [{n: v for n, v in trial.items() if n not in copies} for trial in params]
    lengths, steps, factors = _lengths_under_unusual_names(left, declared, last_steps)
    dependents = relations.find_dependent_parameters([{n: v for n, v in t.items() if n not in lengths} for t in left], declared)
    derived = {dependent.name: p for dependent in dependents if (p := _derived_parameter(dependent, left)) is not None}
    omitted = [dependent for dependent in dependents if dependent.name not in derived]
    reasons = {t: f"{clean(t.name)} follows from {listed(map(clean, t.determinants))}" for t in dependents}
    texts = [
        *(f"{clean(n)} has the values of {clean(other)} in every trial, so it is omitted." for n, other in copies.items()),
        *(f"{text} and is not searched: {clean(t.formula)}." for t, text in reasons.items() if t.name in derived),
        *(f"{reasons[t]} and is omitted." for t in omitted),
        *(f"{clean(n)} is the length of training, as the trials' last steps show, so it is not searched." for n in lengths),
    ]
    decisions = [Decision(topic="parameters", text=t, overrule="--study FILE with these parameters") for t in texts]
    return ParameterRoles(derived, lengths, frozenset((*copies, *(t.name for t in omitted))), steps, factors, tuple(decisions))


def _lengths_under_unusual_names(
    params: Sequence[Params], declared: Collection[str], last_steps: Sequence[int]
) -> tuple[dict[str, Parameter], tuple[int | None, ...], dict[str, float]]:
    """Return (parameters that set the length of training, planned steps, shape (trials,), steps per unit)."""
    no_plan: tuple[int | None, ...] = (None,) * len(params)
    names = sorted({n for p in params for n in p})
    if any(is_training_length(name) for name in names):
        return {}, no_plan, {}
    for name in names:
        if name in declared or not relations.has_unknown_role(name):
            continue
        values = [p.get(name) for p in params]
        factor = relations.steps_per_unit(values, last_steps)
        if factor is None:
            continue
        counts = Counter(v for v in values if v is not None)
        usual_value = max(counts, key=lambda v: (counts[v], as_number(v)))
        why = "the length of training under another name; users set it between studies, and no study searches it"
        steps = tuple(None if v is None else max(round(factor * as_number(v)), 1) for v in values)
        return {name: Parameter(role="fixed", value=usual_value, why=why)}, steps, {name: factor}
    return {}, no_plan, {}


def _derived_parameter(dependent: relations.DependentParameter, params: Sequence[Params]) -> Parameter | None:
    is_integer = all(isinstance(p[dependent.name], int) for p in params if dependent.name in p)
    why = f"inferred: it follows from {listed(dependent.determinants)} in the trials"
    try:
        return Parameter(role="derived", formula=dependent.formula, type="int" if is_integer else "float", why=why)
    except ValidationError:
        return None
